"""Cards, the end of a run, the README's table and the frontier recommend the same setting."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from exitbench.reports import figures, tables
from exitbench.reports.answers.document_choice import recommended
from exitbench.reports.frame import NAMING_VIEWS, Frame, Row, computed_once
from exitbench.reports.front.cards import DEFAULT_PERCENT, cards, is_confirmed
from exitbench.reports.front.words import describe_card
from exitbench.reports.labels import label_in_sentence, labels, setting
from exitbench.reports.registry import discover
from exitbench.reports.tables.text import best_so_far, conclusion, recommendation_lines
from exitbench.results.database.connection import Database, open_database
from exitbench.results.queries import saved_query

Rows = Callable[..., Frame]
Choice = dict[tuple[str, str], tuple[str, Any]]
"""Of a model and a task the method and its parameters."""


VIEWS = (*NAMING_VIEWS, "metric_values", "frontier", "paired", "pareto")
"""Views that several queries on one database read."""


def chosen(row: Row) -> tuple[str, Any]:
    return row["method"], json.loads(row["params"])


@pytest.fixture(scope="module")
def database(many_documents_database: Path) -> Path:
    """Return a database for which the cards recommend a setting at the default loss."""
    return many_documents_database


@pytest.fixture(scope="module")
def opened(database: Path) -> Iterator[Database]:
    with open_database(database) as opened, computed_once(opened, VIEWS):
        yield opened


@pytest.fixture(scope="module")
def of_cards(database: Path, rows_of: Rows) -> Choice:
    """Return the settings that the cards recommend at the default loss, by model and task."""
    answers = [
        (card.full, card.at(DEFAULT_PERCENT).headline) for card in cards(rows_of(database, tables, "summary").rows)
    ]
    choice = {(full["model"], full["task"]): chosen(row) for full, row in answers if row is not None}
    assert len(choice) == len(answers) == 2
    return choice


def test_frontier_and_cards_recommend_the_same_setting(database: Path, rows_of: Rows, of_cards: Choice) -> None:
    rows = rows_of(database, figures, "frontier")
    assert {(row["model"], row["task"]): chosen(row) for row in rows.rows if row["is_recommended"]} == of_cards
    (module,) = (source.module for source in discover(figures) if source.name == "frontier")
    names = labels(rows.rows, brief=True)
    for row in rows.rows:
        if row["is_recommended"]:
            assert f"on {row['task']} {names[setting(row)]} ({row['model']})" in module.finding(rows)


def test_end_of_run_summary_names_the_recommended_setting_per_task(
    database: Path, opened: Database, rows_of: Rows, of_cards: Choice
) -> None:
    query = saved_query("what_to_use")
    names = labels(rows_of(database, tables, "summary").rows)
    rows = Frame.query(opened, query.sql, query.defaults).rows
    lines = {line.partition(" ")[0]: line for line in recommendation_lines(opened)}
    short = {line.partition(" ")[0]: line for line in best_so_far(opened)}
    assert {(row["model"], row["task_label"]): chosen(row) for row in rows if row["is_confirmed"]} == of_cards
    for row in rows:
        name = f"{label_in_sentence(names[setting(row)])} is {row['confirming_speedup']:.2f}x"
        assert name in lines[row["task_label"]]
        assert label_in_sentence(names[setting(row)]) in short[row["task_label"]]


EXAMPLES = (
    *("example_database", "small_database", "front_database", "many_documents_database"),
    "choice_database",
)


@pytest.mark.parametrize("name", EXAMPLES)
def test_end_of_run_summary_agrees_with_the_report_page(
    name: str, rows_of: Rows, request: pytest.FixtureRequest
) -> None:
    path = request.getfixturevalue(name)
    rows = rows_of(path, tables, "summary").rows
    with open_database(path) as opened, computed_once(opened, VIEWS):
        conclusions = [
            (card, conclusion(opened, {row["cell_id"] for row in card.rows}, DEFAULT_PERCENT)[0])
            for card in cards(rows)
        ]
    for card, line in conclusions:
        (page,) = (
            recommendation
            for recommendation in describe_card(card, labels(rows), {}, ()).recommendations
            if recommendation.from_percent <= DEFAULT_PERCENT
            and (recommendation.until_percent is None or recommendation.until_percent > DEFAULT_PERCENT)
        )
        assert page.name in line and page.verdict in line
        assert "real" not in line
        assert ("full depth, at an allowed loss of 1 %" in line) == (page.name == "full depth")


@pytest.mark.parametrize("percent", [0.0, 1.0, 5.0, 12.0, 20.0])
def test_the_saved_query_and_the_cards_agree_at_every_loss(
    database: Path, opened: Database, rows_of: Rows, percent: float
) -> None:
    query = saved_query("what_to_use")
    rows = Frame.query(opened, query.sql, {**query.defaults, "loss": percent}).rows
    of_query = {(row["task_label"], row["is_static"]): (*chosen(row), row["is_confirmed"]) for row in rows}
    of_cards = {
        (card.full["task"], is_static): (*chosen(row), is_confirmed(row, percent))
        for card in cards(rows_of(database, tables, "summary").rows)
        for is_static, row in ((False, card.at(percent).method), (True, card.at(percent).static))
        if row is not None
    }
    assert of_query == of_cards


def test_readme_table_shows_the_recommended_setting(database: Path, rows_of: Rows, of_cards: Choice) -> None:
    rows = rows_of(database, tables, "highlights").rows
    best = of_cards[rows[0]["model"], rows[0]["task"]]
    (chosen_row,) = (row for row in rows if row["method"] == best[0])
    assert chosen(chosen_row) == best


def test_document_browser_opens_on_the_recommended_setting(opened: Database, of_cards: Choice) -> None:
    rows = Frame.query(opened, "SELECT * FROM frontier WHERE attempt_id IN (FROM pareto SELECT attempt_id)").rows
    by_attempt = {row["attempt_id"]: row for row in rows}
    first: Choice = {}
    for attempt_id in recommended(opened):
        row = by_attempt[attempt_id]
        first.setdefault((row["model"], row["task_label"]), chosen(row))
    assert first == of_cards
