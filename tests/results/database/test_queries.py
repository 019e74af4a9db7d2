"""Saved queries agree with known values of the example (for the others see test_cookbook)."""

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from stored_rows import query_rows

from exitbench.errors import UserError
from exitbench.results.database.connection import Database, open_database
from exitbench.results.queries import saved_query


@pytest.fixture(scope="module")
def database(example_database: Path) -> Iterator[Database]:
    with open_database(example_database) as opened:
        yield opened


def _answer(database: Database, name: str) -> list[dict[str, Any]]:
    query = saved_query(name)
    return query_rows(database, query.sql, query.defaults)


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


def test_hop_exit_covers_hop1_and_hop2_of_probe_and_quality_runs(database: Database) -> None:
    rows = _answer(database, "hop_exit")
    assert {row["token_kind"] for row in rows} == {"hop1", "hop2"}
    assert {row["kind"] for row in rows} == {"probe", "quality"}


def test_calibration_path_ends_at_the_first_failure(database: Database) -> None:
    paths: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in _answer(database, "calibration_path"):
        paths[row["model"], row["task_label"]].append(row)
    assert len(paths) == 6
    for path in paths.values():
        assert [row["step"] for row in path] == list(range(1, len(path) + 1))
        assert all(row["passed"] == (row["p_value"] <= row["epsilon"]) for row in path)
        assert all(row["passed"] for row in path[:-1])
        assert [row["threshold"] for row in path if row["chosen"]] == [
            [row["threshold"] for row in path if row["passed"]][-1]
        ]


def _write_quality(
    example: Any, root: Path, method: Any, kv_policy: str, scores: list[float], source: str = ""
) -> None:
    """Write a quality run of one document per score."""
    model, task = example.MODELS[1], example.TASKS[0]
    reference = example.cell_json(model, task, example.FULL, "quality")["cell_id"]
    full_id = None if method is example.FULL else reference
    cell = example.cell_json(model, task, replace(method, kv_policy=kv_policy), "quality", full_id, source=source)
    samples = [
        {"doc_key": f"d{i}", "output_text": "t", "output_ids": [1], "n_prompt": 1, "n_output": 1, "stop_reason": "eos"}
        | {"scores": json.dumps({"em": 0, "f1": score}), "statistics": "{}"}
        for i, score in enumerate(scores)
    ]
    metric = {"metric": "f1", "metric_version": "1", "value": sum(scores) / len(scores), "n": len(scores)}
    metric |= {"role": "headline", "lower_is_better": False}
    example.write_attempt(root, cell, {"samples": samples, "metrics": [metric]})


def test_score_oracle_takes_the_smallest_depth_reaching_full_depths_score(example: Any, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    layer = {n: example.Method("static", {"exit_layer": n, "other": "text"}) for n in (1, 2, 3)}
    _write_quality(example, spool, example.FULL, "state-copy", [50.0, 100.0, 80.0, 0.0])
    _write_quality(example, spool, layer[3], "state-copy", [50.0, 99.0, 90.0, 0.0])
    # An older source of the method reached full depth's score on the second document; it does not count.
    _write_quality(example, spool, layer[1], "state-copy", [0.0, 100.0, 0.0, 0.0], source="older")
    _write_quality(example, spool, layer[1], "state-copy", [50.0, 0.0, 0.0, 0.0], source="newer")
    _write_quality(example, spool, layer[2], "state-copy", [0.0, 0.0, 80.0, 0.0])
    _write_quality(example, spool, layer[2], "exact", [50.0, 100.0, 80.0, 0.0])
    with open_database(example.ingested(tmp_path)) as opened:
        rows = _answer(opened, "score_oracle")
    columns = ("kv_policy", "exit_layer", "documents", "share", "mean_exit_layer", "n")
    assert [tuple(row[name] for name in columns) for row in rows] == [
        ("exact", 2, 4, 1.0, 2.0, 4),
        # Documents need 1, 4 (full depth), 2 and 1 blocks.
        ("state-copy", 1, 2, 0.5, 2.0, 4),
        ("state-copy", 2, 1, 0.25, 2.0, 4),
        ("state-copy", 4, 1, 0.25, 2.0, 4),
    ]


def test_queries_of_document_scores_read_the_latest_rescore(example: Any, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    _write_quality(example, spool, example.FULL, "state-copy", [50.0, 100.0])
    _write_quality(example, spool, example.Method("static", {"exit_layer": 1}), "state-copy", [0.0, 100.0])
    with open_database(example.ingested(tmp_path), read_only=False) as opened:
        assert [row["loss"] for row in _answer(opened, "lost_documents")] == [50.0]
        assert {row["exit_layer"]: row["documents"] for row in _answer(opened, "score_oracle")} == {1: 1, 4: 1}
        with opened.engine.begin() as connection:
            connection.exec_driver_sql(
                "INSERT INTO sample_rescore SELECT attempt_id, doc_key, '2', '{\"f1\": 70}', '{}', now() FROM sample"
            )
        assert _answer(opened, "lost_documents") == []
        assert {row["exit_layer"]: row["documents"] for row in _answer(opened, "score_oracle")} == {1: 2}


def test_perfect_agreement_closes_the_whole_random_to_oracle_gap(database: Database) -> None:
    rows = _answer(database, "between_random_and_oracle")
    assert {row["method"] for row in rows} == {"static", "calm-softmax"}
    perfect = [row for row in rows if row["token_match"] == 1]
    assert perfect
    assert {row["share_of_gap"] for row in perfect} == {1}


def test_what_to_use_query_returns_the_pareto_step_at_the_given_loss(many_documents_database: Path) -> None:
    with open_database(many_documents_database) as opened:
        steps = opened.query("FROM pareto").to_pylist()
        for loss in (0.0, 1.0, 60.0, 100.0):
            query = saved_query("what_to_use")
            rows = opened.query(query.sql, {**query.defaults, "loss": loss}).to_pylist()
            expected = {
                (step["model"], step["task_label"], step["is_static"], step["method"], step["label"]): (
                    step["confirmed_percent"] is not None and step["confirmed_percent"] <= loss
                )
                for step in steps
                if step["choosing_loss_high_percent"] <= loss
                and (step["next_percent"] is None or loss < step["next_percent"])
            }
            assert len(rows) == len(expected) and (rows or loss == 0)
            for row in rows:
                place = (row["model"], row["task_label"], row["is_static"], row["method"], row["label"])
                assert row["is_confirmed"] == expected[place]


def test_what_to_use_query_can_be_limited_to_one_suite(many_documents_database: Path) -> None:
    query = saved_query("what_to_use")
    with open_database(many_documents_database) as database:
        named = {
            suite: database.query(query.sql, {**query.defaults, "loss": 100.0, "suite": suite}).num_rows
            for suite in ("example", "x")
        }
    assert named["example"] > 0 and named["x"] == 0
