"""Filling the keys and values of skipped blocks: what KV policies ask for as rows leave (`DecoderCache`).

They are projected from the exit state as the step ends, or the blocks are run after all, or they are left to a later
token (`deferred`).

Shape suffixes: A rows that leave a block, N tokens of several rows, D model width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from exitbench.harness.engine.model.cache import DeferredToken
from exitbench.harness.engine.model.positions import rotate_, rows_of

if TYPE_CHECKING:
    from exitbench.harness.engine.model.cache import Cache
    from exitbench.harness.engine.model.model import Transformer
    from exitbench.harness.engine.model.step_context import StepContext

Skipped = tuple[int, Tensor, Tensor | None]
"""Blocks executed, the state to copy [A, D] and the rows (None: all) of tokens whose other blocks are skipped."""


class SkippedBlocks:
    """Blocks that the tokens of one step skip; satisfies the `DecoderCache` protocol of the methods."""

    def __init__(self, model: Transformer, context: StepContext) -> None:
        self.model, self.context = model, context
        self._to_fill: list[Skipped] = []  # by exit layer, the first first

    def fill_from_state(self, block: int, hidden_AD: Tensor, rows_A: Tensor | None) -> None:
        """Have keys and values of blocks block+1..L at the current position projected from one state, as the step ends.

        Args:
            block: Blocks that were executed, 0..L-1; no fewer than told before in this step.
            hidden_AD: The state to copy, not normalised.
            rows_A: Rows of the batch; None means all.
        """
        assert not self._to_fill or block >= self._to_fill[-1][0], "rows leave in the order of blocks"
        self._to_fill.append((block, hidden_AD, rows_A))

    def run_rest(self, block: int, hidden_AD: Tensor, rows_A: Tensor | None) -> Tensor:
        """Run blocks block+1..L at the current position; returns the state after block L, [A, D]."""
        for deeper in range(block + 1, self.model.n_blocks + 1):
            hidden_AD = self.model.block(deeper, hidden_AD, self.context, rows_A)
        return hidden_AD

    def defer(self, block: int, hidden_AD: Tensor, rows_A: Tensor | None) -> None:
        """Let rows that leave after ``block`` wait with their states for a later token to run deeper blocks."""
        cache, embedding_BD = self.context.cache, self.context.embedding_BD
        assert embedding_BD is not None, "a step begins with an embedding"
        rows = range(cache.n_rows) if rows_A is None else rows_A.tolist()
        for state_D, row in zip(hidden_AD, rows, strict=True):
            cache.waiting[row].append(DeferredToken(cache.length, block, state_D, embedding_BD[row]))

    def fill(self) -> None:
        """Project what was asked for, at the end of the step."""
        if len(self._to_fill) == 1:
            self._fill_at_once(*self._to_fill[0])
        elif self._to_fill:
            self._fill_block_by_block(self._to_fill)

    def _fill_at_once(self, block: int, hidden_AD: Tensor, rows_A: Tensor | None) -> None:
        """One product for all blocks."""
        model, cache, arch = self.model, self.context.cache, self.model.arch
        kv = model.skip_kv(block)(model.normalise(hidden_AD))
        kv = kv.view(len(kv), arch.n_blocks - block, 2 * arch.n_kv_heads, arch.head_dim)
        if self.context.rotary is not None:
            cos, sin = (rows_of(angles, rows_A) for angles in self.context.rotary)
            rotate_(kv[:, :, : arch.n_kv_heads], (cos, sin))
        target = cache.self_kv[block:, :, :, cache.length]
        if rows_A is None:
            target.copy_(kv.transpose(0, 1))
        else:
            target[:, rows_A] = kv.transpose(0, 1)

    def _fill_block_by_block(self, skipped: Sequence[Skipped]) -> None:
        """One product a block for the rows that had left before it, so that its weights are read once."""
        model, cache, heads = self.model, self.context.cache, self.model.arch.n_kv_heads
        normed_ND = model.normalise(torch.cat([hidden_AD for _, hidden_AD, _ in skipped]))
        every_row = torch.arange(cache.n_rows, device=normed_ND.device)
        rows_N = torch.cat([every_row if rows_A is None else rows_A for *_, rows_A in skipped])
        rotary = self.context.rotary
        angles = None if rotary is None else [rows_of(angles, rows_N) for angles in rotary]
        for block in range(skipped[0][0] + 1, model.n_blocks + 1):
            n = sum(len(hidden_AD) for exit_layer, hidden_AD, _ in skipped if exit_layer < block)
            kv = model.block_kv(block)(normed_ND[:n]).view(n, 1, 2 * heads, -1)
            if angles is not None:
                rotate_(kv[:, :, :heads], (angles[0][:n], angles[1][:n]))
            cache.self_kv[block - 1, rows_N[:n], :, cache.length] = kv[:, 0]


def write_projected(
    model: Transformer, cache: Cache, block: int, states_ND: Tensor, rows_N: Tensor, places_N: Tensor
) -> None:
    """Write keys and values of one block at earlier positions, projected from states [N, D]."""
    arch = model.arch
    kv = model.block_kv(block)(model.normalise(states_ND))
    kv = kv.view(-1, 1, 2 * arch.n_kv_heads, arch.head_dim)
    if (rotary := model.rotary_at(cache, rows_N, places_N[:, None])) is not None:
        rotate_(kv[:, :, : arch.n_kv_heads], rotary)
    cache.self_kv[block - 1, rows_N, :, places_N] = kv[:, 0]
