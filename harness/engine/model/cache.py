"""Key-value cache of a batch being decoded, and deferred tokens: they exited early, and run their skipped blocks later.

Shape suffixes: B rows of the batch, A rows running at a block, N tokens of several rows, T new positions, S source
positions. Sizes of the model: D model width, G key/value heads, K head size, L decoder blocks.
"""

from __future__ import annotations

import copy
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from exitbench.harness.engine.model.positions import additive, relative_bias, rows_of

if TYPE_CHECKING:
    from exitbench.harness.engine.model.graphs import BlockGraphs
    from exitbench.harness.engine.model.model import Transformer

ALIGNED = 8
"""Attention kernels of a GPU read masks whose rows are a multiple of this many positions long; others are copied."""

KV = tuple[Tensor, Tensor]
"""Keys and values of one block, [B, G, S, K] each."""


def halves(kv: Tensor) -> KV:
    """Split a tensor [B, 2G, S, K] into keys and values, [B, G, S, K] each: G heads, S positions, head size K."""
    k, v = kv.chunk(2, dim=1)
    return k, v


@dataclass(eq=False)
class DeferredToken:
    """Token that exited early, and whose skipped blocks run later (are deferred).

    Only blocks 1..n_blocks_run have its keys and values so far.

    Attributes:
        place: Position of the token in the cache.
        n_blocks_run: Number of blocks that have run, and have written keys and values.
        states: States after block ``n_blocks_run`` of all tokens that ran it together, [..., D].
        index: Indices of this token's state in the leading dimensions of ``states``.
        embedding_D: Embedding of the token, if the KV policy reruns it from block 1; else None.
        logits_V: Logits of the token after the last block; None if not computed yet.
    """

    place: int
    n_blocks_run: int
    states: Tensor
    index: tuple[int, ...]
    embedding_D: Tensor | None = None
    logits_V: Tensor | None = None

    @property
    def state_D(self) -> Tensor:
        """State of the token after the last block that it ran, [D]: the input of its next block."""
        return self.states[self.index]

    def ran(self, n_blocks_run: int, states: Tensor, index: tuple[int, ...]) -> None:
        """Record that the token has run blocks 1..n_blocks_run, and that its state after them is ``states[index]``."""
        self.n_blocks_run, self.states, self.index = n_blocks_run, states, index


class SharedSources:
    """Assignment of batch rows to encoder inputs (sources), for rows that share a source's keys and values.

    Cross-attention treats rows with the same source as several query positions (slots) of one row.

    Attributes:
        sources_B: Index of each row's source, ascending from 0 without gaps.
        max_rows: Largest number of rows of one source.
        slots_B: Slot of each row: ``max_rows`` times its source, plus its index among the rows of that source.
        n_sources: Number of sources.
    """

    def __init__(self, sources_B: Sequence[int], device: torch.device) -> None:
        self.sources_B = list(sources_B)
        rows_of = [list(rows) for _, rows in itertools.groupby(range(len(sources_B)), sources_B.__getitem__)]
        self.n_sources, self.max_rows = len(rows_of), max(map(len, rows_of))
        slots = [source * self.max_rows + slot for source, rows in enumerate(rows_of) for slot in range(len(rows))]
        self.slots_B = torch.tensor(slots, device=device)


class DecodingCache(ABC):
    """Base class: KV cache of a batch being decoded, with its deferred tokens (whose skipped blocks run later).

    All rows end at the same position. So prompts of decoder-only models are padded on the left, and rows that lose
    draft tokens are shifted to the right.

    Attributes:
        length: Number of filled positions.
        padding_B: Number of left-padding positions of each row; None without padding.
        waiting: Deferred tokens of each row.
        captures: Whether blocks may be captured as CUDA graphs; then no output of a block may be read after its step.
    """

    joins: ClassVar[bool] = False
    """Whether rows of another cache can be added (`join`)."""

    captures: bool = False
    length: int
    padding_B: Tensor | None
    waiting: list[list[DeferredToken]]

    @property
    @abstractmethod
    def n_rows(self) -> int:
        """Number of rows of the batch."""

    @property
    @abstractmethod
    def room(self) -> int:
        """Number of decoder positions that are allocated, filled or not."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Device of the cached keys and values."""

    @abstractmethod
    def _shallow_copy(self) -> Self:
        """Return a copy of the object that shares all tensors; selecting rows in one does not change the other."""

    @abstractmethod
    def _select(self, rows: Tensor) -> None:
        """Keep only the rows with these indices in the per-row tensors.

        Left padding and deferred tokens are left to `keep`, which calls this method.
        """

    @abstractmethod
    def _copy_positions(self, rows: int | slice, source: slice, target: slice) -> None:
        """Copy keys and values of the batch rows ``rows`` from the positions ``source`` to the positions ``target``."""

    def keep(self, rows: Tensor) -> None:
        """Keep only the batch rows with these indices, for example because the answers of the other rows have ended."""
        self._select(rows)
        if self.padding_B is not None:
            self.padding_B = self.padding_B.index_select(0, rows)
        if any(self.waiting):
            self.waiting = [self.waiting[row] for row in rows.tolist()]
        else:  # nothing to look up, so no device synchronization
            self.waiting = [[] for _ in range(len(rows))]

    def repeat_rows(self, rows: Sequence[int]) -> None:
        """Replace the batch by copies of the rows with these indices; an index may be repeated.

        The batch must not have deferred tokens.
        """
        assert not any(self.waiting), "what waits belongs to one row"
        self.keep(torch.tensor(rows, device=self.device))

    def join(self, other: Self, new_tokens: int) -> None:
        """Append the rows of another cache to this batch; afterwards all rows end at the same position.

        Args:
            other: Cache of the same model; must not be used afterwards.
            new_tokens: Number of free positions to allocate, for tokens that are still to be decoded.

        Raises:
            NotImplementedError: This kind of cache cannot append rows (`joins` is False).
        """
        raise NotImplementedError("this cache cannot take in rows")

    def copied(self, rows: Tensor) -> Self:
        """Return a new cache with copies of the rows with these indices, and of their deferred tokens.

        An index may be repeated. This cache does not change.
        """
        twin = self._shallow_copy()
        twin.waiting = self.waiting
        twin.keep(rows)
        twin.waiting = [[replace(token) for token in tokens] for tokens in twin.waiting]
        return twin

    def drop_newest(self, dropped_B: Sequence[int]) -> None:
        """Drop the newest ``dropped_B[row]`` positions of each row, for example of rejected drafts.

        Then shift rows to the right, so that all rows end at the same position. Rows that lose positions must not have
        deferred tokens.
        """
        least = min(dropped_B)
        self.length -= least
        for row, dropped in enumerate(dropped_B):
            if shift := dropped - least:
                self._copy_positions(row, slice(self.length - shift), slice(shift, self.length))
        if max(dropped_B) > least:
            shifts_B = torch.tensor([dropped - least for dropped in dropped_B], device=self.device)
            self.padding_B = shifts_B if self.padding_B is None else self.padding_B + shifts_B

    def evict(self, block: int, rows_A: Tensor | None) -> None:
        """Mask the position of the current step for these rows (None: all) in blocks block+1..L, which they skip.

        Later tokens then do not attend to it in these blocks.
        """
        raise NotImplementedError("this cache cannot mask a position in some blocks")

    def make_room(self) -> None:
        """If the cache is full, free positions: drop the left-padding positions that all rows have in common.

        If the cache is full, every remaining row has left padding, for example from dropped drafts. A row without any
        would have reached its maximum length.
        """
        if self.length < self.room:
            return
        assert self.padding_B is not None, "a row without padding ends before the room does"
        shared = int(self.padding_B.min())
        self._copy_positions(slice(None), slice(shared, self.length), slice(self.length - shared))
        self.length -= shared
        self.padding_B = self.padding_B - shared
        for token in (token for tokens in self.waiting for token in tokens):
            token.place -= shared


class Cache(DecodingCache):
    """Lean engine's KV cache of one batch being decoded, preallocated for ``room`` decoder positions.

    Attributes:
        shared: Assignment of rows to encoder inputs (sources) that they share; None if each row has its own.
        by_distance: Additive attention bias of keys by their distance to the query: first distances room-1 to 0, then
            later keys, which are masked. Shape [1, 1 or H, 1, 2 room - 1], for H heads.
        graphs: CUDA graphs of blocks that run with this cache; None before the first.
        depth_BS: Last block in which each position is attended to; None if all are attended to in every block.
    """

    joins: ClassVar[bool] = True

    def __init__(self, model: Transformer, n_rows: int, room: int) -> None:
        arch = model.arch
        self._model = model
        self.length = 0
        if model.device.type != "cpu":
            room = math.ceil(room / ALIGNED) * ALIGNED
        shape = (arch.n_blocks, n_rows, 2 * arch.n_kv_heads, room, arch.head_dim)
        self.self_kv = torch.empty(shape, dtype=model.dtype, device=model.device)  # a row's keys, then its values
        self.graphs: BlockGraphs | None = None
        self.cross_kv: Tensor | None = None  # the source's, [L, B, 2G, S, K]; one row per source if rows share sources
        self.shared: SharedSources | None = None
        self._by_block: dict[str, tuple[Tensor, list[KV]]] = {}  # views of self_kv and cross_kv, cached
        self.source_mask: Tensor | None = None  # [B, 1, 1, S], additive; None without padding
        self.padding_B = None
        self.depth_BS: Tensor | None = None
        self.waiting = [[] for _ in range(n_rows)]
        self.by_distance = self._by_distance(room)

    def _by_distance(self, room: int) -> Tensor:
        table, past = self._model.weights.relative_bias, self.self_kv.new_zeros(1, 1, 1, room)
        if table is not None:
            keys = torch.arange(room, device=self.device)
            past = relative_bias(self._model.arch, table, keys[-1:], keys)
        return torch.cat((past, torch.full_like(past[..., 1:], torch.finfo(past.dtype).min)), dim=-1)

    def causal_bias(self, start: int, end: int) -> Tensor:
        """Return the additive causal mask, with position bias, of keys 0..end-1 for queries at start..end-1.

        Shape [1, 1 or H, T, end] for T queries and H heads; left padding is not masked.
        """
        if end - start == 1:
            return self.by_distance[..., self.room - end : self.room]
        windows = self.by_distance[..., 0, :].unfold(-1, end, 1)  # a later position sees all keys one further away
        return windows[:, :, self.room - end : self.room - start].flip(-2)

    def bias_at(self, place: int) -> Tensor:
        """Return the additive mask, with position bias, of all ``room`` keys for a query at position ``place``.

        Keys that are padding or come after ``place`` are masked. Shape [1 or B, 1 or H, 1, room], for H heads.
        """
        bias = self.by_distance[..., self.room - 1 - place : 2 * self.room - 1 - place]
        if self.padding_B is None:
            return bias.clone()
        keys = torch.arange(self.room, device=self.device)
        return bias + additive(keys[None, :] >= self.padding_B[:, None], bias.dtype)[:, None, None, :]

    def evict(self, block: int, rows_A: Tensor | None) -> None:
        """Mask the position of the current step for these rows (None: all) in blocks block+1..L, which they skip.

        Later tokens then do not attend to it in these blocks.
        """
        rows = slice(None) if rows_A is None else rows_A
        if self.depth_BS is None:
            self.depth_BS = self._full_depths(self.n_rows, self.room)
        self.depth_BS[rows, self.length] = block
        self.self_kv[block:, rows, :, self.length] = 0  # attention weights are 0, but 0 times NaN would be NaN

    def _full_depths(self, n_rows: int, room: int) -> Tensor:
        return torch.full((n_rows, room), self.self_kv.shape[0], device=self.device)

    def masked(self, bias: Tensor | None, block: int, end: int, rows_A: Tensor | None) -> Tensor | None:
        """Return ``bias`` of keys 0..end-1 (None: no bias), with the positions masked that were evicted from ``block``.

        ``rows_A`` are the batch rows of the bias; None means all. The result is None if nothing is masked or biased.
        """
        if self.depth_BS is None:
            return bias
        is_there_AS = rows_of(self.depth_BS, rows_A)[:, :end] >= block
        mask = additive(is_there_AS, self.self_kv.dtype)[:, None, None, :]
        return mask if bias is None else bias + mask

    @property
    def n_rows(self) -> int:
        """Number of rows of the batch."""
        return self.self_kv.shape[1]

    @property
    def room(self) -> int:
        """Number of decoder positions that are allocated."""
        return self.self_kv.shape[3]

    @property
    def device(self) -> torch.device:
        """Device of the cached keys and values."""
        return self.self_kv.device

    def make_cross_kv(self, n_source: int) -> Tensor:
        """Allocate cross-attention keys and values for ``n_source`` encoder positions; return this empty tensor.

        Its shape is [L, B, 2G, S, K]: blocks, rows, key and value heads, source positions, head size.
        """
        n_blocks, n_rows, heads, _, size = self.self_kv.shape
        self.cross_kv = self.self_kv.new_empty((n_blocks, n_rows, heads, n_source, size))
        return self.cross_kv

    def keys_and_values(self, block: int, end: int) -> KV:
        """Return the self-attention keys and values of a block at positions 0..end-1, as views [B, G, end, K]."""
        k, v = self._views("self", self.self_kv)[block - 1]
        return k.narrow(2, 0, end), v.narrow(2, 0, end)

    def source_keys_and_values(self, block: int) -> KV:
        """Return the cross-attention keys and values of a block for all rows (or shared sources), [B, G, S, K] each."""
        assert self.cross_kv is not None, "there is an encoder"
        return self._views("cross", self.cross_kv)[block - 1]

    def _views(self, name: str, kv: Tensor) -> list[KV]:
        cached = self._by_block.get(name)
        if cached is None or cached[0] is not kv:
            k, v = kv.chunk(2, dim=2)
            cached = self._by_block[name] = kv, list(zip(k.unbind(), v.unbind(), strict=True))
        return cached[1]

    def _shallow_copy(self) -> Self:
        twin = copy.copy(self)
        twin._by_block, twin.graphs, twin.captures = {}, None, False
        return twin

    def copied_with_room(self, model: Transformer, rows: Tensor, room: int) -> Cache:
        """Return a new cache with copies of the rows with these indices, allocated for ``room`` decoder positions.

        Deferred tokens are not copied.
        """
        wide = Cache(model, len(rows), room)
        wide.self_kv[..., : self.length, :] = self.self_kv[..., : self.length, :].index_select(1, rows)
        wide.length = self.length
        if self.padding_B is not None:
            wide.padding_B = self.padding_B.index_select(0, rows)
        if self.depth_BS is not None:
            wide.depth_BS = self._full_depths(len(rows), room)
            wide.depth_BS[:, : self.length] = self.depth_BS[rows, : self.length]
        if self.cross_kv is not None:
            wide.cross_kv = self.cross_kv.index_select(1, rows)
        if self.source_mask is not None:
            wide.source_mask = self.source_mask.index_select(0, rows)
        return wide

    def _select(self, rows: Tensor) -> None:
        self._forget_views()
        self.self_kv = self.self_kv.index_select(1, rows)
        if self.depth_BS is not None:
            self.depth_BS = self.depth_BS.index_select(0, rows)
        if self.shared is not None:
            self._keep_sources([self.shared.sources_B[row] for row in rows.tolist()])
            return
        if self.cross_kv is not None:
            self.cross_kv = self.cross_kv.index_select(1, rows)
        if self.source_mask is not None:
            self.source_mask = self.source_mask.index_select(0, rows)

    def _keep_sources(self, sources_B: Sequence[int]) -> None:
        """Set each row's encoder input (source), given by its present index; drop unused ones and renumber the rest."""
        assert self.cross_kv is not None, "there is an encoder"
        used = sorted(set(sources_B))
        if len(used) < self.cross_kv.shape[1]:
            used_P = torch.tensor(used, device=self.device)
            self.cross_kv = self.cross_kv.index_select(1, used_P)
            if self.source_mask is not None:
                self.source_mask = self.source_mask.index_select(0, used_P)
        places = {source: place for place, source in enumerate(used)}
        self.shared = SharedSources([places[source] for source in sources_B], self.device)

    def repeat_rows(self, rows: Sequence[int]) -> None:
        """Replace the batch by copies of the rows with these indices, in ascending order; an index may be repeated.

        Keys and values of an encoder input are not copied: all copies of a row share them.
        """
        if self.cross_kv is None:
            return super().repeat_rows(rows)
        self._forget_views()
        assert self.length == 0, "a decoder that has an encoder begins with nothing"
        self.self_kv = self.self_kv.new_empty((self.self_kv.shape[0], len(rows), *self.self_kv.shape[2:]))
        self.waiting = [[] for _ in rows]
        self._keep_sources(rows)

    def join(self, other: Cache, new_tokens: int) -> None:
        """Append the rows of another cache, and allocate ``new_tokens`` free positions after them.

        First, left-padding positions that all rows of a cache have in common are dropped.
        """
        caches, n_rows = (self, other), [self.n_rows, other.n_rows]
        lengths = [cache.length - cache._common_padding() for cache in caches]
        length = max(lengths)
        room = length + new_tokens
        n_blocks, _, heads, _, size = self.self_kv.shape
        # Zeros: attention weights of padded positions are 0, but 0 times NaN would be NaN.
        self_kv = self.self_kv.new_zeros((n_blocks, sum(n_rows), heads, room, size))
        depth_BS = self._full_depths(sum(n_rows), room)
        first, padding = 0, []
        for cache, n_kept, n in zip(caches, lengths, n_rows, strict=True):
            spare = cache.length - n_kept
            self_kv[:, first : first + n, :, length - n_kept : length] = cache.self_kv[..., spare : cache.length, :]
            if cache.depth_BS is not None:
                depth_BS[first : first + n, length - n_kept : length] = cache.depth_BS[:, spare : cache.length]
            own_padding = torch.zeros(n, dtype=torch.long, device=self.device)
            padding.append((own_padding if cache.padding_B is None else cache.padding_B - spare) + length - n_kept)
            for token in (token for tokens in cache.waiting for token in tokens):
                token.place += length - n_kept - spare
            first += n
        self._join_sources(other, n_rows)
        self.depth_BS = None if self.depth_BS is None and other.depth_BS is None else depth_BS
        self.self_kv, self.length, self.padding_B = self_kv, length, torch.cat(padding)
        self.waiting = self.waiting + other.waiting
        self.by_distance = self._by_distance(room)
        self._forget_views()

    def _forget_views(self) -> None:
        """Drop cached views of the keys and values, and CUDA graphs, because their tensors are replaced."""
        self._by_block.clear()
        self.graphs = None

    def _common_padding(self) -> int:
        """Return the number of left-padding positions that all rows have in common."""
        return 0 if self.padding_B is None else int(self.padding_B.min())

    def _join_sources(self, other: Cache, n_rows: Sequence[int]) -> None:
        if self.cross_kv is None or other.cross_kv is None:
            return
        shared, n_sources = [self.shared, other.shared], self.cross_kv.shape[1]
        longest = max(self.cross_kv.shape[3], other.cross_kv.shape[3])
        self.source_mask = torch.cat([cache._mask_of(longest) for cache in (self, other)])
        padded = [F.pad(kv, (0, 0, 0, longest - kv.shape[3])) for kv in (self.cross_kv, other.cross_kv)]
        self.cross_kv = torch.cat(padded, dim=1)
        if any(shared):
            own_sources, other_sources = (
                range(n) if sharing is None else sharing.sources_B for sharing, n in zip(shared, n_rows, strict=True)
            )
            self.shared = SharedSources([*own_sources, *(n_sources + source for source in other_sources)], self.device)

    def _mask_of(self, longest: int) -> Tensor:
        """Return the additive mask of the encoder inputs, extended by masked positions to a length of ``longest``."""
        assert self.cross_kv is not None, "there is an encoder"
        n_sources, n_source = self.cross_kv.shape[1], self.cross_kv.shape[3]
        mask = self.source_mask
        if mask is None:
            mask = self.cross_kv.new_zeros((n_sources, 1, 1, n_source))
        return F.pad(mask, (0, longest - n_source), value=torch.finfo(mask.dtype).min)

    def _copy_positions(self, rows: int | slice, source: slice, target: slice) -> None:
        self.self_kv[:, rows, ..., target, :] = self.self_kv[:, rows, ..., source, :].clone()
        if self.depth_BS is not None:
            self.depth_BS[rows, target] = self.depth_BS[rows, source].clone()
