"""One rule says what to use: the cards, the end of a run, the README's table and the frontier name the same setting."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from exitbench.reports import figures, tables
from exitbench.reports.answers.recommended import recommended
from exitbench.reports.frame import Frame, Row
from exitbench.reports.front.cards import DEFAULT_PERCENT, cards
from exitbench.reports.labels import labels, setting, spoken
from exitbench.reports.registry import discover
from exitbench.reports.tables.gist import gist_lines
from exitbench.results.database.connection import open_database
from exitbench.results.queries import saved_query

Rows = Callable[..., Frame]
Choice = dict[tuple[str, str], tuple[str, Any]]
"""Of a model and a task the method and its parameters."""


def chosen(row: Row) -> tuple[str, Any]:
    return row["method"], json.loads(row["params"])


@pytest.fixture(scope="module")
def database(example: ModuleType, database_of: Callable[[Any], Path]) -> Path:
    """So many documents that a loss of 1 % is told from none."""
    return database_of(replace(example.FRONT, documents=600))


@pytest.fixture(scope="module")
def of_cards(database: Path, rows_of: Rows) -> Choice:
    """What the cards name where the usual loss is allowed."""
    answers = [
        (card.full, card.at(DEFAULT_PERCENT).method) for card in cards(rows_of(database, tables, "summary").rows)
    ]
    choice = {(full["model"], full["task"]): chosen(row) for full, row in answers if row is not None}
    assert len(choice) == len(answers) == 2
    return choice


def test_the_frontier_recommends_what_the_cards_do(database: Path, rows_of: Rows, of_cards: Choice) -> None:
    rows = rows_of(database, figures, "frontier")
    assert {(row["model"], row["task"]): chosen(row) for row in rows.rows if row["is_recommended"]} == of_cards
    (module,) = (source.module for source in discover(figures) if source.name == "frontier")
    names = labels(rows.rows, brief=True)
    for row in rows.rows:
        if row["is_recommended"]:
            assert f"on {row['task']} {names[setting(row)]} ({row['model']})" in module.finding(rows)


def test_the_end_of_a_run_names_it_for_each_task(database: Path, of_cards: Choice) -> None:
    query = saved_query("what_to_use")
    with open_database(database) as opened:
        rows = opened.query(query.sql, query.defaults).to_pylist()
        lines = {line.partition(":")[0]: line for line in gist_lines(opened)}
    assert {(row["model"], row["task_label"]): chosen(row) for row in rows} == of_cards
    for row in rows:
        assert row["loss_is_shown"] and spoken(f"{row['method']} {row['label']}") in lines[row["task_label"]]


def test_where_nothing_is_shown_to_lose_as_little_the_cards_next_step_is_named(database: Path, rows_of: Rows) -> None:
    query = saved_query("what_to_use")
    made = {(card.full["model"], card.full["task"]): card for card in cards(rows_of(database, tables, "summary").rows)}
    with open_database(database) as opened:
        rows = Frame.query(opened, query.sql, {**query.defaults, "loss": 0.0}).rows
    assert len(rows) == len(made)
    for row in rows:
        assert not row["loss_is_shown"]
        method = made[row["model"], row["task_label"]].at(row["loss_high_percent"]).method
        assert method is not None and chosen(method) == chosen(row)


def test_the_readmes_table_shows_the_method_at_that_setting(database: Path, rows_of: Rows, of_cards: Choice) -> None:
    rows = rows_of(database, tables, "highlights").rows
    best = of_cards[rows[0]["model"], rows[0]["task"]]
    (own,) = (row for row in rows if row["method"] == best[0])
    assert chosen(own) == best


def test_the_document_browser_opens_on_it(database: Path, of_cards: Choice) -> None:
    with open_database(database) as opened:
        rows = Frame.query(opened, "SELECT * FROM frontier WHERE attempt_id IN (FROM pareto SELECT attempt_id)").rows
        by_attempt = {row["attempt_id"]: row for row in rows}
        first: Choice = {}
        for attempt_id in recommended(opened):
            row = by_attempt[attempt_id]
            first.setdefault((row["model"], row["task_label"]), chosen(row))
    assert first == of_cards
