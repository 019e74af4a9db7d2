"""The page's tables, chart, claims and pictures by mouse and keyboard: every value equals the database's."""

import csv
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from exitbench.reports import material, tables
from exitbench.reports import page as page_module
from exitbench.reports.frame import Frame
from exitbench.reports.registry import discover
from exitbench.reports.render import write_report
from exitbench.results.database.connection import open_database

Open = Callable[..., Any]


@pytest.fixture(scope="session")
def summary(example_database: Path) -> Frame:
    """Return the rows of the results table."""
    (source,) = (source for source in discover(tables) if source.name == "summary")
    with open_database(example_database) as database:
        return Frame.query(database, source.sql)


def results(page: Any) -> Any:
    return page.locator("article:has(#summary)")


def choice(page: Any, name: str) -> Any:
    return results(page).locator(f'label:has-text("{name}") select').first


def shown(page: Any) -> Any:
    return results(page).locator("tbody tr:visible")


@pytest.mark.parametrize("width", [360, 900, 1600])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_is_never_wider_than_the_screen(open_page: Open, example_page: str, width: int, scheme: str) -> None:
    page = open_page(width, scheme, "", address=example_page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    pictures = page.locator("details.card img")
    pictures.first.scroll_into_view_if_needed()
    assert pictures.first.evaluate("image => image.decode().then(() => image.naturalWidth)") > 100


def test_filters_keep_only_matching_rows_and_points(open_page: Open, example_page: str, summary: Frame) -> None:
    page = open_page(fragment="#summary", address=example_page)
    assert shown(page).count() == len(summary.rows)
    method, task = "calm-softmax", summary.rows[0]["task"]
    choice(page, "Method").select_option(method)
    choice(page, "Task").select_option(task)
    expected = [row for row in summary.rows if (row["method"], row["task"]) == (method, task)]
    assert shown(page).count() == len(expected) > 0
    assert results(page).locator("output").first.inner_text() == f"{len(expected)} of {len(summary.rows)} rows"
    results(page).locator("[data-x]").select_option("depth")
    drawn = [row for row in expected if row["value"] is not None and row["full_value"] and not row["random_weights"]]
    assert page.locator("#chart .point").count() == len(drawn) > 0
    simulated = [row for row in drawn if row["execution"] == "simulated"]
    assert page.locator("#chart .point.simulated").count() == len(simulated)
    results(page).get_by_label("Search").fill("no such words")
    assert shown(page).count() == 0
    assert "No row is left" in page.locator("#chart .canvas").inner_text()


def test_keyboard_moves_between_chart_points_and_jumps_to_their_rows(open_page: Open, example_page: str) -> None:
    page = open_page(fragment="#summary", address=example_page)
    points, tip = page.locator("#chart .point"), page.locator("#chart .tip")
    assert points.count() > 2
    points.first.focus()
    first = tip.inner_text()
    page.keyboard.press("ArrowRight")
    second = tip.inner_text()
    assert first != second and second == points.nth(1).get_attribute("aria-label")
    page.keyboard.press("End")
    assert tip.inner_text() == points.last.get_attribute("aria-label")
    page.keyboard.press("Enter")
    method = page.evaluate("document.activeElement.cells[0].textContent")
    assert (points.last.get_attribute("aria-label") or "").startswith(method)


def test_hovering_a_chart_point_shows_a_tooltip_with_the_sample_size(open_page: Open, example_page: str) -> None:
    page = open_page(fragment="#summary", address=example_page)
    point = page.locator("#chart .point").last
    point.hover(force=True)
    text = page.locator("#chart .tip").inner_text()
    assert "n = " in text and " of " in text


def test_chart_has_a_point_for_every_row_of_a_long_results_table(
    open_page: Open, example_database: Path, summary: Frame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_module, "_MOST_ROWS", 3)
    only = [source for source in discover(tables) if source.name == "summary"]
    monkeypatch.setattr(material, "discover", lambda package: only if package is tables else [])
    report = write_report(example_database, tmp_path, draft=True)
    page = open_page(fragment="#summary", address=report.index_html.as_uri())
    assert shown(page).count() == len(summary.rows) > 3
    results(page).locator("[data-x]").select_option("depth")
    drawn = [row for row in summary.rows if None not in (row["value"], row["mean_exit_layer"]) and row["full_value"]]
    assert page.locator("#chart .point").count() == len(drawn)


def test_column_heading_sorts_by_value_with_missing_values_last(
    open_page: Open, example_page: str, summary: Frame
) -> None:
    page = open_page(fragment="#summary", address=example_page)
    heading = results(page).locator("th").filter(has_text=re.compile(r"^\s*Speed-up"))
    values = sorted((row["speedup"] for row in summary.rows if row["speedup"] is not None), reverse=True)
    for order in ("ascending", "descending"):
        heading.locator("button").press("Enter")
        assert heading.get_attribute("aria-sort") == order
        place = heading.evaluate("th => th.cellIndex") + 1
        cells = results(page).locator(f"tbody tr td:nth-child({place})")
        keys = cells.evaluate_all("cells => cells.map((cell) => cell.dataset.key ?? cell.textContent)")
        numbers = [float(key) for key in keys if key != ""]
        assert numbers == pytest.approx(values if order == "descending" else values[::-1])
        assert all(key == "" for key in keys[len(numbers) :])


def test_page_offers_its_data_as_csv_and_copies_sql(open_page: Open, example_page: str, summary: Frame) -> None:
    page = open_page(fragment="#summary", address=example_page, permissions=["clipboard-read", "clipboard-write"])
    results(page).locator("details.query summary").click()
    with page.expect_download() as download:
        results(page).get_by_text("Data as CSV").click()
    rows = list(csv.DictReader(io.StringIO(Path(download.value.path()).read_text("utf-8"))))
    assert [row["cell_id"] for row in rows] == summary.values("cell_id")
    if page.evaluate("Boolean(navigator.clipboard)"):
        results(page).locator("[data-copy]").click()
        assert page.evaluate("navigator.clipboard.readText()") == results(page).locator("pre code").inner_text()


def test_claim_filters_are_stored_in_the_url_separately_per_kind(open_page: Open, example_page: str) -> None:
    page = open_page(fragment="#claims", address=example_page)
    kinds = page.locator("article:has(table.claims)")
    at_first = [kinds.nth(n).is_visible() for n in range(3)]
    assert not all(at_first[:2])
    page.locator("details.kind").evaluate_all("kinds => kinds.forEach((kind) => { kind.open = true; })")
    everything = [kinds.nth(n).locator("tbody tr").count() for n in range(3)]
    kinds.first.get_by_label("Verdict").select_option("not comparable")
    kinds.nth(1).get_by_label("Search").fill("no such words")
    link = page.evaluate("location.href")
    assert "claim-verdict=not+comparable" in link and link.endswith("#claims")
    again = open_page(fragment="", address=link)
    kinds = again.locator("article:has(table.claims)")
    assert [kinds.nth(n).is_visible() for n in range(3)] == [True, True, at_first[2]]  # what is filtered is open
    again.locator("details.kind").evaluate_all("kinds => kinds.forEach((kind) => { kind.open = true; })")
    left = [kinds.nth(n).locator("tbody tr:visible").count() for n in range(3)]
    assert 0 < left[0] < everything[0] and left[1] == 0 and left[2] == everything[2] > 0
    assert kinds.first.get_by_label("Verdict").input_value() == "not comparable"
    kinds.first.get_by_label("Verdict").select_option("all")
    assert "claim-verdict" not in again.evaluate("location.href")


def test_figures_are_uncropped_on_closed_cards_and_equally_scaled_when_open(open_page: Open, example_page: str) -> None:
    page = open_page(1280, fragment="", address=example_page)
    cards = page.locator("details.card:has(img)")
    scales = set()
    for index in range(cards.count()):
        image = cards.nth(index).locator("img")
        assert image.evaluate("image => getComputedStyle(image).objectFit") == "contain"
        cards.nth(index).evaluate("card => { card.open = true; }")
        scales.add(round(image.evaluate("image => image.clientWidth / image.getAttribute('width')"), 1))
    assert len(scales) == 1


def test_claims_can_be_filtered_by_verdict(open_page: Open, example_page: str) -> None:
    page = open_page(fragment="#claims", address=example_page)
    page.locator("details.kind").evaluate_all("kinds => kinds.forEach((kind) => { kind.open = true; })")
    assert page.locator("table.claims tbody tr").count() >= 40 and page.locator("table.claims").count() == 3
    claims = page.locator("article:has(table.claims)").first
    everything = claims.locator("tbody tr").count()
    claims.get_by_label("Verdict").select_option("not comparable")
    verdicts = claims.locator("tbody tr:visible .verdict").all_inner_texts()
    assert 0 < len(verdicts) < everything and set(verdicts) == {"not comparable"}
