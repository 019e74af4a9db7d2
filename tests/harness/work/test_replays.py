"""Replays of many cells that read their probe once in common give the results of replays that read it separately."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from suite_runs import plan_suite, worker_spec

from exitbench.errors import UserError
from exitbench.harness.cells.job import CellJob, WorkerSpec
from exitbench.harness.running import worker
from exitbench.harness.work import partners
from exitbench.harness.work.partners import batchable_with
from exitbench.harness.work.sharing import ReplaySource
from exitbench.methods.registry import get_method, method_names
from exitbench.methods.thresholds import Constant
from exitbench.results.spool.attempts import latest_status, read_attempt

LEVELS = (0.003, 0.3)
HEAD = """
schema = 1
name = "replays"
seed = 3
[models.tiny]
path = "{model}"
random_weights = true
[tasks]
squad = {{ task = "squad", source = "builtin", limit = 4, max_new_tokens = 6 }}
[fit]
documents = 4
"""


def replayable(depth: int = 4) -> Iterator[str]:
    """Yield the names of the methods that can be replayed on a model without exit heads."""
    for name in method_names():
        method = get_method(name)()
        try:
            method.check(depth)
            method.bound_to(())
        except UserError:
            continue
        if not (method.parts(depth).kv_policy.verifies or method.is_baseline):
            yield name


def sweep(name: str) -> str:
    """Return a sweep with two thresholds if the method has a threshold, and two KV policies if it has several."""
    known, grid = {field.name for field in fields(get_method(name))}, []
    if "threshold" in known:
        grid.append(f"threshold = {list(LEVELS)}")
    if "kv_policy" in known and name == "calm-softmax":
        grid.append('kv_policy = ["state-copy", "exact"]')
    if "epochs" in known:
        grid.append("epochs = [1]")
    return f'[[sweep]]\nmethod = "{name}"\ngrid = {{ {", ".join(grid)} }}\nkinds = ["replay"]\n'


@pytest.fixture(scope="module")
def spec(worded_model: Path, tmp_path_factory: pytest.TempPathFactory) -> WorkerSpec:
    """Return a specification of every replayable method, whose required cells have been run."""
    root = tmp_path_factory.mktemp("replays")
    (group,) = plan_suite(root, HEAD.format(model=worded_model) + "".join(map(sweep, replayable()))).groups
    spec = worker_spec(group, root / "inputs")
    needed = tuple(item for item in spec.cells if item.cell.kind != "replay")
    replays = tuple(item for item in spec.cells if item.cell.kind == "replay")
    assert worker.run(replace(spec, cells=needed), lambda event: None) == 0
    assert {status.status for status in latest_status(root / "inputs").values()} == {"ok"}
    return replace(spec, cells=replays, inputs=root / "inputs")


@pytest.fixture(scope="module")
def expected(spec: WorkerSpec, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the tables of each replay, each run with its own reading of the probe."""
    alone = replace(spec, spool=tmp_path_factory.mktemp("alone"), shares=False)
    assert set(run(alone).values()) == {1}
    return stored(alone)


def run(spec: WorkerSpec) -> dict[str, int]:
    """Run the cells; return how many were replayed in each common reading, by the label of its first cell."""
    events: list[dict[str, Any]] = []
    assert worker.run(spec, events.append) == 0
    return {event["label"]: event["cells"] for event in events if event["event"] == "start"}


def stored(spec: WorkerSpec) -> dict[str, Any]:
    return {
        cell_id: {name: pq.read_table(status.path / f"{name}.parquet") for name in ("tokens", "metrics")}
        for cell_id, status in latest_status(spec.spool).items()
        if status.status == "ok"
    }


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the number of exit rules applied in each reading of a probe."""
    seen, exits = [], ReplaySource.exits_by_rule

    def counted(recorded: ReplaySource, rules: dict[str, str]) -> Any:
        seen.append(len(rules))
        return exits(recorded, rules)

    monkeypatch.setattr(ReplaySource, "exits_by_rule", counted)
    return seen


def by_probe(spec: WorkerSpec) -> list[CellJob]:
    return [item for item in spec.cells if item.cell.scores_cell_id is None]


def test_shared_replays_equal_separate_replays(
    spec: WorkerSpec, expected: dict[str, Any], readings: list[int], tmp_path: Path
) -> None:
    together = replace(spec, spool=tmp_path)
    ran = run(together)
    assert stored(together) == expected
    assert ran[by_probe(spec)[0].label] == len(by_probe(spec)) == max(readings), "one reads the probe for all methods"
    scored = {item.cell.scores_cell_id for item in spec.cells} - {None}
    assert len(readings) == 1 + len(scored) and sum(readings) == len(spec.cells), "and one the scores of each gate"
    told = {read_attempt(status.path).status["pass_cells"] for status in latest_status(tmp_path).values()}
    assert told == {None if n == 1 else n for n in readings}


def test_replay_with_failing_sql_fails_only_its_cell(
    spec: WorkerSpec, expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = next(item for item in by_probe(spec) if item.cell.method.params.get("threshold") == LEVELS[1])
    sql = Constant.sql

    def no_sql(rule: Constant, max_new_tokens: int) -> str:
        return "no_such_column" if rule.level == LEVELS[1] else sql(rule, max_new_tokens)

    monkeypatch.setattr(Constant, "sql", no_sql)
    chosen = replace(spec, spool=tmp_path, cells=(by_probe(spec)[0], broken))
    run(chosen)
    first = by_probe(spec)[0].cell.cell_id
    assert stored(chosen) == {first: expected[first]}
    statuses = {status.cell_id: read_attempt(status.path).status for status in latest_status(tmp_path).values()}
    assert (statuses[broken.cell.cell_id]["status"], statuses[first]["pass_cells"]) == ("failed", None)


@pytest.mark.parametrize("name", ["entropy=0.5", "position=7", "doc_key=x", "x[1]", "a*b", "a?b"])
@pytest.mark.sampled(2)
def test_replays_do_not_depend_on_special_characters_in_folder_names(
    spec: WorkerSpec, expected: dict[str, Any], tmp_path: Path, name: str
) -> None:
    """The folder's name may look like a partition (`entropy=0.5`) or a pattern (`a*b`) that matches other folders."""
    for folder in (name, "x1", "ab", "a-b"):
        shutil.copytree(spec.inputs, tmp_path / folder)
    of_scores = next(item for item in spec.cells if item.cell.scores_cell_id is not None)
    cells = (by_probe(spec)[0], of_scores)
    chosen = replace(spec, inputs=tmp_path / name, spool=tmp_path / "spool", cells=cells)
    run(chosen)
    assert stored(chosen) == {item.cell.cell_id: expected[item.cell.cell_id] for item in cells}


def test_shared_replays_are_limited_by_kept_tokens(
    spec: WorkerSpec, expected: dict[str, Any], readings: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    one, two, three, *_ = by_probe(spec)
    rows = expected[one.cell.cell_id]["tokens"].num_rows
    monkeypatch.setattr(partners, "KEPT_TOKENS", 2 * rows)
    run(replace(spec, spool=tmp_path, cells=(one, two, three)))
    assert readings == [2, 1]


def test_only_replays_of_the_same_inputs_are_shared(spec: WorkerSpec) -> None:
    one, *others = by_probe(spec)
    assert batchable_with(one, others) == others
    changes: tuple[dict[str, Any], ...] = (
        {"kind": "probe"},
        {"seed": 4},
        {"probe_cell_id": "0" * 64},
        {"scores_cell_id": "0" * 64},
    )
    differing = [replace(others[0], cell=replace(others[0].cell, **change)) for change in changes]
    assert batchable_with(one, [*differing, replace(others[0], data=replace(one.data, limit=3))]) == []
