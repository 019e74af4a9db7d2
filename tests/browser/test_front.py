"""Recommendations by allowed loss, results and chart: a reader's settings are applied and stored in the URL."""

import tomllib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from exitbench.reports import figures, material, tables
from exitbench.reports.frame import Frame
from exitbench.reports.front.cards import Card, cards
from exitbench.reports.front.words import describe_card
from exitbench.reports.labels import labels
from exitbench.reports.registry import discover
from exitbench.reports.render import write_report
from exitbench.results.database.connection import open_database

Open = Callable[..., Any]


@pytest.fixture(scope="session")
def front_database(example: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a database of two tasks with enough documents to show that a loss is small."""
    return Path(example.FRONT.make_database(tmp_path_factory.mktemp("front")))


@pytest.fixture(scope="session")
def front_page(front_database: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the URL of the report of `front_database`, without figures."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(material, "discover", lambda package: () if package is figures else discover(package))
        return write_report(front_database, tmp_path_factory.mktemp("front-page"), draft=True).index_html.as_uri()


@pytest.fixture(scope="session")
def python_cards(front_database: Path) -> tuple[Card, ...]:
    """Return the recommendation cards as computed in Python."""
    (source,) = (source for source in discover(tables) if source.name == "summary")
    with open_database(front_database) as database:
        return cards(Frame.query(database, source.sql).rows)


def names_at(python_cards: tuple[Card, ...], percent: float) -> list[str]:
    said = [describe_card(card, labels(card.rows), {}, ()) for card in python_cards]
    return [next(one.name for one in reversed(card.recommendations) if one.from_percent <= percent) for card in said]


def names(page: Any) -> list[str]:
    return [text.strip() for text in page.locator(".advised .use:visible").all_inner_texts()]


def test_loss_slider_changes_recommendations_and_is_stored_in_the_url(
    open_page: Open, front_page: str, python_cards: tuple[Card, ...]
) -> None:
    page = open_page(address=front_page, fragment="#use")
    assert names(page) == names_at(python_cards, 1)
    slider = page.get_by_label("Allowed loss of quality")
    slider.press("End")
    assert names(page) == names_at(python_cards, 20) != names_at(python_cards, 1)
    slider.press("ArrowLeft")
    assert page.locator(".allow output").inner_text() == "19.9 % of full depth's" and "?loss=19.9#use" in page.url
    again = open_page(address=page.url, fragment="")
    assert again.locator(".allow output").inner_text() == "19.9 % of full depth's"
    assert names(again) == names_at(python_cards, 19.9)
    slider.press("Home")
    assert names(page) == names_at(python_cards, 0) and "loss=0" in page.url


def test_summary_line_counts_the_pairs_for_which_early_exit_pays(
    open_page: Open, front_page: str, python_cards: tuple[Card, ...]
) -> None:
    page = open_page(address=front_page, fragment="#use")
    assert page.locator(".summary").inner_text() == "Early exit pays in 0 of 2 timed model-task pairs."
    page.get_by_label("Allowed loss of quality").press("End")
    paying = sum(name != "full depth" for name in names_at(python_cards, 20))
    assert paying and page.locator(".summary strong").inner_text() == str(paying)


@pytest.mark.parametrize("width", [320, 390, 1280, 1440, 1920])
def test_cards_and_results_do_not_overflow_at_any_width(open_page: Open, front_page: str, width: int) -> None:
    page = open_page(width=width, address=front_page + "?loss=20", fragment="")
    beyond = """cards => cards.filter((card) => [...card.querySelectorAll("*")].some(
      (e) => e.checkVisibility() && e.getBoundingClientRect().right > card.getBoundingClientRect().right + 1
    )).length"""
    assert page.locator(".advised").count() == 2 and page.locator(".advised").evaluate_all(beyond) == 0
    assert page.locator("article.results .rows").evaluate("e => e.scrollWidth - e.clientWidth") <= 0
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_first_card_is_visible_on_a_phone_without_scrolling(open_page: Open, front_page: str) -> None:
    page = open_page(width=390, address=front_page, fragment="")
    box = page.locator(".advised .gain:visible").first.bounding_box()
    assert box["y"] + box["height"] < 844


def test_printed_page_shows_the_allowed_loss(open_page: Open, front_page: str) -> None:
    page = open_page(address=front_page + "?loss=5", fragment="")
    page.emulate_media(media="print")
    assert page.locator(".allow output").is_visible() and page.locator(".allow output").inner_text().startswith("5 %")
    assert not page.locator(".allow input").is_visible()


def test_card_button_sets_the_loss_at_which_a_method_is_faster(
    open_page: Open, front_page: str, python_cards: tuple[Card, ...]
) -> None:
    page = open_page(address=front_page, fragment="#use")
    button = page.locator(".later button:visible").first
    percent = float(button.inner_text().split()[1])
    button.click()
    assert names(page) == names_at(python_cards, percent) != names_at(python_cards, 1)
    assert page.get_by_label("Allowed loss of quality").input_value() == f"{percent:g}"


def test_cards_and_all_result_columns_are_available_without_javascript(
    chromium: Any, front_page: str, python_cards: tuple[Card, ...]
) -> None:
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(front_page)
    assert names(page) == names_at(python_cards, 1)
    assert not page.locator(".allow").is_visible() and not page.locator("#chart").is_visible()
    assert page.locator("article.results tbody tr:visible").count() == sum(len(card.rows) for card in python_cards)
    page.locator(".all-columns").check()
    assert page.locator("article.results th:visible", has_text="Realised").count() == 1
    context.close()


def test_saved_suite_equals_the_displayed_one(open_page: Open, front_page: str) -> None:
    page = open_page(address=front_page + "?loss=20", fragment="#use")
    card = page.locator(".advised").first
    card.locator("details.suite:visible summary").click()
    with page.expect_download() as download:
        card.get_by_role("button", name="Save").click()
    text = Path(download.value.path()).read_text("utf-8")
    assert text == card.locator("details.suite:visible code").inner_text()
    suite = tomllib.loads(text)
    assert download.value.suggested_filename == "world-t5-samsum.toml"
    assert suite["sweep"][0]["method"] == "calm-softmax" and suite["tasks"]["samsum"]["limit"] == 300


def test_filters_axes_columns_and_order_are_stored_in_the_url(open_page: Open, front_page: str) -> None:
    page = open_page(address=front_page, fragment="#summary")
    results = page.locator("article.results")
    filters = results.locator(".filter")
    filters.get_by_label("Task").select_option("squad")
    filters.get_by_label("Quality").select_option("not shown to be")
    filters.get_by_label("Search").fill("calm")
    results.get_by_label("Across").select_option("blocks")
    results.get_by_label("All columns").check()
    heading = results.locator("th", has_text="Blocks run").locator("button")
    heading.click()
    heading.click()
    rows = results.locator("tbody tr:visible").all_inner_texts()
    points = page.locator("#chart .point").count()
    assert len(rows) == points == 3, "three thresholds, of which none is shown to lose at most 1 %"
    again = open_page(address=page.url, fragment="")
    assert again.locator("article.results tbody tr:visible").all_inner_texts() == rows
    assert again.locator("#chart .point").count() == points
    assert again.get_by_label("Across").input_value() == "blocks" and again.get_by_label("All columns").is_checked()
    assert again.locator("th[aria-sort=descending]").inner_text().startswith("Blocks run")
    again.get_by_label("Allowed loss of quality").press("End")
    assert again.locator("article.results tbody tr:visible").count() == 1, "of one more than 20 % may be lost"


def test_invalid_url_parameters_are_ignored(open_page: Open, front_page: str) -> None:
    asked = "?loss=x&task=%3Cimg%20src=x%20onerror=alert(1)%3E&x=nothing&only=__proto__&sort=99.descending&columns=some"
    page = open_page(address=front_page + asked, fragment="")
    assert page.get_by_label("Allowed loss of quality").input_value() == "1"
    assert page.locator("article.results tbody tr[hidden]").count() == 0
    assert page.locator("#chart .point.faint").count() == 0 < page.locator("#chart .point").count()


def test_legend_entry_highlights_a_single_method(open_page: Open, front_page: str) -> None:
    page = open_page(address=front_page, fragment="#summary")
    legend = page.locator(".methods")
    assert page.locator("#chart .point.faint").count() == 0
    legend.get_by_role("button", name="static").click()
    points = page.locator("#chart .point")
    colours = {
        points.nth(n).get_attribute("stroke"): "faint" in str(points.nth(n).get_attribute("class"))
        for n in range(points.count())
    }
    assert list(colours.values()).count(False) == 1 < len(colours)
    assert page.locator("#chart .point:not(.faint)").count() == 4, "two static depths on two tasks"
    assert "only=static" in page.url
    assert "static" in page.evaluate("document.activeElement.textContent"), "the keyboard stays where it was"
    again = open_page(address=page.url, fragment="")
    assert again.locator("#chart .point:not(.faint)").count() == 4
    again.get_by_role("button", name="static").click()
    assert again.locator("#chart .point.faint").count() == 0 and "only" not in again.url


def test_chart_has_one_panel_per_task_and_its_title_isolates_the_panel(open_page: Open, front_page: str) -> None:
    page = open_page(address=front_page, fragment="#summary")
    panels = page.locator("#chart .canvas > div")
    assert panels.count() == 2
    for panel in panels.all():
        assert panel.locator(".pareto").count() == 1 and panel.locator(".sweep").count() == 1
        assert "calm-softmax" in " ".join(panel.locator(".name").all_text_contents())
    narrow = panels.first.bounding_box()["width"]
    panels.first.get_by_role("button").click()
    assert panels.count() == 1 and panels.first.bounding_box()["width"] > 1.5 * narrow
    assert "task=samsum" in page.url and "model=world-t5" not in page.url
    panels.first.get_by_role("button").click()
    assert panels.count() == 2


def test_result_row_has_a_url_and_links_to_its_answers(open_page: Open, front_page: str) -> None:
    page = open_page(address=front_page, fragment="#summary")
    row = page.locator("article.results tbody tr", has_text="exit_layer=5").last
    row.locator("td").first.get_by_role("link").click()
    assert page.url.endswith(f"#{row.get_attribute('id')}")
    row.get_by_role("link", name="Answers of static").click()
    chosen = page.locator('.documents [data-part="a"]')
    page.wait_for_function(
        "document.querySelector('[data-part=\"a\"]').selectedOptions[0]?.text.includes('exit_layer=5')"
    )
    assert "exit_layer=5" in chosen.locator("option:checked").inner_text()


@pytest.mark.parametrize(("width", "columns"), [(1440, 3), (768, 2), (390, 1)])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_cards_fit_the_screen_at_every_width(
    open_page: Open, front_page: str, width: int, columns: int, scheme: str
) -> None:
    page = open_page(width, scheme, "#use", address=front_page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    boxes = [card.bounding_box() for card in page.locator(".advised").all()]
    assert len({box["y"] for box in boxes}) == (2 if columns == 1 else 1)
    assert all(box["x"] >= 0 and box["x"] + box["width"] <= width for box in boxes)
