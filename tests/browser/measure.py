"""Measure the size of a report's pages and their loading time: `python tests/browser/measure.py REPORT/index.html ...`

Prints per page: bytes of the page and of what it loads, DOM nodes, and layout shift while loading and scrolling. Then
come the seconds to first paint and until nothing blocks the page any more (medians of five loads), and the number of
pages of its PDF on A4. The machine's load is printed first, because other processes slow a page down.
"""

import os
import re
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

LOADS = 5
WATCH = """
window.shift = 0; window.busy = 0;
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.shift += entry.value;
}).observe({ type: "layout-shift", buffered: true });
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) window.busy = Math.max(window.busy, entry.startTime + entry.duration);
}).observe({ type: "longtask", buffered: true });
"""
TIMES = """() => [
  performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? 0,
  Math.max(window.busy, performance.getEntriesByType("navigation")[0].domContentLoadedEventEnd),
]"""


def scroll_through(page: Any) -> None:
    """Scroll to the end in steps of one screen, as a reader does, and wait for lazily drawn parts."""
    for place in range(0, page.evaluate("document.documentElement.scrollHeight"), 700):
        page.evaluate("place => window.scrollTo({ top: place, behavior: 'instant' })", place)
        page.wait_for_timeout(60)


def measured(browser: Any, path: Path) -> dict[str, float]:
    """Load a page `LOADS` times and return its measurements; the last load is also scrolled to the end."""
    times = []
    for _ in range(LOADS):
        context = browser.new_context(viewport={"width": 1440, "height": 900})
        page, loaded = context.new_page(), set()
        page.add_init_script(WATCH)
        page.on("request", lambda request, loaded=loaded: loaded.add(request.url))
        page.goto(path.resolve().as_uri())
        page.wait_for_timeout(1000)
        times.append(page.evaluate(TIMES))
        if len(times) < LOADS:
            context.close()
    at_start = [Path(url.removeprefix("file://")) for url in loaded if url.startswith("file:")]
    found = {
        "html_bytes": path.stat().st_size,
        "loaded_bytes": sum(file.stat().st_size for file in at_start),
        "nodes": page.evaluate("document.querySelectorAll('*').length"),
        "shift_loading": page.evaluate("window.shift"),
        "first_paint_s": statistics.median(first for first, _ in times) / 1000,
        "usable_s": statistics.median(usable for _, usable in times) / 1000,
        "height_px": page.evaluate("document.documentElement.scrollHeight"),
    }
    scroll_through(page)
    found["shift_all"] = page.evaluate("window.shift")
    page.evaluate("window.scrollTo({ top: 0, behavior: 'instant' })")
    found["pdf_pages"] = len(re.findall(rb"/Type\s*/Page\b", page.pdf(format="A4")))
    context.close()
    return found


def main(paths: list[str]) -> None:
    found = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    load = " ".join(f"{load:.1f}" for load in os.getloadavg())
    print(f"load {load} on {os.cpu_count()} cores, {time.strftime('%F %R')}")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        for path in paths:
            told = (
                f"{name} {value:,.3f}".rstrip("0").rstrip(".") for name, value in measured(browser, Path(path)).items()
            )
            print(path, *told, sep="\n  ")


if __name__ == "__main__":
    main(sys.argv[1:])
