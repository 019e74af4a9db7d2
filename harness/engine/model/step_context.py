"""Context of one decoding step, shared by its blocks: cache, attention mask, rotary angles.

Shape suffixes: B rows of the batch, A rows running at a block, T new positions, D model width, H query heads.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from exitbench.harness.engine.model.cache import Cache
from exitbench.harness.engine.model.positions import Rotary

Run = tuple[slice, slice]
"""Neighbouring rows of the batch: where they stand among the running rows, and in the batch."""


@dataclass(eq=False)
class StepContext:
    """One step of a batch, as `Transformer.embed` begins it.

    Attributes:
        cache: Keys and values of the batch.
        start: Position in the cache of the first that is run.
        embedding_BD: Embedding of the newest position of every row.
        bias: Mask and position bias of the positions, [1 or B, 1 or H, T, start + T]; None without.
        is_causal: Whether the positions see those before them and no other mask is needed.
        rotary: Angles of the positions; None without rotary positions.
    """

    cache: Cache
    start: int
    embedding_BD: Tensor | None = None
    bias: Tensor | None = None
    is_causal: bool = False
    rotary: Rotary | None = None
    _runs: tuple[Tensor, list[Run]] | None = None

    def runs(self, rows_A: Tensor) -> list[Run]:
        """The running rows, ascending, as stretches of neighbours: their keys and values need no copy."""
        if self._runs is None or self._runs[0] is not rows_A:
            starts: list[tuple[int, int]] = []  # place among the running rows, and in the batch
            rows = rows_A.tolist()
            for i, row in enumerate(rows):
                if not i or row != rows[i - 1] + 1:
                    starts.append((i, row))
            ends = [*(i for i, _ in starts[1:]), len(rows)]
            pairs = zip(starts, ends, strict=True)
            self._runs = rows_A, [(slice(i, end), slice(row, row + end - i)) for (i, row), end in pairs]
        return self._runs[1]
