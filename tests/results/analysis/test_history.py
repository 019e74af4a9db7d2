"""Estimates of a cell's cost from the nearest attempts; without attempts there is no estimate."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from exitbench.results.analysis.status import UNKNOWN, CellWorkload, Estimate, History, total
from exitbench.results.spool.attempts import AttemptWriter

Json = dict[str, Any]


@pytest.fixture
def cell_json(example: ModuleType) -> Callable[..., Json]:
    """Return a function that returns the cell.json of a cell over 10 documents, with keys changed."""

    def make(kind: str = "quality", model: int = 0, task: int = 0, method: str = "static", **changed: Any) -> Json:
        cell = example.cell_json(example.MODELS[model], example.TASKS[task], example.Method(method, {}), kind)
        cell["task"]["documents"] = 10
        return {**cell, "timing": None, "calibration": None, **changed}

    return make


def write_timed_attempt(
    spool: Path, cell: Json, env: Json, seconds: float, outcome: str = "ok", pass_cells: int | None = None
) -> int:
    """Write an attempt that took `seconds`, and return the size of its folder."""
    with AttemptWriter(spool, cell, env) as writer:
        writer.finish(outcome, pass_cells=pass_cells)
    file = writer.path / "status.json"
    status = json.loads(file.read_text())
    ended_at = datetime.fromisoformat(status["started_at"]) + timedelta(seconds=seconds)
    file.write_text(json.dumps({**status, "ended_at": ended_at.isoformat()}))
    return sum(each.stat().st_size for each in writer.path.iterdir())


def stored_estimate(spool: Path, cell: Json) -> Estimate:
    return History(spool).estimate(CellWorkload.from_json(cell))


def units(cell: Json) -> int:
    return CellWorkload.from_json(cell).units


def test_empty_spool_gives_no_estimate(tmp_path: Path, cell_json: Callable[..., Json]) -> None:
    assert stored_estimate(tmp_path / "spool", cell_json()) == UNKNOWN


def test_estimated_time_and_size_scale_with_document_count(
    tmp_path: Path, cell_json: Callable[..., Json], env: Json
) -> None:
    size = write_timed_attempt(tmp_path, cell_json(), env, 20.0)
    more = cell_json()
    more["task"]["documents"] = 30
    estimate = stored_estimate(tmp_path, more)
    assert estimate.seconds == pytest.approx(60.0)
    assert estimate.size_bytes == pytest.approx(3 * size)


def test_estimate_is_the_median_over_equal_cells(tmp_path: Path, cell_json: Callable[..., Json], env: Json) -> None:
    for seconds in (10.0, 20.0, 900.0):
        write_timed_attempt(tmp_path, cell_json(), env, seconds)
    assert stored_estimate(tmp_path, cell_json()).seconds == pytest.approx(20.0)


def test_estimate_uses_the_most_similar_attempts(tmp_path: Path, cell_json: Callable[..., Json], env: Json) -> None:
    write_timed_attempt(tmp_path, cell_json(batch_size=8), env, 5.0)
    write_timed_attempt(tmp_path, cell_json(model=1), env, 10.0)
    write_timed_attempt(tmp_path, cell_json(model=0, task=1), env, 30.0)
    estimates = {
        "same method, model and task": cell_json(task=1),
        "same method and model": cell_json(task=2),
        "same kind, model and task": cell_json(task=1, method="full"),
        "same kind and size of model": cell_json(task=2, method="full"),
        "same kind, other number format or batch size": cell_json(dtype="bfloat16"),
    }
    assert {basis: stored_estimate(tmp_path, cell).basis for basis, cell in estimates.items()} == {
        basis: basis for basis in estimates
    }
    assert stored_estimate(tmp_path, cell_json(task=2)).seconds == pytest.approx(30.0)
    assert stored_estimate(tmp_path, cell_json(model=1)).seconds == pytest.approx(10.0)


def test_shared_pass_time_is_summed_and_divided_among_its_cells(
    tmp_path: Path, cell_json: Callable[..., Json], env: Json
) -> None:
    """In a shared pass, only the cell that decoded for all of them has the seconds of the decode."""
    for seconds in (21.0, 1.0, 2.0):
        write_timed_attempt(tmp_path, cell_json(), env, seconds, pass_cells=3)
    shared = History(tmp_path).estimate(replace(CellWorkload.from_json(cell_json()), shares=True))
    assert (shared.seconds, shared.at_most) == (pytest.approx(24.0 / 3), False)


def test_unshared_attempt_is_an_upper_bound_for_a_shared_pass(
    tmp_path: Path, cell_json: Callable[..., Json], env: Json
) -> None:
    write_timed_attempt(tmp_path, cell_json(method="full"), env, 10.0)
    write_timed_attempt(tmp_path, cell_json(model=1), env, 1.0, pass_cells=3)
    history, request = History(tmp_path), CellWorkload.from_json(cell_json())
    alone, shared = (history.estimate(replace(request, shares=shares)) for shares in (False, True))
    assert (alone.seconds, alone.at_most) == (pytest.approx(10.0), False)
    assert (shared.seconds, shared.at_most) == (pytest.approx(10.0), True), "not by a pass on another model"
    elsewhere = history.estimate(CellWorkload.from_json(cell_json(model=1)))
    assert elsewhere.seconds == pytest.approx(1.0), "rather than by another size of model"


RECORD = {"what": ["sublayers"], "documents": 4}


@pytest.mark.parametrize("changed", [{"kind": "probe"}, {"device": "cuda"}, {"record": RECORD}])
def test_attempts_of_another_kind_or_device_give_no_estimate(
    tmp_path: Path, cell_json: Callable[..., Json], env: Json, changed: Json
) -> None:
    write_timed_attempt(tmp_path, cell_json(), env, 5.0)
    assert stored_estimate(tmp_path, cell_json(**changed)) == UNKNOWN


def test_failed_and_unfinished_attempts_give_no_estimate(
    tmp_path: Path, cell_json: Callable[..., Json], env: Json
) -> None:
    write_timed_attempt(tmp_path, cell_json(), env, 5.0, "failed")
    AttemptWriter(tmp_path, cell_json(), env)
    assert stored_estimate(tmp_path, cell_json()) == UNKNOWN


def test_work_units_count_documents_rounds_and_levels(cell_json: Callable[..., Json]) -> None:
    assert units(cell_json()) == 10
    assert units(cell_json(timing={"documents": 4, "max_rounds": 3})) == 12
    assert units(cell_json(timing={"documents": 40, "max_rounds": 3})) == 30
    assert units(cell_json(calibration={"levels": [0.9, 0.5]})) == 30
    assert [units(cell_json(record={"what": ["sublayers"], "documents": n})) for n in (4, 40)] == [4, 10]


def test_total_counts_cells_without_an_estimate(tmp_path: Path, cell_json: Callable[..., Json], env: Json) -> None:
    size = write_timed_attempt(tmp_path, cell_json(), env, 20.0)
    seconds, size_bytes, unknown = total(
        [stored_estimate(tmp_path, cell_json()), UNKNOWN, stored_estimate(tmp_path, cell_json())]
    )
    assert (seconds, size_bytes, unknown) == (pytest.approx(40.0), pytest.approx(2 * size), 1)
