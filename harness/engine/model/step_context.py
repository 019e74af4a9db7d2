"""Context of one decoding step, shared by its blocks: cache, attention mask, rotary angles.

Shape suffixes: B rows of the batch, A rows running at a block, T new positions, D model width, H query heads.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from torch import Tensor

from exitbench.harness.engine.model.cache import Cache
from exitbench.harness.engine.model.positions import Rotary, rows_of

if TYPE_CHECKING:
    from exitbench.harness.engine.model.graphs import BlockGraphs

SlicePair = tuple[slice, slice]
"""Neighbouring rows of the batch: their slice among the running rows, and in the batch."""


class RowSubset:
    """Attention masks of the batch rows that still run blocks, cached until the set of these rows changes.

    Attributes:
        rows_A: Indices of these rows in the batch, ascending.
    """

    def __init__(self, context: StepContext, rows_A: Tensor) -> None:
        self._context = context
        self.rows_A = rows_A

    @cached_property
    def bias(self) -> Tensor | None:
        """Self-attention mask with position bias of these rows, [1 or A, 1 or H, T, start + T]; None if not needed."""
        return rows_of(self._context.bias, self.rows_A)

    @cached_property
    def source_mask(self) -> Tensor | None:
        """Cross-attention mask of these rows, [A, 1, 1, S]; None if no source is padded."""
        return rows_of(self._context.cache.source_mask, self.rows_A)

    @cached_property
    def contiguous_slices(self) -> list[SlicePair]:
        """Runs of these rows that are adjacent in the batch: (slice of these rows, slice of the batch) of each.

        Keys and values of a run are a slice of the batch's, so that they need no copy.
        """
        starts: list[tuple[int, int]] = []  # index among the running rows, and in the batch
        rows = self.rows_A.tolist()
        for i, row in enumerate(rows):
            if not i or row != rows[i - 1] + 1:
                starts.append((i, row))
        ends = [*(i for i, _ in starts[1:]), len(rows)]
        pairs = zip(starts, ends, strict=True)
        return [(slice(i, end), slice(row, row + end - i)) for (i, row), end in pairs]


@dataclass(eq=False)
class StepContext:
    """Data of one step that all blocks of a batch share, as `Transformer.embed` creates it.

    Attributes:
        cache: Keys and values of the batch.
        start: Cache position of the first of the step's T positions.
        embedding_BD: Embedding of the newest position of every row.
        bias: Additive attention mask with position bias of the step's positions, [1 or B, 1 or H, T, start + T]; None
            if not needed.
        is_causal: Whether attention needs a causal mask and nothing else.
        rotary: Rotary angles of the step's positions; None without rotary embedding.
        graphs: CUDA graphs of the batch's blocks; None if kernels are launched one by one.
        place: ``start`` as a tensor while a CUDA graph is captured (``bias`` then covers all cache positions); else
            None.
    """

    cache: Cache
    start: int
    embedding_BD: Tensor | None = None
    bias: Tensor | None = None
    is_causal: bool = False
    rotary: Rotary | None = None
    graphs: BlockGraphs | None = None
    place: Tensor | None = None
    _subset: RowSubset | None = None

    def subset(self, rows_A: Tensor) -> RowSubset:
        """Return the attention masks of the batch rows ``rows_A``, cached until called with another tensor object."""
        if self._subset is None or self._subset.rows_A is not rows_A:
            self._subset = RowSubset(self, rows_A)
        return self._subset
