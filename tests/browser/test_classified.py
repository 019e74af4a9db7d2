"""The document browser for an encoder's runs: a text, its true label, and every block's prediction."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from exitbench.reports.render import write_report

Open = Callable[..., Any]
HOSTILE = (
    "</script><script>window.alerted = 1; alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "\u202eevil\u0000\u001b[31m\nsecond line",
    "w" * 3_000,
)


@pytest.fixture(scope="session")
def classified_page(
    classified_example: ModuleType, example: ModuleType, tmp_path_factory: pytest.TempPathFactory
) -> str:
    """Return the URL of the report on the classified texts."""
    return _page(classified_example.classified_database(example, tmp_path_factory.mktemp("classified")))


def _page(database: Path) -> str:
    return write_report(database, database.parent / "report", draft=True).index_html.as_uri()


def opened(open_page: Open, address: str, **asked: Any) -> Any:
    page = open_page(address=address, **asked)
    page.locator('[data-part="pane-a"] .blocks li').first.wait_for()
    return page


def choose(page: Any, part: str, label: str) -> None:
    page.locator(f'[data-part="{part}"]').select_option(label=label)


def rows(page: Any) -> list[list[str]]:
    return page.locator('[data-part="panel"] .lens tbody tr').evaluate_all(
        "all => all.map(row => [...row.cells].map(cell => cell.textContent.trim()))"
    )


def test_text_is_shown_with_its_true_label_and_each_blocks_prediction(open_page: Open, classified_page: str) -> None:
    page = opened(open_page, classified_page)
    choose(page, "a", "max-prob threshold=0.7")
    page.locator('[data-part="document"]').select_option(index=1)
    assert page.locator('[data-part="input"]').inner_text().split("\n") == [
        "text number one",
        "",
        "True label: neutral",
    ]
    assert page.locator('[data-part="pane-a"] .sums').inner_text() == "exited after block 2 of 4 · ✓ the true label"
    assert rows(page) == [
        ["1", "negative", "0.625", "0.625", "evaluated"],
        ["2 ▲", "neutral", "0.750", "0.75", "exited here"],
        ["3", "–", "–", "–", "not evaluated"],
        ["4", "neutral", "1.000", "–", "not evaluated"],
    ]
    cells = page.locator('[data-part="pane-a"] .blocks li')
    assert [one.split() for one in cells.all_inner_texts()] == [
        *(["1", "negative", "0.63"], ["2", "▲", "neutral", "0.75"], ["3", "–"], ["4", "neutral", "1.00"]),
    ]
    assert cells.evaluate_all("all => all.map(e => e.className)") == [" asked", " asked", "behind", "behind"]
    assert page.locator('[data-part="pane-a"] .blocks .hit').all_inner_texts() == ["neutral", "neutral"]


def test_two_settings_are_shown_side_by_side_and_presets_jump_to_texts(open_page: Open, classified_page: str) -> None:
    page = opened(open_page, classified_page)
    choose(page, "a", "max-prob threshold=0.6")
    choose(page, "b", "max-prob threshold=0.7")
    told, fragment = page.locator('[data-part="event"]'), "new URLSearchParams(location.hash.slice(1)).get('doc')"
    page.locator('[data-event="wrongExits"]').click()
    assert told.inner_text() == "1 of 6: exited after block 1 of 4 with another label than full depth"
    assert page.evaluate(fragment) == f"{1:016x}"
    page.locator('[data-event="disagreements"]').click()
    assert told.inner_text() == "1 of 8: negative and neutral, 1 blocks apart"
    assert page.locator('[data-part="pane-b"] .blocks li.asked').count() == 2
    page.locator('[data-event="nearTies"]').click()
    assert told.inner_text() == "none in these answers"
    choose(page, "a", "max-prob threshold=0.7")
    page.locator('[data-event="waste"]').click()
    assert told.inner_text() == "1 of 2: 1 blocks after the first that had full depth’s label"
    assert page.evaluate(fragment) == f"{0:016x}"


def test_link_opens_the_selected_text_and_block(open_page: Open, classified_page: str) -> None:
    page = opened(open_page, classified_page)
    choose(page, "a", "max-prob threshold=0.7")
    page.locator('[data-event="waste"]').click()
    link = page.evaluate("location.hash")
    again = opened(open_page, classified_page, fragment=link)
    assert rows(again) == rows(page)
    assert again.locator('[data-part="pane-a"] .token[aria-selected="true"]').count() == 1


def test_search_finds_words_in_texts(open_page: Open, classified_page: str) -> None:
    page = opened(open_page, classified_page)
    page.locator('[data-part="search"]').fill("number FIVE")
    assert page.locator('[data-part="document"] option').all_inner_texts() == ["6 · text number five"]


def test_regression_shows_numbers_instead_of_labels(
    open_page: Open, classified_example: ModuleType, example: ModuleType, tmp_path: Path
) -> None:
    page = opened(open_page, _page(classified_example.classified_database(example, tmp_path, labels=None)))
    choose(page, "a", "max-prob threshold=0.7")
    page.locator('[data-part="document"]').select_option(index=3)
    assert page.locator('[data-part="input"] .truth').inner_text() == "True number: 3"
    assert [row[1] for row in rows(page)] == ["3.3", "3.2", "–", "3"]
    assert page.locator(".answer .token.differs").count() == 0


def test_hostile_texts_and_labels_are_shown_as_plain_text(
    open_page: Open, classified_example: ModuleType, example: ModuleType, tmp_path: Path
) -> None:
    database = classified_example.classified_database(example, tmp_path, HOSTILE, HOSTILE[:2])
    page = opened(open_page, _page(database), width=360)
    said = []
    for n in range(4):
        page.locator('[data-part="document"]').select_option(index=n)
        said.append(page.locator('[data-part="input"]').inner_text())
    assert HOSTILE[0] in said[0] and HOSTILE[1] in said[1] and said[2].startswith("\\u202eevil\\x00\\x1b[31m\n")
    assert page.evaluate("window.alerted") is None and page.locator("img[src=x]").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
