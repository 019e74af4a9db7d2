"""Choices in the database: views and saved queries agree with plain loops over the spool, exports leave texts out."""

import json
from collections import defaultdict
from pathlib import Path
from statistics import mean
from typing import Any

import pyarrow.parquet as pq
import pytest
from stored_rows import query_rows

from exitbench.results.database.connection import open_database
from exitbench.results.queries import saved_query

Rows = list[dict[str, Any]]


def _answer(path: Path, sql: str) -> Rows:
    with open_database(path) as database:
        return query_rows(database, sql)


def _cells(spool: Path) -> dict[str, tuple[Rows, Rows]]:
    """Return the choices and tokens of each cell, by its threshold as JSON text (``null`` at full depth)."""
    accuracies = {}
    for done_file in spool.glob("??/*/*/DONE"):
        params = json.loads((done_file.parent / "cell.json").read_text())["method"]["params"]
        tables = (pq.read_table(done_file.parent / f"{name}.parquet").to_pylist() for name in ("choices", "tokens"))
        accuracies[json.dumps(params.get("threshold"))] = tuple(tables)
    return accuracies  # type: ignore[return-value]


def test_views_contain_every_choice_and_token_with_correctness(choice_spool: Path, choice_database: Path) -> None:
    for threshold, (choices, tokens) in _cells(choice_spool).items():
        condition = f"coalesce(params ->> 'threshold', 'null') = '{threshold}' ORDER BY doc_key, choice"
        answers = _answer(choice_database, f"FROM choice_answers WHERE {condition}")
        assert [{name: row[name] for name in choices[0]} for row in answers] == choices
        right = {(row["doc_key"], row["choice"]): row["is_right"] for row in choices}
        trace = _answer(choice_database, f"FROM token_trace WHERE {condition}, position")
        assert [{name: row[name] for name in tokens[0]} for row in trace] == tokens
        assert [row["is_right"] for row in trace] == [right[row["doc_key"], row["choice"]] for row in tokens]


def test_scored_choices_have_no_divergence_from_full_depth(choice_database: Path) -> None:
    assert _answer(choice_database, "FROM document_exit") == []
    result = _answer(choice_database, "SELECT DISTINCT equal_full, diverged, full_text FROM token_trace")
    assert result == [{"equal_full": None, "diverged": None, "full_text": None}]


def test_choice_traces_are_not_reported_as_incomplete(choice_database: Path) -> None:
    assert _answer(choice_database, "FROM qc WHERE rule = 'trace_incomplete'") == []


def test_exit_histogram_counts_scored_tokens(choice_spool: Path, choice_database: Path) -> None:
    expected: dict[tuple[str, int], int] = defaultdict(int)
    for threshold, (_, tokens) in _cells(choice_spool).items():
        for row in tokens:
            expected[threshold, row["exit_layer"]] += 1
    result = _answer(
        choice_database, "SELECT coalesce(params ->> 'threshold', 'null') AS t, exit_layer, tokens FROM exit_histogram"
    )
    assert {(row["t"], row["exit_layer"]): row["tokens"] for row in result} == expected


def test_accuracy_depth_and_agreement_equal_plain_loops(choice_spool: Path, choice_database: Path) -> None:
    cells = _cells(choice_spool)
    shares = {
        "null" if row["label"] == "usual" else row["label"].removeprefix("threshold="): row
        for row in _answer(choice_database, saved_query("accuracy_against_depth").with_defaults())
    }
    assert shares.keys() == cells.keys()
    for threshold, (choices, tokens) in cells.items():
        chosen = [row for row in choices if row["is_chosen"]]
        row = shares[threshold]
        assert row["accuracy"] == pytest.approx(mean(choice_row["is_right"] for choice_row in chosen))
        assert row["same_choice"] == pytest.approx(mean(choice_row["full_is_chosen"] for choice_row in chosen))
        assert row["mean_exit_layer"] == pytest.approx(mean(choice_row["exit_layer"] for choice_row in tokens))
        gaps = [abs(choice_row["logprob"] - choice_row["full_logprob"]) for choice_row in choices]
        assert row["choice_gap"] == pytest.approx(mean(gaps))
        assert (json.dumps(row["threshold"]), row["chance"]) == (threshold, pytest.approx(1 / 3))
    assert 0 < shares["0.3"]["same_choice"] < 1


def test_exits_of_choices_are_grouped_by_right_and_chosen(choice_spool: Path, choice_database: Path) -> None:
    expected: dict[tuple[str, bool, bool], list[int]] = defaultdict(list)
    for threshold, (choices, tokens) in _cells(choice_spool).items():
        flags = {(row["doc_key"], row["choice"]): (row["is_right"], row["is_chosen"]) for row in choices}
        for row in tokens:
            if threshold != "null":
                expected[threshold, *flags[row["doc_key"], row["choice"]]].append(row["exit_layer"])
    rows = _answer(choice_database, saved_query("exits_of_choices").with_defaults())
    by_group = {(row["label"].removeprefix("threshold="), row["is_right"], row["is_chosen"]): row for row in rows}
    assert by_group.keys() == expected.keys()
    for key, layers in expected.items():
        assert (by_group[key]["mean_exit_layer"], by_group[key]["n"]) == (pytest.approx(mean(layers)), len(layers))
