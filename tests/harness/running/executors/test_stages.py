"""Models run in parallel, and so do independent parts of a large model's cells. Timed cells run alone."""

from __future__ import annotations

from dataclasses import replace

from exitbench.harness.cells.cell import Cell, Kind
from exitbench.harness.cells.job import CellJob, WorkerSpec
from exitbench.harness.running.executors.stages import Stage, stages

GIB = 1 << 30


def model(spec: WorkerSpec, name: str, *kinds: Kind, parameters: int = 1000) -> WorkerSpec:
    """Return a specification with cells of one model, each for a different task."""
    item = spec.cells[0]
    own = replace(item.cell.model, name=name, weights_sha256=name * 8, parameters=parameters)
    cells = [replace(item.cell, kind=kind, model=own, seed=seed) for seed, kind in enumerate(kinds)]
    return replace(spec, cells=tuple(job(item, cell, f"{name}{n}") for n, cell in enumerate(cells, 1)), threads=4)


def job(item: CellJob, cell: Cell, label: str) -> CellJob:
    return replace(item, cell=cell, label=label)


def labels(stage: Stage) -> list[list[str]]:
    return [[item.label for item in part.cells] for part in stage.specs]


def test_models_share_the_cores_and_every_timing_has_a_separate_stage(spec: WorkerSpec) -> None:
    specs = [model(spec, "a", "quality", "timing"), model(spec, "b", "quality", "replay", "timing")]
    beside, first, second = stages(specs, cores=2, memory_bytes=GIB)
    assert (beside.workers, beside.times_decodes, labels(beside)) == (2, False, [["a1"], ["b1"], ["b2"]])
    assert {part.threads for part in beside.specs} == {1}
    assert [(stage.workers, stage.times_decodes, labels(stage)) for stage in (first, second)] == [
        (1, True, [["a2"]]),
        (1, True, [["b3"]]),
    ]
    assert {part.threads for stage in (first, second) for part in stage.specs} == {4}


def test_dependent_cells_stay_in_one_part_in_order(spec: WorkerSpec) -> None:
    large = model(spec, "a", "quality", "quality", "quality", "replay", "quality")
    ids = [item.cell.cell_id for item in large.cells]
    needs = {2: {"full_depth_cell_id": ids[0]}, 3: {"probe_cell_id": ids[2]}, 4: {"full_depth_cell_id": ids[1]}}
    cells = []
    for number, item in enumerate(large.cells):
        changed = replace(item.cell, **needs.get(number, {}))
        cells.append(replace(item, cell=changed))
    (beside,) = stages([replace(large, cells=tuple(cells))], cores=2, memory_bytes=GIB)
    assert labels(beside) == [["a1", "a3", "a4"], ["a2", "a5"]]


def test_large_model_is_divided_among_cores_and_small_ones_stay_whole(spec: WorkerSpec) -> None:
    specs = [model(spec, "a", *["quality"] * 6), model(spec, "b", "quality", "quality"), model(spec, "c", "quality")]
    (beside,) = stages(specs, cores=2, memory_bytes=GIB)
    assert labels(beside) == [["a1", "a2", "a3"], ["a4", "a5", "a6"], ["b1", "b2"], ["c1"]]


def test_a_model_is_divided_into_at_most_one_part_per_core(spec: WorkerSpec) -> None:
    (beside,) = stages([model(spec, "a", *["quality"] * 7)], cores=3, memory_bytes=GIB)
    assert sorted(labels(beside)) == [["a1", "a2"], ["a3", "a4", "a5"], ["a6", "a7"]]


def test_parallel_models_use_at_most_half_the_memory(spec: WorkerSpec) -> None:
    specs = [model(spec, name, "quality", parameters=1_000_000_000) for name in "abc"]
    by_memory = {gib: stages(specs, 4, gib * GIB)[0] for gib in (1, 50, 500)}
    assert {gib: stage.workers for gib, stage in by_memory.items()} == {1: 1, 50: 2, 500: 3}
    assert {gib: stage.specs[0].threads for gib, stage in by_memory.items()} == {1: 4, 50: 2, 500: 1}


def test_twice_as_many_bfloat16_models_run_in_parallel(spec: WorkerSpec) -> None:
    specs = [model(spec, name, "quality", parameters=1_000_000_000) for name in "abcd"]
    halved = [
        replace(s, cells=tuple(replace(i, cell=replace(i.cell, dtype="bfloat16")) for i in s.cells)) for s in specs
    ]
    assert [stages(asked, 4, 50 * GIB)[0].workers for asked in (specs, halved)] == [2, 4]


def test_no_cells_have_no_stages() -> None:
    assert stages([], cores=2) == ()
