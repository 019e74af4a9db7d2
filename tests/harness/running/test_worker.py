"""One worker, from specification to database: real lm-eval, real spool, real DuckDB, a random model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest
import torch
from suite_runs import plan_suite, worker_spec

from exitbench import __version__
from exitbench.harness.cells.cell import Cell
from exitbench.harness.cells.job import WorkerSpec
from exitbench.harness.planning.plan import Plan
from exitbench.harness.running import worker
from exitbench.methods.registry import get_method
from exitbench.results.ingest.ingest import ingest
from exitbench.results.spool.attempts import latest_status

DEPTH = 4
SUITE = """
schema = 1
name = "worker"
seed = 3
[models.tiny]
path = "{model}"
random_weights = true
[tasks]
squad = {{ task = "squad", source = "builtin", limit = 5, max_new_tokens = 8 }}
wmt = {{ task = "wmt-en-fr", source = "builtin", limit = 5, max_new_tokens = 8 }}
[timing]
documents = 3
max_rounds = 2
warm_up = 1
[[sweep]]
method = "calm-softmax"
query = {{ threshold = [0.0, 0.002, 1.0] }}
kinds = ["quality", "replay"]
[[sweep]]
method = "calm-softmax"
query = {{ threshold = [0.002] }}
kinds = ["timing"]
[[sweep]]
method = "oracle"
query = {{ match = ["first", "stable"] }}
kinds = ["quality", "replay"]
[[sweep]]
tasks = ["squad"]
method = "oracle"
query = {{ match = ["first"] }}
kinds = ["timing"]
[[sweep]]
method = "random"
query = {{ mean_exit = [2.0] }}
kinds = ["quality"]
"""


@pytest.fixture(scope="module")
def plan(worded_model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Path]:
    folder = tmp_path_factory.mktemp("run")
    return plan_suite(folder, SUITE.format(model=worded_model)), folder


@pytest.fixture(scope="module")
def ran(plan: tuple[Plan, Path]) -> tuple[list[dict[str, Any]], Path]:
    """Run the plan; return the worker's events, and the folder with spool and database."""
    (group,), folder = plan[0].groups, plan[1]
    events: list[dict[str, Any]] = []
    assert worker.run(worker_spec(group, folder / "spool"), events.append) == 0
    ingest(folder / "spool", folder / "x.duckdb")
    return events, folder


@pytest.fixture
def query(ran: tuple[list[dict[str, Any]], Path]) -> Callable[[str], list[tuple[Any, ...]]]:
    def run(sql: str) -> list[tuple[Any, ...]]:
        with duckdb.connect(str(ran[1] / "x.duckdb"), read_only=True) as connection:
            return connection.execute(sql).fetchall()

    return run


def cells(plan: Plan) -> dict[str, Cell]:
    return {cell.item.label: cell.item.cell for group in plan.groups for cell in group.cells}


def test_every_cell_emits_start_progress_and_end_events(
    ran: tuple[list[dict[str, Any]], Path], plan: tuple[Plan, Path]
) -> None:
    by_cell: dict[str, list[dict[str, Any]]] = {}
    for event in ran[0]:
        by_cell.setdefault(event["cell"], []).append(event)
    assert set(by_cell) == {cell.cell_id for cell in cells(plan[0]).values()}
    for events in by_cell.values():
        assert [event["event"] for event in (events[0], events[-1])] == ["start", "end"]
        assert events[-1]["status"] == "ok"
        done = [event["done"] for event in events[1:-1]]
        assert done == sorted(done)
        # A timing cell may end early, once its interval is tight enough.
        assert done[-1] == events[0]["documents"] or (events[0]["label"].endswith("timing") and done[-1] >= 3)


def test_a_replay_in_sql_equals_a_loop_over_the_probed_tokens(
    query: Callable[[str], list[tuple[Any, ...]]], plan: tuple[Plan, Path]
) -> None:
    replays = [cell for cell in cells(plan[0]).values() if cell.kind == "replay"]
    assert len(replays) == 10
    depths = set()
    for cell in replays:
        method = get_method(cell.method.name).from_params(cell.method.params)
        parts = method.parts(DEPTH)
        probed = query(
            f"""SELECT doc_key, position, top1_id, p1, p2, full_token_id FROM probe_token
                JOIN attempt USING (attempt_id) WHERE cell_id = '{cell.probe_cell_id}'"""
        )
        expected = {}
        for key, position, top1, p1, p2, full in probed:
            exit_layer = DEPTH
            for block in range(DEPTH - 1, 0, -1):
                if cell.method.name == "calm-softmax":
                    margin = torch.tensor(p1[block - 1]) - torch.tensor(p2[block - 1])
                    leaves = margin > parts.threshold.value(block, position, 8)
                elif cell.method.params["match"] == "stable":
                    leaves = all(choice == full for choice in top1[block - 1 :])
                else:
                    leaves = top1[block - 1] == full
                if leaves:
                    exit_layer = block
            expected[key, position] = (exit_layer, top1[exit_layer - 1])
            depths.add(exit_layer)
        result = query(
            f"""SELECT doc_key, position, exit_layer, token_id FROM token_exit JOIN attempt USING (attempt_id)
                WHERE cell_id = '{cell.cell_id}'"""
        )
        assert {(key, position): (layer, token) for key, position, layer, token in result} == expected
    assert depths == {1, 2, 3, 4}, "the model must make every depth happen"


def test_replays_are_labelled_simulated_and_have_no_speedup(query: Callable[[str], list[tuple[Any, ...]]]) -> None:
    rows = query("SELECT DISTINCT kind, execution FROM runs")
    assert set(rows) == {("quality", "real"), ("timing", "real"), ("probe", "real"), ("replay", "simulated")}
    assert query("SELECT count(*) FROM frontier WHERE execution = 'simulated' AND speedup IS NOT NULL") == [(0,)]
    assert query("SELECT DISTINCT random_weights FROM runs") == [(True,)]


def test_device_is_read_before_and_after_every_timing_round(
    query: Callable[[str], list[tuple[Any, ...]]],
) -> None:
    rows = query(
        """SELECT DISTINCT kind, list(moment ORDER BY d.rowid) FROM device_sample AS d
           JOIN attempt USING (attempt_id) JOIN cell USING (cell_id) GROUP BY kind, attempt_id, round"""
    )
    assert rows == [("timing", ["start", "end"])]
    rounds = "SELECT attempt_id, max(round) FROM {} GROUP BY attempt_id ORDER BY attempt_id"
    assert query(rounds.format("device_sample")) == query(rounds.format("timing_sample"))
    assert query("SELECT count(*) FROM device_readings WHERE device <> 'cpu'") == [(0,)]


def test_runs_record_the_methods_distribution_and_seed_derivations(
    query: Callable[[str], list[tuple[Any, ...]]],
) -> None:
    rows = query("SELECT DISTINCT method_distribution, method_version, seeds->>'bootstrap', seeds->>'decode' FROM runs")
    assert rows == [("exitbench", __version__, "3", "int(sha256('3:' + doc_key)[:15], 16)")]


def test_unreachable_threshold_matches_full_depth_and_threshold_0_saves_work(
    query: Callable[[str], list[tuple[Any, ...]]],
) -> None:
    rows = query(
        """SELECT (params->>'threshold')::DOUBLE, token_match, mean_exit_layer, ideal_speedup_bytes
           FROM (PIVOT (SELECT cell_id, params, metric, value FROM metric_values
                        WHERE method = 'calm-softmax' AND kind = 'quality') ON metric USING first(value))"""
    )
    assert {row[0] for row in rows} == {0.0, 0.002, 1.0}
    for threshold, match, depth, ideal in rows:
        if threshold == 1.0:
            assert (match, depth) == (1.0, DEPTH)
            assert ideal < 1  # it read out at every block for nothing
        elif threshold == 0.0:
            assert depth == 1.0
            assert ideal > 1


def test_timing_runs_both_arms_and_the_twin_in_palindromic_order(query: Callable[[str], list[tuple[Any, ...]]]) -> None:
    order = query(
        """SELECT doc_key, round, attempt_id, list(arm || CASE WHEN twin THEN '*' ELSE '' END ORDER BY position)
           FROM timing_sample WHERE phase = 'total' GROUP BY ALL"""
    )
    assert order
    first = ["full", "full*", "method", "method", "full*", "full"]
    swapped = ["full*", "full", "method", "method", "full", "full*"]
    assert all(row[3] in (first, swapped) for row in order) and {row[3][0] for row in order} == {"full", "full*"}
    sums = query("SELECT min(wall_ns), bool_and(n_tokens > 0) FROM timing_sample")
    assert sums[0][0] > 0 and sums[0][1]
    names = {row[0] for row in query("SELECT DISTINCT metric FROM metric_values WHERE kind = 'timing'")}
    assert {
        "speedup",
        "speedup_decode",
        "aa_speedup",
        "ms_per_token",
        "full_ms_per_token",
        "realised_fraction",
    } <= names


def test_frontier_has_realised_fraction_and_timed_documents_and_rounds(
    query: Callable[[str], list[tuple[Any, ...]]],
) -> None:
    rows = query(
        """SELECT speedup_decode / ideal_speedup_decode, realised_fraction, timed_documents, timed_rounds,
               (SELECT value FROM metric_values AS m
                WHERE m.attempt_id = f.timing_attempt_id AND metric = 'realised_fraction'),
               (SELECT [count(DISTINCT doc_key), count(DISTINCT round)] FROM timing_sample AS t
                WHERE t.attempt_id = f.timing_attempt_id)
           FROM frontier AS f WHERE timing_attempt_id IS NOT NULL AND NOT is_full_depth"""
    )
    assert rows
    for ratio, realised, documents, rounds, stored, timed in rows:
        assert ratio == realised and (ratio is None or ratio == pytest.approx(stored))  # None: not measurable
        assert [documents, rounds] == timed


def test_metrics_have_roles_by_cell_kind(query: Callable[[str], list[tuple[Any, ...]]]) -> None:
    answer = query("SELECT kind, role, list(DISTINCT metric ORDER BY metric) FROM metric_values GROUP BY ALL")
    roles = {(kind, role): metrics for kind, role, metrics in answer}
    assert {kind for kind, role in roles if role in ("headline", "task")} == {"quality"}
    assert roles["quality", "depth"] == ["mean_blocks_run", "mean_exit_layer"]
    assert roles["quality", "agreement"] == ["token_match"]
    assert {role for kind, role in roles if kind == "timing"} - {"energy"} == {"speed", "cost"}


def test_oracles_run_every_block_and_are_timed(query: Callable[[str], list[tuple[Any, ...]]]) -> None:
    run = query(
        """SELECT min(blocks_run), bool_or(exit_layer < blocks_run) FROM token_trace
           WHERE method = 'oracle' AND execution = 'real'"""
    )
    assert run == [(DEPTH, True)]  # the quality pass looked at every block
    assert query("SELECT count(*) FROM metric_values WHERE method = 'oracle' AND metric = 'speedup'")[0][0] > 0


def test_cell_with_a_missing_dependency_is_skipped_and_others_run(plan: tuple[Plan, Path], tmp_path: Path) -> None:
    (group,) = plan[0].groups
    assert group.folder is not None
    orphan = next(cell.item for cell in group.cells if cell.item.cell.kind == "replay")
    whole = next(cell.item for cell in group.cells if cell.item.label.endswith("full/quality"))
    events: list[dict[str, Any]] = []
    worker.run(WorkerSpec((orphan, whole), group.folder, None, tmp_path, "cpu", 1), events.append)
    assert [event["status"] for event in events if event["event"] == "end"] == ["skipped", "ok"]
    assert "was never run" in str(latest_status(tmp_path)[orphan.cell.cell_id].reason)


def test_failure_is_stored_with_its_traceback_and_the_next_cell_runs(
    plan: tuple[Plan, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (group,) = plan[0].groups
    assert group.folder is not None
    items = [cell.item for cell in group.cells if cell.item.label.endswith("full/quality")]

    def broken(*arguments: Any) -> None:
        raise RuntimeError("the lamp went out")

    monkeypatch.setitem(worker.PASSES, "quality", broken)
    events: list[dict[str, Any]] = []
    assert worker.run(WorkerSpec(tuple(items), group.folder, None, tmp_path, "cpu", 1), events.append) == 0
    assert [event["status"] for event in events if event["event"] == "end"] == ["failed", "failed"]
    for status in latest_status(tmp_path).values():
        assert status.status == "failed" and "the lamp went out" in str(status.reason)
        assert "in broken" in json.loads((status.path / "status.json").read_text())["log_tail"]


def test_tokens_joined_with_the_vocabulary_give_the_output_text(query: Callable[[str], list[tuple[Any, ...]]]) -> None:
    spelled = """
        SELECT s.output_text, string_agg(v.text, ' ' ORDER BY t.position) FILTER (v.begins_word)
        FROM token_trace AS t
        JOIN runs AS r USING (attempt_id)
        JOIN sample AS s USING (attempt_id, doc_key)
        JOIN vocabulary AS v USING (tokenizer_sha256, token_id)
        WHERE r.is_full_depth AND t.task = 'squad' GROUP BY s.doc_key, s.output_text
    """
    rows = query(spelled)
    assert len(rows) == 5
    for text, words in rows:
        assert text.replace(" ", "") == words.replace(" ", "")
