"""What runs side by side on this machine's cores, and what runs alone: untimed cells first, then every timing."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from exitbench.harness.cells.job import CellJob, WorkerSpec
from exitbench.harness.running.environment import available_cores

_COPIES: Final = 3
"""Of its weights, that a loaded model takes by a guess: as much again twice for loading and for caches."""

_BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 2}

_MEMORY_SHARE: Final = 0.5
"""Of the machine's memory, that models side by side may take by this guess."""


@dataclass(frozen=True)
class Stage:
    """Groups of which so many run at a time.

    Attributes:
        quiet: Something may be timed, and nobody is to work beside it without need.
    """

    specs: tuple[WorkerSpec, ...]
    workers: int
    quiet: bool


def stages(specs: Sequence[WorkerSpec], cores: int | None = None, memory_bytes: int | None = None) -> tuple[Stage, ...]:
    """Divide the cells of loaded models into what can run side by side, and what is timed and runs alone after it.

    Args:
        specs: One a loaded model; their threads are those that one worker alone may use.
        cores: To fill; those that this process may use by default.
        memory_bytes: Of the machine, by default: models that run at the same time fit in half of it.
    """
    cores = cores or available_cores()
    untimed, timed = (_only(specs, timing=timing) for timing in (False, True))
    parts = _parts(untimed, cores)
    workers = max(1, min(cores, len(parts), _that_fit(untimed, memory_bytes)))
    shared = tuple(replace(part, threads=min(part.threads, max(1, cores // workers))) for part in parts)
    side_by_side = (Stage(shared, workers, quiet=False),) if shared else ()
    return (*side_by_side, *(Stage((spec,), 1, quiet=True) for spec in timed))


def _only(specs: Sequence[WorkerSpec], *, timing: bool) -> list[WorkerSpec]:
    chosen = (tuple(item for item in spec.cells if (item.cell.kind == "timing") == timing) for spec in specs)
    return [replace(spec, cells=cells) for spec, cells in zip(specs, chosen, strict=True) if cells]


def _that_fit(specs: Sequence[WorkerSpec], memory_bytes: int | None) -> int:
    """How many of the largest models fit in memory at the same time."""
    memory = memory_bytes or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    cells = [item.cell for spec in specs for item in spec.cells]
    largest = max((cell.model.parameters * _BYTES[cell.dtype] for cell in cells), default=0)
    return int(memory * _MEMORY_SHARE / max(1, largest * _COPIES))


def _parts(specs: Sequence[WorkerSpec], cores: int) -> list[WorkerSpec]:
    """The specifications, largest first; one with more than a core's share is split where nothing holds it together.

    Every part loads the model again, and only cells of one part can share a pass: there are no more than cores.
    """
    share = sum(map(_weight, specs)) / cores
    parts = []
    for spec in specs:
        parts += _split(spec, cores) if _weight(spec) > share else [spec]
    return sorted(parts, key=_weight, reverse=True)


def _split(spec: WorkerSpec, most: int) -> list[WorkerSpec]:
    """Stretches of about the same weight, `most` at most, of cells in their order."""
    stretches: dict[int, list[CellJob]] = {}
    whole, before = _weight(spec), 0
    for cells in _independent(spec.cells):
        weight = _weight(replace(spec, cells=cells))
        stretches.setdefault(int((before + weight / 2) * most / whole), []).extend(cells)
        before += weight
    return [replace(spec, cells=tuple(cells)) for cells in stretches.values()]


def _weight(spec: WorkerSpec) -> int:
    """How much is to be done, roughly: documents, of which calibrations decode all at every level."""
    levels = (len(item.cell.calibration.levels) if item.cell.calibration else 1 for item in spec.cells)
    return sum(item.cell.task.documents * n for item, n in zip(spec.cells, levels, strict=True))


def _independent(items: Sequence[CellJob]) -> list[tuple[CellJob, ...]]:
    """Sets of cells of which none waits for a cell of another, each in its order."""
    whose = {item.cell.cell_id: number for number, item in enumerate(items)}
    for item in items:
        own = whose[item.cell.cell_id]
        for needed in item.cell.depends_on:
            other = whose.get(needed, own)
            own, other = min(own, other), max(own, other)
            whose = {cell_id: own if number == other else number for cell_id, number in whose.items()}
    return [
        tuple(item for item in items if whose[item.cell.cell_id] == number) for number in sorted(set(whose.values()))
    ]
