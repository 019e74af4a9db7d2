"""Every saved query runs, says what it answers, and its answers agree with what is known of the example."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from exitbench.errors import UserError
from exitbench.results.database import Database, open_database
from exitbench.results.queries import query_names, saved_query


@pytest.fixture(scope="module")
def database(example_database: Path) -> Iterator[Database]:
    with open_database(example_database) as opened:
        yield opened


def _answer(database: Database, name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = database.query(saved_query(name)).to_pylist()
    return rows


@pytest.mark.parametrize("name", query_names())
def test_a_saved_query_is_explained_and_has_an_answer(database: Database, name: str) -> None:
    assert saved_query(name).startswith("-- ")
    assert _answer(database, name)


def test_an_unknown_query_is_refused_with_a_suggestion() -> None:
    with pytest.raises(UserError, match=r"'hop_exits'\. Did you mean 'hop_exit'"):
        saved_query("hop_exits")


def test_threshold_replay_agrees_with_the_replay_cells(database: Database) -> None:
    replayed = {(r["model"], r["task_label"], r["threshold"]): r for r in _answer(database, "threshold_replay")}
    cells = database.query(
        "SELECT model, task_label, params->>'threshold' AS threshold, mean_exit_layer, token_match FROM frontier "
        "WHERE execution = 'simulated'"
    ).to_pylist()
    assert len(cells) == 18
    for cell in cells:
        row = replayed[cell["model"], cell["task_label"], float(cell["threshold"])]
        assert row["mean_exit_layer"] == pytest.approx(cell["mean_exit_layer"])
        assert row["token_match"] == pytest.approx(cell["token_match"])


def test_threshold_replay_never_gets_shallower_with_the_threshold(database: Database) -> None:
    rows = _answer(database, "threshold_replay")
    for before, after in pairwise(rows):
        if (before["model"], before["task_label"]) == (after["model"], after["task_label"]):
            assert before["threshold"] < after["threshold"]
            assert before["mean_exit_layer"] <= after["mean_exit_layer"]


def test_exit_by_position_leaves_out_full_depth_and_replays(database: Database) -> None:
    rows = _answer(database, "exit_by_position")
    assert {row["method"] for row in rows} == {"static", "random", "oracle", "calm-softmax"}
    assert {row["n"] for row in rows} == {8}
    assert {row["position"] for row in rows} == {1, 2, 3, 4, 5}
    assert {row["mean_exit_layer"] for row in rows if row["method"] == "static"} == {2}


def test_first_divergence_of_the_oracle_is_none(database: Database) -> None:
    rows = _answer(database, "first_divergence")
    oracle = [row for row in rows if row["method"] == "oracle"]
    assert {(row["share_identical"], row["mean_first_difference"]) for row in oracle} == {(1, None)}
    static = [row for row in rows if row["method"] == "static"]
    assert all(row["share_identical"] < 1 <= row["mean_first_difference"] <= 5 for row in static)


def test_hop_exit_compares_words_by_their_look_ups(database: Database) -> None:
    rows = _answer(database, "hop_exit")
    assert {row["token_kind"] for row in rows} == {"hop1", "hop2"}
    assert {row["kind"] for row in rows} == {"probe", "quality"}


def test_a_method_that_agrees_as_the_oracle_makes_up_the_whole_gap(database: Database) -> None:
    rows = _answer(database, "between_random_and_oracle")
    assert {row["method"] for row in rows} == {"static", "calm-softmax"}
    perfect = [row for row in rows if row["token_match"] == 1]
    assert perfect
    assert {row["share_of_gap"] for row in perfect} == {1}
