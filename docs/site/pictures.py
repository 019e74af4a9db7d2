"""Take the start page's screenshots, from two reports' folders: `python docs/site/pictures.py REAL GENERATED`."""

import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

SITE = Path(__file__).parent

if __name__ == "__main__":
    real, generated = (Path(folder).resolve() / "index.html" for folder in sys.argv[1:])
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 860})
        page.goto(real.as_uri())
        page.wait_for_timeout(500)
        page.screenshot(path=SITE / "report-page.png")
        page.goto(generated.as_uri() + "#documents")
        page.locator('[data-part="pane-a"] .answer .token').first.click()
        page.wait_for_timeout(500)
        page.locator("section:has(> #documents)").screenshot(path=SITE / "report-answers.png")
        browser.close()
