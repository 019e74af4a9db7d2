"""Keys and values of a batch being decoded, and what the blocks of a step share.

Shape suffixes: B rows of the batch, A rows running at a block, N tokens of several rows, T new positions, S source
positions, D model width, G key/value heads, K head size, L decoder blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from exitbench.harness.engine.model.positions import Places, Rotary, relative_bias, rotate_, rows_of

if TYPE_CHECKING:
    from exitbench.harness.engine.model.model import Transformer
    from exitbench.harness.engine.static.step import StaticStep

KV = tuple[Tensor, Tensor]
"""Keys and values of one block, [B, G, S, K] each."""


def halves(kv: Tensor) -> KV:
    """Keys and values out of [B, 2G, S, K]."""
    k, v = kv.chunk(2, dim=1)
    return k, v


Run = tuple[slice, slice]
"""Neighbouring rows of the batch: where they stand among the running rows, and in the batch."""

Skipped = tuple[int, Tensor, Tensor | None]
"""Blocks executed, the state to copy [A, D] and the rows (None: all) of tokens whose other blocks are skipped."""


@dataclass
class Waiting:
    """A token with keys and values of blocks 1..done only.

    Attributes:
        place: Its position in the cache.
        done: Blocks whose keys and values are written.
        state_D: State that the next block takes in.
        embedding_D: Its embedding, for policies that run it again.
    """

    place: int
    done: int
    state_D: Tensor
    embedding_D: Tensor


class Cache:
    """Keys and values of one batch being decoded, preallocated for ``room`` decoder positions.

    All rows stand at the same cache position; prompts of decoder-only models are padded on the left.
    """

    def __init__(self, model: Transformer, n_rows: int, room: int) -> None:
        arch = model.arch
        self.model = model
        self.length = 0
        shape = (arch.n_blocks, n_rows, 2 * arch.n_kv_heads, room, arch.head_dim)
        self.self_kv = torch.empty(shape, dtype=model.dtype, device=model.device)  # a row's keys, then its values
        self.cross_kv: Tensor | None = None  # the same of the source, [L, B, 2G, S, K]
        self._by_block: dict[str, tuple[Tensor, list[KV]]] = {}  # views of the two, made once
        self.source_mask: Tensor | None = None  # [B, 1, 1, S], additive; None without padding
        self.padding_B: Tensor | None = None  # left padding of each row; None without
        self.waiting: list[list[Waiting]] = [[] for _ in range(n_rows)]  # tokens whose skipped blocks are put off
        self.places: tuple[list[list[int]], Places] | None = None  # where the step ran waiting tokens last
        self.step_embedding_BD: Tensor | None = None  # of the token being decoded
        self.reversed_relative: Tensor | None = None  # [1, H, 1, room]: bias of distances room-1..0
        self.step_bias: Tensor | None = None  # of the positions being run, [1 or B, 1 or H, T, length + T]
        self.step_is_causal = False  # whether the new positions see those before them and no other mask is needed
        self.step_rotary: Rotary | None = None
        self.static: StaticStep | None = None  # what runs blocks while all rows do; None: nothing else than the model
        self._skipped: list[Skipped] = []  # of the step; by exit layer, the first first
        self._runs: tuple[Tensor, list[Run]] | None = None
        if (table := model.weights.relative_bias) is not None:
            keys = torch.arange(room, device=model.device)
            self.reversed_relative = relative_bias(arch, table, keys[-1:], keys)

    @property
    def n_rows(self) -> int:
        """Rows of the batch."""
        return self.self_kv.shape[1]

    @property
    def room(self) -> int:
        """Decoder positions there is space for."""
        return self.self_kv.shape[3]

    def make_cross_kv(self, n_source: int) -> Tensor:
        """Make space for keys and values of the source: [L, B, 2G, S, K]."""
        n_blocks, n_rows, heads, _, size = self.self_kv.shape
        self.cross_kv = self.self_kv.new_empty((n_blocks, n_rows, heads, n_source, size))
        return self.cross_kv

    def keys_and_values(self, block: int, end: int) -> KV:
        """Those of a block at positions 0..end-1."""
        k, v = self._views("self", self.self_kv)[block - 1]
        return k.narrow(2, 0, end), v.narrow(2, 0, end)

    def source_keys_and_values(self, block: int) -> KV:
        """Those of a block's cross-attention."""
        assert self.cross_kv is not None, "there is an encoder"
        return self._views("cross", self.cross_kv)[block - 1]

    def _views(self, name: str, kv: Tensor) -> list[KV]:
        made = self._by_block.get(name)
        if made is None or made[0] is not kv:
            k, v = kv.chunk(2, dim=2)
            made = self._by_block[name] = kv, list(zip(k.unbind(), v.unbind(), strict=True))
        return made[1]

    def keep(self, rows: Tensor) -> None:
        """Keep only these rows (finished ones leave the batch)."""
        self._by_block.clear()
        self.static = None
        self.self_kv = self.self_kv.index_select(1, rows)
        if self.cross_kv is not None:
            self.cross_kv = self.cross_kv.index_select(1, rows)
        if self.source_mask is not None:
            self.source_mask = self.source_mask.index_select(0, rows)
        if self.padding_B is not None:
            self.padding_B = self.padding_B.index_select(0, rows)
        if any(self.waiting):
            self.waiting = [self.waiting[row] for row in rows.tolist()]
        else:  # nothing to look up, so the rows need not be known on the host
            self.waiting = [[] for _ in range(len(rows))]

    def drop_newest(self, dropped_B: Sequence[int]) -> None:
        """Forget the newest positions of each row, so many; rows with more of them move right to end where others do.

        Nothing may wait in a row that loses any.
        """
        least = min(dropped_B)
        self.length -= least
        for row, dropped in enumerate(dropped_B):
            if shift := dropped - least:
                kept = self.self_kv[:, row, :, : self.length - shift].clone()
                self.self_kv[:, row, :, shift : self.length] = kept
        if max(dropped_B) > least:
            shifts_B = torch.tensor([dropped - least for dropped in dropped_B], device=self.self_kv.device)
            self.padding_B = shifts_B if self.padding_B is None else self.padding_B + shifts_B

    def make_room(self) -> None:
        """Drop what padding all rows share if no position is left: rows were cut, and longer ones have ended."""
        if self.length < self.room:
            return
        assert self.padding_B is not None, "a row without padding ends before the room does"
        shared = int(self.padding_B.min())
        self.self_kv[..., : self.length - shared, :] = self.self_kv[..., shared : self.length, :].clone()
        self.length -= shared
        self.padding_B = self.padding_B - shared
        for token in (token for tokens in self.waiting for token in tokens):
            token.place -= shared

    def runs(self, rows_A: Tensor) -> list[Run]:
        """The running rows, ascending, as stretches of neighbours: their keys and values need no copy."""
        if self._runs is None or self._runs[0] is not rows_A:
            starts: list[tuple[int, int]] = []  # place among the running rows, and in the batch
            rows = rows_A.tolist()
            for at, row in enumerate(rows):
                if not at or row != rows[at - 1] + 1:
                    starts.append((at, row))
            ends = [*(at for at, _ in starts[1:]), len(rows)]
            pairs = zip(starts, ends, strict=True)
            self._runs = rows_A, [(slice(at, end), slice(row, row + end - at)) for (at, row), end in pairs]
        return self._runs[1]

    def fill_from_state(self, block: int, hidden_AD: Tensor, rows_A: Tensor | None) -> None:
        """Have keys and values of blocks block+1..L at the current position projected from one state, as the step ends.

        Args:
            block: Blocks that were executed, 0..L-1; no fewer than told before in this step.
            hidden_AD: The state to copy, not normalised.
            rows_A: Rows of the batch; None means all.
        """
        assert not self._skipped or block >= self._skipped[-1][0], "rows leave in the order of blocks"
        self._skipped.append((block, hidden_AD, rows_A))

    def end_step(self) -> None:
        """Fill the cache of skipped blocks and move on to the next position."""
        if len(self._skipped) == 1:
            self._fill_at_once(*self._skipped[0])
        elif self._skipped:
            self._fill_block_by_block(self._skipped)
        self._skipped.clear()
        self.length += 1

    def _fill_at_once(self, block: int, hidden_AD: Tensor, rows_A: Tensor | None) -> None:
        """One product for all blocks."""
        arch = self.model.arch
        kv = self.model.skip_kv(block)(self.model.normalise(hidden_AD))
        kv = kv.view(len(kv), arch.n_blocks - block, 2 * arch.n_kv_heads, arch.head_dim)
        if self.step_rotary is not None:
            cos, sin = (rows_of(angles, rows_A) for angles in self.step_rotary)
            rotate_(kv[:, :, : arch.n_kv_heads], (cos, sin))
        target = self.self_kv[block:, :, :, self.length]
        if rows_A is None:
            target.copy_(kv.transpose(0, 1))
        else:
            target[:, rows_A] = kv.transpose(0, 1)

    def _fill_block_by_block(self, skipped: Sequence[Skipped]) -> None:
        """One product a block for the rows that had left before it, so that its weights are read once."""
        model, heads = self.model, self.model.arch.n_kv_heads
        normed_ND = model.normalise(torch.cat([hidden_AD for _, hidden_AD, _ in skipped]))
        every_row = torch.arange(self.n_rows, device=normed_ND.device)
        rows_N = torch.cat([every_row if rows_A is None else rows_A for *_, rows_A in skipped])
        angles = None if self.step_rotary is None else [rows_of(angles, rows_N) for angles in self.step_rotary]
        for block in range(skipped[0][0] + 1, model.n_blocks + 1):
            n = sum(len(hidden_AD) for exit_layer, hidden_AD, _ in skipped if exit_layer < block)
            kv = model.block_kv(block)(normed_ND[:n]).view(n, 1, 2 * heads, -1)
            if angles is not None:
                rotate_(kv[:, :, :heads], (angles[0][:n], angles[1][:n]))
            self.self_kv[block - 1, rows_N[:n], :, self.length] = kv[:, 0]

    def run_rest(self, block: int, hidden_AD: Tensor, rows_A: Tensor | None) -> Tensor:
        """Run blocks block+1..L at the current position; returns the state after block L, [A, D]."""
        for deeper in range(block + 1, self.model.n_blocks + 1):
            hidden_AD = self.model.block(deeper, hidden_AD, self, rows_A)
        return hidden_AD

    def defer(self, block: int, hidden_AD: Tensor, rows_A: Tensor | None) -> None:
        """Let rows that leave after ``block`` wait with their states for a later token to run deeper blocks."""
        assert self.step_embedding_BD is not None, "a step begins with an embedding"
        rows = range(self.n_rows) if rows_A is None else rows_A.tolist()
        for state_D, row in zip(hidden_AD, rows, strict=True):
            self.waiting[row].append(Waiting(self.length, block, state_D, self.step_embedding_BD[row]))

    def write_projected(self, block: int, states_ND: Tensor, rows_N: Tensor, places_N: Tensor) -> None:
        """Write keys and values of one block at earlier positions, projected from states [N, D]."""
        arch = self.model.arch
        kv = self.model.block_kv(block)(self.model.normalise(states_ND))
        kv = kv.view(-1, 1, 2 * arch.n_kv_heads, arch.head_dim)
        if (rotary := self.model.rotary_at(self, rows_N, places_N[:, None])) is not None:
            rotate_(kv[:, :, : arch.n_kv_heads], rotary)
        self.self_kv[block - 1, rows_N, :, places_N] = kv[:, 0]
