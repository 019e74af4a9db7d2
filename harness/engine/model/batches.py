"""Process documents in batches: as many rows as requested, fewer once memory runs out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from exitbench.errors import is_out_of_memory

Item = TypeVar("Item")


def in_batches(
    items: Sequence[Item], rows: int, run: Callable[[Sequence[Item]], None], on_done: Callable[[int], None]
) -> None:
    """Process items in order; a batch that runs out of memory is run again with half as many rows.

    Args:
        items: Items to process.
        rows: Most items per batch; after a batch was halved, no later batch is larger.
        run: Processes one batch; must leave no results of a batch that fails.
        on_done: Called with the number of items done.

    Raises:
        RuntimeError: There is no memory for a single row (see `is_out_of_memory`), or `run` failed for another reason.
    """
    n_done = 0
    while n_done < len(items):
        batch = items[n_done : n_done + rows]
        if _fits(run, batch):
            n_done += len(batch)
            on_done(n_done)
        else:
            rows = len(batch) // 2
            if torch.cuda.is_available():
                torch.cuda.empty_cache()


def _fits(run: Callable[[Sequence[Item]], None], batch: Sequence[Item]) -> bool:
    """Run a batch; return False if memory ran out with several rows, whose tensors are then freed."""
    try:
        run(batch)
    except Exception as error:
        if len(batch) == 1 or not is_out_of_memory(error):
            raise
        return False
    return True
