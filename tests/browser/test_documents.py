"""The document browser by mouse, finger and keyboard shows the database's values."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from exitbench.reports.answers import document_choice
from exitbench.reports.render import write_report
from exitbench.results.database.connection import open_database

Open = Callable[..., Any]
CALM = '{"decay":"none","min_exit":1,"threshold":0.6}'


@pytest.fixture(scope="session")
def rows(database: Path) -> dict[str, list[dict[str, Any]]]:
    """Return rows about one document whose answer in a run differs from full depth's: both answers and the probe."""
    sql = "SELECT * FROM token_trace WHERE model = 'deep' AND execution = 'real' ORDER BY doc_key, position"
    with open_database(database) as opened:
        tokens = opened.query(sql).to_pylist()
        own = [row for row in tokens if json.loads(row["params"]) == json.loads(CALM)]
        key = next(row["doc_key"] for row in own if row["position"] == 6 and _parts_at(own, row["doc_key"]) == 6)
        probe = opened.query(
            "SELECT * FROM probe_trace WHERE model = 'deep' AND doc_key = ? ORDER BY position", [key]
        ).to_pylist()
        cells = opened.query("SELECT DISTINCT cell_id, attempt_id FROM runs WHERE kind = 'quality'").to_pylist()
    return {
        "own": [row for row in own if row["doc_key"] == key],
        "document": [row for row in tokens if row["doc_key"] == key],
        "full": [row for row in tokens if row["doc_key"] == key and row["method"] == "full"],
        "probe": probe,
        "cells": cells,
    }


def _parts_at(own: list[dict[str, Any]], key: str) -> int | None:
    differing = (r["position"] for r in own if r["doc_key"] == key and r["token_id"] != r["full_token_id"])
    return next(differing, None)


@pytest.fixture(scope="session")
def link(rows: dict[str, list[dict[str, Any]]]) -> str:
    """Return the link to the document of `rows`, with the run next to full depth."""
    own, full = rows["own"][0], rows["full"][0]
    return f"#doc={own['doc_key']}&a={own['cell_id'][:12]}&b={full['cell_id'][:12]}"


def tokens(page: Any, pane: str = "a") -> Any:
    return page.locator(f'[data-part="pane-{pane}"] .answer .token')


def exits(page: Any, pane: str = "a") -> list[int]:
    return tokens(page, pane).evaluate_all("all => all.map(e => Number(e.querySelector('sub').textContent))")


def panel(page: Any) -> Any:
    return page.locator('[data-part="panel"]')


def test_page_with_200_documents_loads_within_two_seconds(open_page: Open, page_url: str) -> None:
    took = []
    for _ in range(3):
        page = open_page()
        tokens(page).first.wait_for()
        timing = "performance.getEntriesByType('navigation')[0].loadEventEnd"
        took.append(page.evaluate(timing))
    assert 0 < min(took) <= 2000
    assert page.locator('[data-part="document"] option').count() == 200
    assert page.locator('[data-part="a"] option').count() == 20
    size = page.evaluate("document.getElementById('documents-data').textContent.length")
    assert 100_000 < size <= 3_000_000


def test_link_opens_a_document_with_two_methods(
    open_page: Open, link: str, rows: dict[str, list[dict[str, Any]]]
) -> None:
    page = open_page(fragment=link)
    tokens(page, "b").first.wait_for()
    for pane, stored in (("a", rows["own"]), ("b", rows["full"])):
        assert exits(page, pane) == [row["exit_layer"] for row in stored]
        differing = tokens(page, pane).evaluate_all("all => all.map(e => e.classList.contains('differs'))")
        assert differing == [row["token_id"] != row["full_token_id"] for row in stored]
    assert page.locator('[data-part="pane-a"] .answer .parted').count() == 1
    assert page.locator('[data-part="pane-a"] .parted + .token').get_attribute("data-position") == "5"


def test_hovering_a_token_shows_the_read_out_of_every_block(
    open_page: Open, link: str, rows: dict[str, list[dict[str, Any]]]
) -> None:
    page = open_page(fragment=link)
    tokens(page).nth(2).hover()
    probe, own = rows["probe"][2], rows["own"][2]
    text = panel(page).inner_text()
    assert "token 3 of 40" in text and f"after block {own['exit_layer']} of 24" in text
    assert f"block {probe['first_match']}:" in text and "✓ the same" in text
    score = re.search(r"score ([\d.]+), threshold 0.6", text)
    assert score is not None and float(score[1]) == pytest.approx(own["score"], abs=0.001)
    lens = panel(page).locator("tbody tr")
    assert lens.count() == 24
    for block in range(24):
        cells = lens.nth(block).locator("td").all_inner_texts()
        assert float(cells[0].split()[-1]) == pytest.approx(probe["p1"][block], abs=0.0071)
        assert cells[3].split()[0] == f"#{probe['rank_final'][block]}"
    left = panel(page).locator("tr.left-here th").inner_text()
    assert left.split()[0] == str(own["exit_layer"])
    assert panel(page).locator("svg .bar").count() == 24


def test_probe_table_is_absent_after_the_first_differing_token(open_page: Open, link: str) -> None:
    page = open_page(fragment=link)
    tokens(page).nth(5).hover()
    assert panel(page).locator("table").count() == 1
    tokens(page).nth(6).hover()
    assert panel(page).locator("table").count() == 0
    assert "went another way at token 6" in panel(page).inner_text()


def test_keyboard_moves_between_tokens_pins_and_unpins(open_page: Open, link: str) -> None:
    page = open_page(fragment=link)
    tokens(page).first.wait_for()
    assert page.locator('[data-part="pane-a"] [tabindex="0"]').count() == 1
    page.locator('[data-part="pane-a"] [tabindex="0"]').focus()
    page.keyboard.press("Home")
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    place = panel(page).locator(".place")
    assert place.inner_text() == "token 4 of 40"
    said = page.locator('[data-part="live"]')
    assert said.inner_text().startswith("Token 4, ") and "as full depth. Oracle layer" in said.inner_text()
    page.keyboard.press("Enter")
    assert page.locator('.token[aria-selected="true"]').get_attribute("data-position") == "3"
    assert page.evaluate("location.hash").endswith("&token=4")
    page.keyboard.press("ArrowRight")
    tokens(page, "b").nth(9).hover()
    assert place.inner_text() == "token 4 of 40"
    page.keyboard.press("Escape")
    assert page.locator('.token[aria-selected="true"]').count() == 0
    page.keyboard.press("End")
    assert place.inner_text() == "token 40 of 40"
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.dataset.position") == "39"


def test_tap_pins_a_token_and_the_url_restores_it(open_page: Open, link: str) -> None:
    page = open_page(width=360, fragment=link, has_touch=True, is_mobile=True)
    tokens(page).nth(2).tap()
    assert panel(page).locator(".place").inner_text() == "token 3 of 40"
    box, below = tokens(page).nth(2).bounding_box(), panel(page).bounding_box()
    assert box["y"] >= 0 and box["y"] + box["height"] <= below["y"] < 900
    again = open_page(fragment=page.evaluate("location.hash"))
    assert again.locator('.token[aria-selected="true"]').get_attribute("data-position") == "2"
    panel(page).get_by_role("button", name="Let go").tap()
    assert page.locator('.token[aria-selected="true"]').count() == 0


def test_documents_can_be_searched_and_paged(open_page: Open, rows: dict[str, list[dict[str, Any]]]) -> None:
    page = open_page()
    tokens(page).first.wait_for()
    search, chosen = page.get_by_label("Search documents", exact=True), page.locator('[data-part="document"]')
    first, key = chosen.input_value(), rows["own"][0]["doc_key"]
    search.fill(key)
    assert page.locator('[data-part="found"]').inner_text() == "1 found"
    assert chosen.input_value() != first and f"doc={key}" in page.evaluate("location.hash")
    (cell,) = parse_qs(page.evaluate("location.hash.slice(1)"))["a"]
    assert exits(page) == [row["exit_layer"] for row in rows["document"] if row["cell_id"].startswith(cell)]
    search.fill("no such words")
    assert page.locator('[data-part="found"]').inner_text() == "0 found"
    assert chosen.is_disabled() and chosen.locator("option").count() == 1
    tokens(page).nth(3).click()
    linked = parse_qs(page.evaluate("location.hash.slice(1)"))
    assert (linked["doc"], linked["token"]) == ([key], ["4"])
    search.fill("")
    before = chosen.input_value()
    assert page.locator('.token[aria-selected="true"]').get_attribute("data-position") == "3"
    page.get_by_role("button", name="Next document").click()
    assert chosen.input_value() == str(int(before) + 1)
    page.locator('[data-part="b"]').select_option(index=3)
    assert tokens(page, "b").count() == 40


def test_last_selected_model_is_shown_even_if_an_earlier_group_decodes_later(open_page: Open) -> None:
    page = open_page()
    tokens(page).first.wait_for()
    page.evaluate(
        """() => {
          const group = TracePayload.prototype.group;
          let calls = 0;
          TracePayload.prototype.group = async function (number) {
            const first = (calls += 1) === 1;
            if (first) await new Promise((done) => setTimeout(done, 300));
            const found = await group.call(this, number);
            if (first) setTimeout(() => { window.late = true; });
            return found;
          };
        }"""
    )
    page.locator('[data-part="model"]').select_option("world-gpt")
    page.locator('[data-part="model"]').select_option("deep")
    page.evaluate(
        "new Promise((done) => { const look = () => (window.late ? done() : setTimeout(look, 20)); look(); })"
    )
    assert page.locator('[data-part="legend"] .token').count() == 24
    assert page.locator('[data-part="random"]').is_hidden()


@pytest.mark.parametrize("width", [360, 900, 1600])
def test_hostile_or_very_long_tokens_do_not_break_the_page(open_page: Open, width: int) -> None:
    page = open_page(width=width)
    tokens(page).first.wait_for()
    seen = set()
    for word in ("alert", "wwwwwww", r"\u202e", "↵", "שלום"):
        page.locator('[data-part="search"]').fill(word)
        page.keyboard.press("Enter")
        token = tokens(page).filter(has_text=re.compile(re.escape(word)))
        if token.count():
            token.first.click()
            seen.add(word)
            assert word in panel(page).locator(".what").inner_text()
            if word == "wwwwwww":
                assert len(token.first.locator("bdi").inner_text()) == 61
                assert len(panel(page).locator(".what bdi").inner_text()) >= 10_000
            page.keyboard.press("Escape")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert {"alert", "wwwwwww", r"\u202e"} <= seen
    assert page.locator(".documents script:not([type])").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_exit_layer_has_a_distinct_readable_color(open_page: Open, scheme: str) -> None:
    page = open_page(scheme=scheme)
    tokens(page).first.wait_for()
    shades = page.locator(".swatches .token").evaluate_all(
        "all => all.map(e => [getComputedStyle(e).backgroundColor, getComputedStyle(e).color])"
    )
    assert len(shades) == 24 and len({paper for paper, _ in shades}) == 24
    assert all(_contrast(*map(_rgb, shade)) >= 4.5 for shade in shades)


def _rgb(colour: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", colour)[:3]]


def _contrast(one: list[int], other: list[int]) -> float:
    def luminance(colour: list[int]) -> float:
        linear = [c / 255 / 12.92 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_random_weights_are_labelled(open_page: Open) -> None:
    page = open_page()
    warning = page.locator('[data-part="random"]')
    tokens(page).first.wait_for()
    assert not warning.is_visible()
    page.locator('[data-part="model"]').select_option("world-gpt")
    page.locator('[data-part="legend"] .token').nth(3).wait_for()
    assert warning.is_visible()
    assert page.locator('[data-part="legend"] .token').count() == 4
    again = open_page(fragment=page.evaluate("location.hash"))
    tokens(again).first.wait_for()
    assert again.locator('[data-part="model"]').input_value() == "world-gpt"


def test_link_to_a_missing_document_is_reported(open_page: Open) -> None:
    page = open_page(fragment="#doc=nosuch&a=nosuch")
    tokens(page).first.wait_for()
    assert "is not on this page" in panel(page).inner_text()


# ------------------------------------------------------------------------------------------ where something happens


def told(page: Any) -> str:
    return str(page.locator('[data-part="event"]').inner_text())


def test_page_opens_on_the_recommended_method_where_it_differs_from_full_depth(
    open_page: Open, example_database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sql = "SELECT attempt_id FROM frontier WHERE method = 'calm-softmax' AND execution = 'real' AND token_match < 1"
    with open_database(example_database) as opened:  # its few documents show nothing
        best = opened.query(sql)["attempt_id"].to_pylist()
    monkeypatch.setattr(document_choice, "recommended", lambda _: best)
    page = open_page(address=write_report(example_database, tmp_path, draft=True).index_html.as_uri())
    tokens(page).first.wait_for()
    assert page.locator('[data-part="a"] option:checked').inner_text().endswith("(recommended)")
    assert page.locator(".parted").count() > 0
    cell = parse_qs(page.evaluate("location.hash.slice(1)")).get("a")
    assert cell is None, "the address says what a reader chose"


def test_settings_are_grouped_by_family_and_sorted_by_threshold(open_page: Open) -> None:
    page = open_page()
    tokens(page).first.wait_for()
    options = page.locator('[data-part="a"] option').all_inner_texts()
    assert options[0] == "full"
    levels = [float(found[1]) for text in options if (found := re.search(r"calm-softmax threshold=([\d.]+)", text))]
    assert levels == sorted(levels) and len(levels) == 16
    assert page.locator('[data-part="a"] optgroup[label="calm"] option').count() >= 16


def test_presets_jump_to_matching_tokens(open_page: Open, link: str, example_page: str) -> None:
    page = open_page(fragment=link)
    tokens(page).first.wait_for()
    page.get_by_role("button", name="first wrong exit").click()
    assert page.locator(".parted + .token[aria-selected=true].differs").count() == 1
    address = page.evaluate("location.hash")
    assert re.match(r"1 of \d+\+?: exited after block \d+ of 24 with another token", told(page))
    page.get_by_role("button", name="first wrong exit").click()
    assert told(page).startswith("2 of ") and page.evaluate("location.hash") != address
    page.get_by_role("button", name="deepest waste").click()
    facts = panel(page).locator(".facts").inner_text()
    exit_layer, oracle = (_number(rf"{name}\s+(?:after )?block (\d+)", facts) for name in ("Exit", "Oracle"))
    assert _number(r": (\d+) blocks after", told(page)) == exit_layer - oracle > 0
    page.get_by_role("button", name="most disagreement").click()
    read = "all => all.map((e) => e.querySelector('bdi').textContent)"
    texts = [tokens(page, pane).evaluate_all(read) for pane in "ab"]
    differing = sum(one != other for one, other in zip(*texts, strict=True))
    assert _number(r": (\d+) of \d+ tokens differ", told(page)) == differing > 0
    assert page.evaluate("location.hash").count("token=") == 1
    page = open_page(address=example_page)
    tokens(page).first.wait_for()
    page.get_by_role("button", name="near-tie").click()
    if "none" not in told(page):
        last = panel(page).locator("tbody tr").last.locator("td").all_inner_texts()
        assert float(last[0].split()[-1]) - float(last[1].split()[-1]) < 0.11


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    assert found is not None, text
    return int(found[1])


def test_exit_strip_shows_every_exit_layer_and_selects_the_clicked_token(open_page: Open, link: str) -> None:
    page = open_page(fragment=link)
    tokens(page).first.wait_for()
    strip = page.locator('[data-part="pane-a"] .strip')
    heights = strip.locator("rect").evaluate_all("all => all.map((e) => Math.round(e.getAttribute('height') * 24))")
    assert heights == exits(page)
    box = strip.bounding_box()
    strip.click(position={"x": box["width"] * 10.5 / 40, "y": box["height"] / 2})
    assert page.locator('.token[aria-selected="true"]').get_attribute("data-position") == "10"
    strip.hover(position={"x": box["width"] * 3.5 / 40, "y": box["height"] / 2})
    assert panel(page).locator(".place").inner_text() == "token 11 of 40", "the pinned one stays"


def test_repeated_tokens_are_folded_until_expanded(open_page: Open, link: str) -> None:
    page = open_page(fragment=link)
    tokens(page).first.wait_for()
    page.evaluate(
        """() => {
          const answer = TraceGroup.prototype.answer;
          TraceGroup.prototype.answer = function (...asked) {
            const found = answer.apply(this, asked);
            for (const token of found.tokens.slice(20, 35)) Object.assign(token, { text: " <pad>", first: false });
            return found;
          };
        }"""
    )
    page.get_by_role("button", name="Next document").click()
    shown = page.locator('[data-part="pane-a"] .answer .token:visible')
    assert shown.count() == 26
    assert page.locator('[data-part="pane-a"] .fold').inner_text() == "× 15"
    tokens(page).nth(20).focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.dataset.position") == "35", "the arrow passes what is folded"
    page.locator('[data-part="pane-a"] .fold').click()
    assert shown.count() == 40 and page.locator('[data-part="pane-a"] .fold').count() == 0
