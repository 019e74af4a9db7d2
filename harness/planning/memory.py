"""Whether the models of a plan fit into this machine's memory, told before any is loaded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from exitbench.harness.planning.plan import Plan
from exitbench.harness.planning.retry import Retry
from exitbench.terminal import number_of

if TYPE_CHECKING:
    from exitbench.harness.cells.cell import Cell

ROOM: Final = (
    'What needs less: dtype = "auto" or "bfloat16", smaller batch_rows and batch_size, max_new_tokens, '
    "max_prompt_tokens; --only leaves models out."
)


def shortages(plan: Plan, retry: Retry) -> Iterator[str]:
    """Name each model that is to be run and does not fit into what its device has left, with the numbers.

    Counted are the weights in the number format asked for, the copy of the LM head that certified gates read, and keys
    and values of the largest batch at its longest answer; prompts as far as `max_prompt_tokens` says how long they are.
    It is the least that is needed.

    Args:
        plan: Of a suite.
        retry: Which cells are to be run.
    """
    from exitbench.harness.engine.checkpoints.sizes import gib
    from exitbench.harness.engine.model.available import available_bytes

    for group in plan.groups:
        cells = [item.cell for item in group.to_run(retry) if item.cell.kind != "replay"]  # those load nothing
        if not cells or group.folder is None:
            continue
        devices = tuple(dict(cells[0].device_map or ((plan.device, 0),)))
        available = available_bytes(*devices)
        if available is None:
            continue
        needed = dict(_needed_bytes(group.folder, cells))
        if sum(needed.values()) > available:
            first, *others = [f"{what} {gib(n_bytes)}" for what, n_bytes in needed.items()]
            yield (
                f"model {group.model.name!r} ({group.folder}) does not fit: "
                f"{', '.join([f'{first} in {cells[0].dtype}', *others])}, and "
                f"{gib(available)} are available on {', '.join(devices)}."
            )


def _needed_bytes(folder: Path, cells: Sequence[Cell]) -> Iterator[tuple[str, int]]:
    """What is kept in memory, and how much of it."""
    from exitbench.harness.engine.checkpoints.loading import head_numel

    yield "its weights take", _weights_bytes(folder, cells[0].dtype)
    if cells[0].model.kind == "encoder":  # which keeps nothing for later tokens
        return
    if any(cell.head_precision == "certified" for cell in cells):
        yield "the int8 copy of its LM head", head_numel(folder)
    cache, largest = _largest_cache(folder, cells)
    tokens = number_of(_positions(largest), "token")
    yield f"keys and values of {number_of(largest.rows, 'row')} of {tokens}", cache


def _weights_bytes(folder: Path, dtype: str) -> int:
    import torch

    from exitbench.harness.engine.checkpoints.sizes import weights_bytes

    return weights_bytes(folder, getattr(torch, dtype))


def _largest_cache(folder: Path, cells: Sequence[Cell]) -> tuple[int, Cell]:
    """Bytes of keys and values, and the cell that needs most of them."""
    import torch

    from exitbench.harness.engine.checkpoints.loading import kv_width
    from exitbench.harness.engine.products.int8 import computes_in

    largest = max(cells, key=lambda cell: cell.rows * _positions(cell))
    per_position = 2 * kv_width(folder) * largest.model.blocks * computes_in(getattr(torch, largest.dtype)).itemsize
    return largest.rows * _positions(largest) * per_position, largest


def _positions(cell: Cell) -> int:
    """Positions of a row whose keys and values are kept: of the source too, which cross-attention keeps."""
    return cell.generation.max_new_tokens + (cell.generation.max_prompt_tokens or 0)
