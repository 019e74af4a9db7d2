"""Stages of a run on this machine's cores: first untimed cells side by side, then each timed group alone."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from exitbench.harness.cells.job import CellJob, WorkerSpec
from exitbench.harness.engine.model.available import machine_bytes
from exitbench.harness.running.environment import available_cores

_COPIES: Final = 3
"""Estimated memory of a loaded model, in copies of its weights: one plus two for loading, caches and fast products."""

_BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 2}

_MEMORY_SHARE: Final = 0.5
"""Maximum share of the machine's memory for models side by side, by this estimate."""


@dataclass(frozen=True)
class Stage:
    """Cells grouped by model; up to ``workers`` groups run at the same time, each in one worker process.

    Attributes:
        times_decodes: Whether the stage may time decodes, so that no other work should run at the same time.
    """

    specs: tuple[WorkerSpec, ...]
    workers: int
    times_decodes: bool


def stages(specs: Sequence[WorkerSpec], cores: int | None = None, memory_bytes: int | None = None) -> tuple[Stage, ...]:
    """Divide cells into untimed cells, which run side by side, and timing cells, which run alone after them.

    Args:
        specs: One specification per loaded model; its number of threads is for a worker that runs alone.
        cores: Number of cores to use; None for all cores this process may use.
        memory_bytes: Memory of the machine; None to read it. Models that run at the same time fit in half of it.

    Returns:
        The stages in the order in which they run.
    """
    cores = cores or available_cores()
    untimed, timed = (_only(specs, timing=timing) for timing in (False, True))
    parts = _parts(untimed, cores)
    workers = max(1, min(cores, len(parts), _max_models_in_memory(untimed, memory_bytes)))
    shared = tuple(replace(part, threads=min(part.threads, max(1, cores // workers))) for part in parts)
    side_by_side = (Stage(shared, workers, times_decodes=False),) if shared else ()
    return (*side_by_side, *(Stage((spec,), 1, times_decodes=True) for spec in timed))


def _only(specs: Sequence[WorkerSpec], *, timing: bool) -> list[WorkerSpec]:
    chosen = (tuple(item for item in spec.cells if (item.cell.kind == "timing") == timing) for spec in specs)
    return [replace(spec, cells=cells) for spec, cells in zip(specs, chosen, strict=True) if cells]


def _max_models_in_memory(specs: Sequence[WorkerSpec], memory_bytes: int | None) -> int:
    """Return how many models as large as the largest one fit at the same time in half of the memory.

    `memory_bytes` is the memory that this process could ever use; None to read it.
    """
    cells = [item.cell for spec in specs for item in spec.cells]
    largest = max((cell.model.parameters * _BYTES[cell.dtype] for cell in cells), default=0)
    memory = memory_bytes or machine_bytes()
    return len(specs) if memory is None else int(memory * _MEMORY_SHARE / max(1, largest * _COPIES))


def _parts(specs: Sequence[WorkerSpec], cores: int) -> list[WorkerSpec]:
    """Return the specifications, largest first. A specification with more than one core's share of work is split.

    There are no more parts than cores: every part loads the model again, and only cells of one part can share runs of
    the model.
    """
    share = sum(map(_weight, specs)) / cores
    parts = []
    for spec in specs:
        parts += _split(spec, cores) if _weight(spec) > share else [spec]
    return sorted(parts, key=_weight, reverse=True)


def _split(spec: WorkerSpec, most: int) -> list[WorkerSpec]:
    """Split a specification into at most ``most`` parts of similar weight; each has consecutive cells.

    Cells that depend on each other stay in one part.
    """
    stretches: dict[int, list[CellJob]] = {}
    total, before = _weight(spec), 0
    for cells in _independent(spec.cells):
        weight = _weight(replace(spec, cells=cells))
        stretches.setdefault(int((before + weight / 2) * most / total), []).extend(cells)
        before += weight
    return [replace(spec, cells=tuple(cells)) for cells in stretches.values()]


def _weight(spec: WorkerSpec) -> int:
    """Return the rough amount of work: the documents of all cells, counted once per threshold for a calibration."""
    levels = (len(item.cell.calibration.levels) if item.cell.calibration else 1 for item in spec.cells)
    return sum(item.cell.task.documents * n for item, n in zip(spec.cells, levels, strict=True))


def _independent(items: Sequence[CellJob]) -> list[tuple[CellJob, ...]]:
    """Split cells into sets without dependencies between sets. Each set keeps the order of its cells."""
    set_of = {item.cell.cell_id: number for number, item in enumerate(items)}
    for item in items:
        first = set_of[item.cell.cell_id]
        for needed in item.cell.depends_on:
            second = set_of.get(needed, first)
            first, second = min(first, second), max(first, second)
            set_of = {cell_id: first if number == second else number for cell_id, number in set_of.items()}
    return [
        tuple(item for item in items if set_of[item.cell.cell_id] == number) for number in sorted(set(set_of.values()))
    ]
