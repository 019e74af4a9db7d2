"""Process documents in batches, and halve the batch size when memory runs out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from exitbench.errors import is_out_of_memory

Item = TypeVar("Item")


def in_batches(
    items: Sequence[Item], rows: int, run: Callable[[Sequence[Item]], None], on_done: Callable[[int], None]
) -> None:
    """Process items in order; a batch that runs out of memory is run again with half as many items.

    Args:
        items: Items to process, one batch row each.
        rows: Maximum number of items per batch. After a batch was halved, no later batch is larger.
        run: Function that processes one batch; if it fails, it must not keep any results of the batch.
        on_done: Called after every batch with the number of items processed so far.

    Raises:
        RuntimeError: A batch of one item ran out of memory (see `is_out_of_memory`), or `run` failed otherwise.
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
    """Run a batch; return False if memory ran out and the batch has several items, so that it can be split."""
    try:
        run(batch)
    except Exception as error:
        if len(batch) == 1 or not is_out_of_memory(error):
            raise
        return False
    return True
