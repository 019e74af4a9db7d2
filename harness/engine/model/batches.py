"""Documents a batch at a time: as many rows as asked for, fewer once memory is out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from exitbench.errors import is_out_of_memory

Item = TypeVar("Item")


def in_batches(
    items: Sequence[Item], rows: int, run: Callable[[Sequence[Item]], None], on_done: Callable[[int], None]
) -> None:
    """Go through items in order; a batch for which there is no memory is run again with half as many rows.

    Args:
        items: What is gone through.
        rows: Items a batch, at most; no more than this are asked for again after a batch was halved.
        run: Handles one batch, and leaves nothing of one that it fails at.
        on_done: Told how many items are done.

    Raises:
        RuntimeError: There is no memory for a single row (what `is_out_of_memory` knows), or `run` failed otherwise.
    """
    done = 0
    while done < len(items):
        batch = items[done : done + rows]
        if _fits(run, batch):
            done += len(batch)
            on_done(done)
        else:
            rows = len(batch) // 2
            if torch.cuda.is_available():
                torch.cuda.empty_cache()


def _fits(run: Callable[[Sequence[Item]], None], batch: Sequence[Item]) -> bool:
    """Run a batch; False where there was no memory for several rows. Its tensors are gone by then."""
    try:
        run(batch)
    except Exception as error:
        if len(batch) == 1 or not is_out_of_memory(error):
            raise
        return False
    return True
