"""Cells that share a pass: which cells may, that results equal separate cells, and that a failure costs one cell."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest
import torch
from suite_runs import plan_suite, worker_spec
from torch import Tensor

from exitbench.harness.cells.job import CellJob, WorkerSpec
from exitbench.harness.running import worker
from exitbench.harness.running.cell_lock import hold
from exitbench.harness.work import partners
from exitbench.harness.work.kinds import work_of
from exitbench.harness.work.loaded import LoadedModel
from exitbench.harness.work.partners import batchable_with
from exitbench.methods.base import BlockView, Gate
from exitbench.methods.registry import get_method
from exitbench.methods.thresholds import Constant
from exitbench.results.ingest.ingest import ingest
from exitbench.results.spool.attempts import latest_status, read_attempt, scan_spool

# Forking is safe here: torch has one thread in tests.
FORK = multiprocessing.get_context("fork")
THRESHOLDS = [0.001, 0.002, 0.004, 0.5]
SUITE = """
schema = 1
name = "shared"
seed = 3
[models.tiny]
path = "{model}"
random_weights = true
[tasks]
wmt = {{ task = "wmt-en-fr", source = "builtin", limit = 4, max_new_tokens = 6 }}
[[sweep]]
method = "calm-softmax"
grid = {{ threshold = {thresholds} }}
kinds = ["quality"]
"""


def spec_in(folder: Path, model: Path) -> WorkerSpec:
    """Return the specification of a worker with quality cells of full depth and of a method with four thresholds."""
    (group,) = plan_suite(folder, SUITE.format(model=model, thresholds=THRESHOLDS)).groups
    return worker_spec(group, folder / "spool")


@pytest.fixture
def spec(worded_model: Path, tmp_path: Path) -> WorkerSpec:
    return spec_in(tmp_path, worded_model)


def swept(spec: WorkerSpec) -> list[CellJob]:
    """The cells of the method, by threshold."""
    return [item for item in spec.cells if item.cell.method.name == "calm-softmax"]


class Run:
    """Result of a worker: number of cells per pass, status of each cell, and exit code."""

    def __init__(self, spec: WorkerSpec, on_event: Any = lambda event: None) -> None:
        events: list[dict[str, Any]] = []

        def note(event: dict[str, Any]) -> None:
            events.append(event)
            on_event(event)

        self.code = worker.run(spec, note)
        labels = {item.cell.cell_id: item.label for item in spec.cells}
        self.cells = {event["label"]: event["cells"] for event in events if event["event"] == "start"}
        self.statuses = {labels[event["cell"]]: event["status"] for event in events if event["event"] == "end"}
        self.waited = [labels[event["cell"]] for event in events if event["event"] == "wait"]


def stored(spec: WorkerSpec) -> dict[str, dict[str, Any]]:
    """Return the tables of each successful cell, without scores."""
    tables = {}
    for status in latest_status(spec.spool).values():
        if status.status == "ok":
            own = {
                name: pq.read_table(status.path / f"{name}.parquet").to_pydict()
                for name in ("samples", "tokens", "metrics")
            }
            own["tokens"].pop("score")
            tables[status.cell_id] = own
    return tables


@pytest.fixture(scope="module")
def expected(worded_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Return the tables of all cells, each run in a separate pass."""
    by_itself = replace(spec_in(tmp_path_factory.mktemp("alone"), worded_model), shares=False)
    assert set(Run(by_itself).cells.values()) == {1}
    return stored(by_itself)


def test_cells_of_a_shared_pass_equal_separately_run_cells(
    spec: WorkerSpec, expected: dict[str, dict[str, Any]]
) -> None:
    ran = Run(spec)
    first, *others = (item.label for item in swept(spec))
    assert ran.cells.pop(first) == 4, "one decodes for all"
    assert set(ran.cells.values()) == {1} and set(others) < set(ran.cells)
    assert set(ran.statuses.values()) == {"ok"}
    assert stored(spec) == expected


def test_runs_record_the_number_of_cells_in_their_pass(spec: WorkerSpec, tmp_path: Path) -> None:
    """The first cell has the seconds of the whole pass."""
    Run(spec)
    ingest(spec.spool, tmp_path / "x.duckdb")
    with duckdb.connect(str(tmp_path / "x.duckdb"), read_only=True) as connection:
        told = dict(connection.execute("SELECT cell_id, pass_cells FROM runs").fetchall())
    assert told == {item.cell.cell_id: 4 if item in swept(spec) else None for item in spec.cells}


def test_finished_cells_and_cells_of_another_run_are_excluded_from_a_pass(
    spec: WorkerSpec, expected: dict[str, Any]
) -> None:
    first, done, elsewhere, last = swept(spec)
    full = next(item for item in spec.cells if item.cell.method.name == "full")
    Run(replace(spec, cells=(full, done)))
    with contextlib.ExitStack() as other_run:
        assert other_run.enter_context(hold(spec.spool, elsewhere.cell.cell_id, wait=False))
        ran = Run(spec, lambda event: other_run.close() if event["event"] == "wait" else None)
    assert ran.cells == {first.label: 2, last.label: 1, elsewhere.label: 1}
    assert ran.waited == [elsewhere.label]
    assert stored(spec) == expected
    assert len(list(scan_spool(spec.spool))) == len(spec.cells), "nothing was run twice"


def test_failing_cell_of_a_shared_pass_fails_alone(
    spec: WorkerSpec, expected: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    value = Constant.value

    def broken(rule: Constant, *where: int) -> float:
        if rule.level == THRESHOLDS[1]:
            raise RuntimeError("the lamp went out")
        return value(rule, *where)

    monkeypatch.setattr(Constant, "value", broken)
    ran = Run(spec)
    failed = swept(spec)[1]
    assert ran.statuses == {item.label: "failed" if item is failed else "ok" for item in spec.cells}
    assert stored(spec) == {cell_id: tables for cell_id, tables in expected.items() if cell_id != failed.cell.cell_id}
    assert {read_attempt(one.path).status["pass_cells"] for one in scan_spool(spec.spool)} == {None}


def test_non_finite_scores_fail_only_their_cell_of_a_shared_pass(
    spec: WorkerSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only scores of rows with the fourth threshold are made NaN, so that only this threshold's cell fails."""
    level, score = THRESHOLDS[3], type(get_method("calm-softmax")().gate({})).score

    def broken(gate: Gate, view: BlockView) -> Tensor:
        rules = view.active.thresholds_A
        rows = [i for i, rule in enumerate(rules) if isinstance(rule, Constant) and rule.level == level]
        return score(gate, view).index_fill(0, torch.tensor(rows, dtype=torch.long), float("nan"))  # type: ignore[arg-type]

    monkeypatch.setattr(type(get_method("calm-softmax")().gate({})), "score", broken)
    ran = Run(spec)
    assert ran.statuses == {item.label: "failed" if item is swept(spec)[3] else "ok" for item in spec.cells}


def run_until_killed(spec: WorkerSpec, cells: int) -> None:
    """Run the cells, and kill this process when a number of them have ended."""
    ended: list[str] = []

    def on_event(event: dict[str, Any]) -> None:
        ended.extend([event["cell"]] if event["event"] == "end" else [])
        if len(ended) == cells:
            os.kill(os.getpid(), signal.SIGKILL)

    worker.run(spec, on_event)


def test_kill_during_a_shared_pass_keeps_finished_cells_and_reruns_the_rest(
    spec: WorkerSpec, expected: dict[str, dict[str, Any]]
) -> None:
    process = FORK.Process(target=run_until_killed, args=(spec, 3))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    kept = {attempt.cell_id for attempt in scan_spool(spec.spool) if attempt.finished}
    assert len(kept) == 3  # full depth, and two of the four
    ran = Run(spec)
    assert ran.cells == {swept(spec)[2].label: 2, swept(spec)[3].label: 1}
    assert stored(spec) == expected


def test_interrupt_releases_the_locks_of_waiting_cells(spec: WorkerSpec) -> None:
    def interrupt(event: dict[str, Any]) -> None:
        if event["event"] == "progress" and event["cell"] == swept(spec)[0].cell.cell_id:
            raise KeyboardInterrupt

    assert Run(spec, interrupt).code == worker.INTERRUPTED
    for item in swept(spec):
        with hold(spec.spool, item.cell.cell_id, wait=False) as held:
            assert held
    assert latest_status(spec.spool)[swept(spec)[0].cell.cell_id].status == "interrupted"


# ------------------------------------------------------------------------------------------ which may


def test_cells_of_other_documents_kinds_seeds_or_methods_never_share(spec: WorkerSpec) -> None:
    one, other = swept(spec)[:2]
    assert batchable_with(one, [other]) == [other]
    full = next(item for item in spec.cells if item.cell.method.name == "full")
    cell = other.cell
    others = [
        full,
        replace(other, data=replace(other.data, limit=3)),
        *(replace(other, cell=replace(cell, **change)) for change in CHANGES),
        replace(other, cell=replace(cell, generation=replace(cell.generation, min_length=2))),
    ]
    assert batchable_with(one, others) == []
    timed = replace(one, cell=replace(one.cell, kind="timing"))
    assert batchable_with(timed, [replace(other, cell=replace(cell, kind="timing"))]) == []


CHANGES: list[dict[str, Any]] = [
    {"seed": 4},
    {"kind": "probe"},
    {"kv_policy": "exact"},
    {"batch_rows": 2},
    {"dtype": "bfloat16"},
    {"engine": "hosted"},
]


def test_shared_passes_are_limited_by_rows_and_kept_tokens(spec: WorkerSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    one, *others = swept(spec)
    work = work_of(LoadedModel(spec), one)
    assert [item for item, _ in partners.partners(work, others)] == others
    with monkeypatch.context() as patched:
        patched.setattr(partners, "PASS_ROWS", 2)
        assert [item for item, _ in partners.partners(work, others)] == others[:1]
    for cells in (1, 3):
        monkeypatch.setattr(partners, "KEPT_TOKENS", cells * one.cell.task.documents * 6)
        assert [item for item, _ in partners.partners(work, others)] == others[: cells - 1]
