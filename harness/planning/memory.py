"""Check that the models of a plan fit into memory, before any model is loaded."""

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
    """Yield a message for each model to run that does not fit into its device's available memory.

    The sum counts weights in the requested dtype, the int8 copy of a certified LM head, and the KV cache of the
    largest batch at its maximum answer length. Prompts count only if `max_prompt_tokens` bounds them, so the result is
    a lower bound.

    Args:
        plan: Plan of a suite.
        retry: Value of ``--retry``, which selects the cells to run by their states (`retry.RETRIED`).
    """
    from exitbench.harness.engine.checkpoints.sizes import gib
    from exitbench.harness.engine.model.available import available_bytes

    for group in plan.groups:
        cells = [item.cell for item in group.to_run(retry) if item.cell.kind != "replay"]  # replays load no model
        if not cells or group.folder is None:
            continue
        devices = tuple(dict(cells[0].device_map or ((plan.device, 0),)))
        available = available_bytes(*devices)
        if available is None:
            continue
        needed = dict(_needed_bytes(group.folder, cells))
        if sum(needed.values()) > available:
            first, *rest_of_parts = [f"{what} {gib(n_bytes)}" for what, n_bytes in needed.items()]
            yield (
                f"model {group.model.name!r} ({group.folder}) does not fit: "
                f"{', '.join([f'{first} in {cells[0].dtype}', *rest_of_parts])}, and "
                f"{gib(available)} are available on {', '.join(devices)}."
            )


def _needed_bytes(folder: Path, cells: Sequence[Cell]) -> Iterator[tuple[str, int]]:
    """Yield (description, bytes) of the weights, the int8 LM head if certified, and the KV cache."""
    import torch

    from exitbench.harness.engine.checkpoints.loading import head_numel
    from exitbench.harness.engine.checkpoints.sizes import weights_bytes

    yield "its weights take", weights_bytes(folder, getattr(torch, cells[0].dtype))
    if cells[0].model.kind == "encoder":  # encoders have no KV cache
        return
    if any(cell.head_precision == "certified" for cell in cells):
        yield "the int8 copy of its LM head", head_numel(folder)
    cache, largest = _largest_cache(folder, cells)
    tokens = number_of(_positions(largest), "token")
    yield f"keys and values of {number_of(largest.rows, 'row')} of {tokens}", cache


def _largest_cache(folder: Path, cells: Sequence[Cell]) -> tuple[int, Cell]:
    """Return the bytes of the largest KV cache, and the cell that needs it."""
    import torch

    from exitbench.harness.engine.checkpoints.loading import kv_width
    from exitbench.harness.engine.products.int8 import computes_in

    largest = max(cells, key=lambda cell: cell.rows * _positions(cell))
    per_position = 2 * kv_width(folder) * largest.model.blocks * computes_in(getattr(torch, largest.dtype)).itemsize
    return largest.rows * _positions(largest) * per_position, largest


def _positions(cell: Cell) -> int:
    """Return the maximum number of tokens of prompt and answer, as the cell's settings limit them.

    A prompt without limit counts as 0.
    """
    return cell.generation.max_new_tokens + (cell.generation.max_prompt_tokens or 0)
