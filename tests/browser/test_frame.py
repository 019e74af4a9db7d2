"""The page's frame: table of contents, search, URLs of claims, phones, print, accessibility and layout shift."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlparse
from urllib.request import url2pathname

import pytest
from axe_playwright_python.sync_playwright import Axe
from measure import WATCH, scroll_through

from exitbench.reports.render import write_report

Open = Callable[..., Any]
A4_WIDTH = 703
"""Pixels between the margins of an upright A4 page."""


def wait_until(page: Any, condition: str, argument: Any = None) -> None:
    """Wait until a JavaScript condition holds.

    Polls from outside, because the page's content security policy forbids Playwright's own waiting for conditions.
    """
    for _ in range(200):
        if page.evaluate(condition, argument):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"never: {condition}")


HERE = """(name) => {
  const link = document.querySelector("nav [aria-current]");
  return link?.closest("nav > ul > li").querySelector("a").hash === `#${name}`;
}"""


def test_table_of_contents_follows_scrolling_and_has_a_skip_link(open_page: Open, example_page: str) -> None:
    page = open_page(width=1300, fragment="", address=example_page)
    nav = page.locator("nav").bounding_box()
    assert nav["x"] < 300 and nav["width"] < 300, "beside the page"
    for name in ("claims", "ours", "provenance"):
        page.evaluate("name => document.getElementById(name).scrollIntoView()", name)
        wait_until(page, HERE, name)
    assert page.locator("nav").bounding_box()["y"] == 0
    page = open_page(width=1300, fragment="", address=example_page)  # Tab goes on from where a page was scrolled to
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the results"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('main') !== null")


def test_search_finds_methods_figures_claims_and_documents(open_page: Open, page_url: str) -> None:
    page = open_page(fragment="", address=page_url)
    page.keyboard.press("/")
    hits = page.locator(".find li a")

    def search(words: str) -> list[str]:
        page.locator("#find").fill(words)
        page.locator(".find li").first.wait_for()
        return hits.all_inner_texts()

    assert any(text.startswith("figure") for text in search("exit histogram"))
    page.keyboard.press("Enter")
    page.locator("#exit_histogram[open]").wait_for()
    assert any("claim" in text for text in search("claim saturation fastest"))
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert page.evaluate("location.hash") == "#mee-saturation-is-fastest"
    assert page.locator("#mee-saturation-is-fastest").is_visible()
    assert any(text.startswith("method") for text in search("method calm"))
    hits.first.click()
    assert page.locator("article:has(#summary) select[name=Method]").input_value() == "calm-softmax"
    wait_until(page, "document.querySelector('.find output').textContent !== ''")
    page.locator("#find").fill("document w9275")
    page.locator(".find li a", has_text="document").first.click()
    page.locator('[data-part="pane-a"] .answer .token').first.wait_for()
    assert page.evaluate("location.hash").startswith("#doc=")
    page.locator("#find").fill("no such words at all")
    assert page.locator(".find output").inner_text() == "Nothing found"
    page.keyboard.press("Escape")
    assert page.locator(".found").is_hidden()


def test_link_to_a_claim_shows_it_despite_filters(open_page: Open, example_page: str) -> None:
    name = "mee-three-quarters-after-a-sixth"
    page = open_page(fragment=f"#{name}", address=example_page)
    row = page.locator(f"#{name}")
    assert row.is_visible() and 0 <= row.bounding_box()["y"] < 900
    row.locator("summary").click()
    row.get_by_role("link", name="our figure").click()
    page.wait_for_selector("#mee_fig1_no_change[open]")
    claims = page.locator("article:has(table.claims)").first
    claims.get_by_label("Search").fill("no such words")
    assert row.is_hidden()
    page.locator("#mee_fig1_no_change .about a", has_text="three quarters").click()
    row.wait_for(state="visible")  # the address changes before the page reacts to it
    assert page.evaluate("location.hash") == f"#{name}"


def test_card_opens_its_figure_and_updates_the_url(open_page: Open, example_page: str) -> None:
    page = open_page(fragment="#frontier", address=example_page)
    card = page.locator("#frontier")
    image = card.locator("img")
    assert card.get_attribute("open") is not None and image.bounding_box()["width"] > 500
    card.locator("summary").first.click()
    assert image.bounding_box()["width"] < 500
    page.locator("#exit_histogram > summary").press("Enter")
    wait_until(page, "location.hash === '#exit_histogram'")


@pytest.mark.parametrize("width", [360, 768])
def test_small_screens_show_tables_as_cards_without_overflow(open_page: Open, example_page: str, width: int) -> None:
    page = open_page(width=width, fragment="", address=example_page)
    cell = page.locator("article:has(#summary) td[data-name='Method']").first
    assert cell.evaluate("e => getComputedStyle(e, '::before').content") == '"Method"'
    wide = "all => all.filter((e) => e.checkVisibility() && e.scrollWidth > e.clientWidth + 1).map((e) => e.ariaLabel)"
    assert page.locator(".rows").evaluate_all(wide) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_axe_finds_no_serious_accessibility_violation(
    open_page: Open, example_page: str, width: int, scheme: str
) -> None:
    page = open_page(width=width, scheme=scheme, fragment="#documents", address=example_page)
    page.locator('[data-part="pane-a"] .answer .token').first.wait_for()
    for name in ("frontier", "mee_fig1_no_change"):
        page.evaluate("name => { document.getElementById(name).open = true; }", name)
    found = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
    serious = {it["id"]: [node["html"][:200] for node in it["nodes"][:3]] for it in found if it["impact"] in SERIOUS}
    assert serious == {}


SERIOUS = ("serious", "critical")


@pytest.mark.parametrize("width", [390, 1440])
def test_scrolling_through_the_page_causes_no_layout_shift(chromium: Any, example_page: str, width: int) -> None:
    context = chromium.new_context(viewport={"width": width, "height": 900})
    page = context.new_page()
    page.add_init_script(WATCH)
    page.goto(example_page)
    page.wait_for_timeout(600)  # at the top, where what scripts add would move what is read
    scroll_through(page)
    assert page.evaluate("window.shift") < 0.1
    page.evaluate("window.scrollTo({ top: 0, behavior: 'instant' })")
    page.wait_for_timeout(200)
    page.evaluate("document.querySelector('main').prepend(document.createElement('textarea'))")
    page.evaluate("document.querySelector('textarea').rows = 40")
    wait_until(page, "window.shift > 0.1")  # what does jump is seen
    context.close()


def test_printed_page_fits_a4_without_overflow_in_at_most_20_pages(open_page: Open, example_page: str) -> None:
    page = open_page(width=A4_WIDTH, fragment="", address=example_page)
    pages = re.findall(rb"/Type\s*/Page\b", page.pdf(format="A4", prefer_css_page_size=True))
    assert 3 < len(pages) <= 20
    page.emulate_media(media="print")
    cut = """(width) => [...document.querySelectorAll("main *, header *")].filter((e) => {
      const box = e.getBoundingClientRect();
      const clips = getComputedStyle(e).overflowX !== "visible" && e.scrollWidth > e.clientWidth + 1;
      return e.checkVisibility() && box.width > 1 && !e.closest("svg") && (box.right > width + 1 || clips);
    }).map((e) => e.outerHTML.slice(0, 120))"""
    assert page.evaluate(cut, A4_WIDTH) == []


def test_tables_figures_and_claims_are_shown_without_javascript(open_page: Open, example_page: str) -> None:
    page = open_page(fragment="#mee-three-quarters-after-a-sixth", address=example_page, java_script_enabled=False)
    assert page.locator("#mee-three-quarters-after-a-sixth").is_visible()
    assert page.locator("article:has(#summary) tbody tr").count() > 10
    assert page.locator("details.card img").count() > 10
    assert page.locator(".find").is_hidden() and page.locator("nav a").count() > 10


def test_report_folder_and_single_file_report_work_after_being_moved(
    open_page: Open, example_database: Path, example_page: str, tmp_path: Path
) -> None:
    moved = Path(
        shutil.copytree(Path(url2pathname(urlparse(example_page).path)).parent, tmp_path / "it's moved, 100 %")
    )
    drawn = "image => image.decode().then(() => image.naturalWidth)"
    page = open_page(fragment="#frontier", address=(moved / "index.html").as_uri())
    assert page.locator("#frontier img").evaluate(drawn) > 100
    write_report(example_database, moved, draft=True, single_file=True)
    alone = (moved / "index.html").rename(tmp_path / "alone.html")
    page = open_page(fragment="#frontier", address=alone.as_uri())
    assert page.locator("#frontier img").evaluate(drawn) > 100
    page.locator("#frontier .query summary").click()
    with page.expect_download() as download:
        page.locator("#frontier").get_by_text("Data as CSV").click()
    assert Path(download.value.path()).read_text("utf-8") == (moved / "figures" / "frontier.csv").read_text("utf-8")


def test_hostile_names_and_texts_execute_no_script(open_page: Open, hostile_page: str) -> None:
    """`open_page` fails on any dialog, error, refused script or request."""
    page = open_page(fragment="", address=hostile_page)
    scroll_through(page)
    page.locator("#find").fill("alert")
    wait_until(page, "document.querySelector('.find output').textContent !== ''")
    for card in page.locator("details.card > summary").all():
        card.click()
    assert page.evaluate("window.alerted") is None
    assert page.locator("main :is(script:not([type]), iframe, base, [onmouseover], [onerror])").count() == 0
