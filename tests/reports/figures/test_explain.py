"""Figures `explain_*`: their queries run on any database, and give the expected numbers for rows that a test writes."""

import json
import re
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import Any

import duckdb
import pytest

from exitbench.harness.planning.suite import load_suite
from exitbench.reports import figures
from exitbench.reports.frame import Frame
from exitbench.reports.registry import ReportSource, discover

Rows = Callable[[Path, ModuleType, str], Frame]

EXPLAINED = tuple(source for source in discover(figures) if source.name.startswith("explain_"))
BY_NAME = {source.name: source for source in EXPLAINED}
VOCABULARY = 100
FULL_DEPTH = 1
VIEWS = files("exitbench.results.database").joinpath("views.sql").read_text()
MACROS = "\n".join(re.findall(r"^CREATE OR REPLACE MACRO.*?;$", VIEWS, re.M | re.S))


def query(sql: str, runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Run `sql` over tables that replace the views and contain the given runs.

    A run's tokens are (document, exit layer, LM-head rows).
    """
    connection = duckdb.connect()
    connection.execute(MACROS)
    connection.execute(
        """CREATE TABLE objectives AS SELECT 'm' AS model, 'last' AS loss;
        CREATE TABLE frontier (attempt_id INT, cell_id INT, suite TEXT, task_label TEXT, model TEXT, conditions TEXT,
        random_weights BOOLEAN, execution TEXT, method TEXT, params JSON, kv_policy TEXT,
        metric TEXT, value DOUBLE, ci_low DOUBLE, ci_high DOUBLE, full_value DOUBLE, mean_exit_layer DOUBLE,
        blocks INT, n INT, lower_is_better BOOLEAN, full_depth_attempt_id INT)"""
    )
    connection.execute(
        "CREATE TABLE token_exit "
        "(attempt_id INT, doc_key TEXT, position INT, token_id INT, exit_layer INT, head_rows INT, choice INT)"
    )
    connection.execute(
        "CREATE TABLE metric_values "
        "(attempt_id INT, metric TEXT, value DOUBLE, ci_low DOUBLE, ci_high DOUBLE, is_current BOOLEAN)"
    )
    for attempt, run in enumerate(runs, start=FULL_DEPTH):
        tokens = run["tokens"]
        depth = sum(layer for _, layer, _ in tokens) / len(tokens)
        connection.execute(
            "INSERT INTO frontier VALUES (?, ?, ?, 'squad', 'm', 'float32, cpu, batch 1', false, 'real', ?, ?, "
            "'state-copy', 'f1', ?, NULL, NULL, 100, ?, 8, 2, ?, ?)",
            [
                attempt,
                attempt,
                run.get("suite", "explain-published"),
                run["method"],
                json.dumps(run["params"]),
                run.get("value", 100),
                depth,
                run.get("lower_is_better", False),
                FULL_DEPTH,
            ],
        )
        for value, is_current in ((0.9, True), (0.1, False)):  # as after `exitbench rescore`
            connection.execute(
                "INSERT INTO metric_values VALUES (?, 'token_match', ?, 0.8, 1.0, ?)", [attempt, value, is_current]
            )
        for position, (document, layer, rows) in enumerate(tokens):
            token_id = run.get("token_id", 7)
            connection.execute(
                "INSERT INTO token_exit VALUES (?, ?, ?, ?, ?, ?, NULL)",
                [attempt, document, position, token_id, layer, rows],
            )
    return connection.sql(sql).to_arrow_table().to_pylist()


def run(method: str, tokens: list[tuple[str, int, int]], value: float = 100, **params: Any) -> dict[str, Any]:
    usual = {"threshold": 0.9, "rule": "constant", "decay": "none", "every": 1, "network": "mlp"}
    return {"method": method, "params": {**usual, **params}, "tokens": tokens, "value": value}


FULL = run("full", [("a", 8, VOCABULARY), ("b", 8, VOCABULARY)])


@pytest.mark.parametrize("name", BY_NAME)
def test_queries_return_no_rows_without_matching_runs(
    name: str, small_database: Path, empty_database: Path, rows_of: Rows
) -> None:
    for database in (small_database, empty_database):
        assert rows_of(database, figures, name).rows == ()  # the example has no such runs


@pytest.mark.parametrize("source", EXPLAINED, ids=lambda source: source.name)
def test_message_for_missing_data_names_the_suite(source: ReportSource) -> None:
    assert "exitbench run explain-published" in source.empty


def test_the_suite_scales_the_published_schedule_to_its_vocabulary() -> None:
    pruned = [
        dict(point.params)
        for sweep in load_suite("explain-published").sweeps
        for point in sweep.points
        if str(dict(point.params).get("head", "")).startswith("pruned")
    ]
    assert {(point["k_first"], point["k_min"]) for point in pruned} == {
        (35000 * 311 // 32128 + 1, 250 * 311 // 32128 + 1)
    }
    assert {point["decay"] for point in pruned} == {"none"}


def test_head_savings_are_computed_with_and_without_the_start_layer() -> None:
    runs = [
        FULL,
        run("calm-softmax", [("a", 4, 400), ("b", 4, 400)], head="full", min_exit=1),
        run("calm-softmax", [("a", 4, 110), ("b", 4, 130)], head="pruned-fixed", min_exit=1),
        run("calm-softmax", [("a", 1, 100), ("b", 1, 100)], head="pruned-decaying-idsorted", min_exit=1),
    ]
    everything, fixed = query(BY_NAME["explain_head_flops"].sql, runs)
    assert fixed["vocabulary"] == VOCABULARY
    assert fixed["counted"] == pytest.approx(400 / 120)
    assert fixed["left_out"] == pytest.approx(400 / 20)
    # By hand: influences of the documents on log 20 are +-(10 / 40 - 20 / 40); their sum of squares is 0.125.
    assert fixed["left_out_high"] == pytest.approx(20 * 2.718281828 ** (12.706 * (2 / 1 * 0.125) ** 0.5))
    assert everything["counted"] == pytest.approx(4)
    assert everything["left_out"] is None  # every token left at the start layer: the published counter has no work


@pytest.mark.parametrize("lower_is_better", [False, True])
def test_jsd_gain_is_averaged_over_all_non_collapsed_and_kept_settings(lower_is_better: bool) -> None:
    def pair(min_exit: int, depths: tuple[int, int], values: tuple[float, float]) -> list[dict[str, Any]]:
        softmax, contrast = ([("a", depth, 100), ("b", depth, 100)] for depth in depths)
        return [
            run("calm-softmax", softmax, values[0], head="full", min_exit=min_exit),
            run("contrastive-jsd", contrast, values[1], head="full", min_exit=min_exit),
        ]

    runs = [FULL, *pair(1, (8, 2), (98, 49)), *pair(2, (7, 4), (98, 70)), *pair(3, (6, 5), (98, 97))]
    runs += pair(4, (4, 4), (40, 40))
    if lower_is_better:  # of errors, as much above full depth's 100 as the scores are below
        runs = [{**baseline, "value": 200 - baseline["value"], "lower_is_better": True} for baseline in runs]
    rows = query(BY_NAME["explain_jsd_average"].sql, runs)
    assert [row["gain"] for row in rows] == [6, 3, 1, 0]
    assert [row["collapsed"] for row in rows] == [True, False, False, True]
    assert [row["kept"] for row in rows] == [False, False, True, False]
    (means,) = {(row["mean_all"], row["mean_alive"], row["mean_kept"]) for row in rows}
    assert means == (2.5, 2.0, 1.0)
    assert {(row["settings"], row["settings_alive"], row["settings_kept"]) for row in rows} == {(4, 2, 1)}
    assert {(row["mean_all_low"], row["mean_all_high"]) for row in rows} == {(2.5, 2.5)}  # the documents agree


def test_adaptive_pruning_is_compared_with_fixed_pruning_per_token() -> None:
    fixed = [("a", 3, 120), ("b", 3, 140)]
    runs = [
        FULL,
        run("calm-softmax", fixed, head="pruned-fixed", min_exit=1),
        run("calm-softmax", fixed, head="pruned-adaptive-code", min_exit=1),
        run("calm-softmax", [("a", 3, 120), ("b", 3, 110)], head="pruned-adaptive", min_exit=1),
    ]
    rows = {row["head"]: row for row in query(BY_NAME["explain_adaptive"].sql, runs)}
    assert {head: row["same"] for head, row in rows.items()} == {
        "pruned-fixed": 1,
        "pruned-adaptive-code": 1,
        "pruned-adaptive": 0.5,
    }
    assert rows["pruned-adaptive"]["later_rows"] == 15
    assert rows["pruned-fixed"]["later_rows"] == 30


def test_rows_of_any_suite_are_drawn_and_other_settings_left_out() -> None:
    heads = ("full", "pruned-fixed", "pruned-decaying", "pruned-decaying-idsorted", "pruned-adaptive")
    tokens = [("a", 3, 120), ("b", 4, 140)]
    runs = [FULL, *(run("calm-softmax", tokens, head=head, min_exit=1) for head in heads)]
    runs += [run("contrastive-jsd", tokens, head="full", min_exit=1)]
    runs += [run("calm-classifier", tokens, loss=loss, threshold=0.5) for loss in ("calm", "free-code")]
    for source in EXPLAINED:
        rows = query(source.sql, runs)
        assert {row.get("token_match", 0.9) for row in rows} == {0.9}, "an older version of a metric is no row"
        source.module.plot(Frame(tuple(rows[0]), tuple(rows))).draw_without_rendering()
        assert query(source.sql, [{**other_run, "suite": "other"} for other_run in runs]) == rows
        decayed = [{**other_run, "params": {**other_run["params"], "decay": "code"}} for other_run in runs]
        assert query(source.sql, decayed) == []
