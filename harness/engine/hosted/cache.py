"""Key-value cache of the hosted engine: rows of a batch at different depths, in transformers' own cache protocol.

Shape suffixes: B rows of the batch, A rows that run a block, S allocated positions, T new positions, N pairs of
row and position. Sizes of the model: G key/value heads, K head size, D encoder width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, EncoderDecoderCache

from exitbench.harness.engine.model.cache import DecodingCache


class StopAfterStore(Exception):  # no error: it ends a block early
    """Raised once a block's keys and values are stored, when its output is not needed."""


@dataclass(frozen=True)
class WritePositions:
    """Cache positions where a block writes keys and values, if these are not all positions at which it runs.

    Attributes:
        rows_N: Row of the batch for each position.
        running_N: Index of this batch row among the rows that run the block.
        places_N: Positions in the cache.
    """

    rows_N: Tensor
    running_N: Tensor
    places_N: Tensor


@dataclass
class BlockCallState:
    """Rows and positions of the block call in progress; one object, shared by the cache layers of all blocks.

    Attributes:
        rows_A: Rows of the batch that run the block; None means all.
        places: Positions to write; None means every new position of these rows.
        only_stores: Whether each block ends once its keys and values are stored, since its output is not needed.
    """

    rows_A: Tensor | None = None
    places: WritePositions | None = None
    only_stores: bool = False

    def rows_on(self, device: torch.device) -> Tensor | None:
        """Return ``rows_A`` on a device, such as that of a block's keys and values; None means all rows."""
        return self.rows_A if self.rows_A is None else self.rows_A.to(device)


class SelfLayer(CacheLayerMixin):  # type: ignore[misc]
    """Self-attention keys and values of one block, allocated for all rows and positions when the block first runs."""

    is_sliding = False  # all positions are kept; the model's own masks cut the window
    is_croppable = True

    def __init__(self, call_state: BlockCallState, n_rows: int, room: int) -> None:
        super().__init__()
        self.call_state, self.n_rows, self.room = call_state, n_rows, room
        self.length = 0
        self.kv: list[Tensor] = []  # keys and values, [B, G, S, K] each; their K may differ

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate the buffers for all rows and positions, with the head sizes of the block's first keys and values."""
        shapes = ((self.n_rows, x.shape[1], self.room, x.shape[3]) for x in (key_states, value_states))
        self.kv = [key_states.new_zeros(shape) for shape in shapes]
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write new keys and values of the running rows; return all keys and values that these rows attend to.

        Raises:
            StopAfterStore: The keys and values are written, and the block's output is not needed.
        """
        if not self.kv:
            self.lazy_initialization(key_states, value_states)
        start = self.length
        self.length = start + key_states.shape[2]
        for buffer, new in zip(self.kv, (key_states, value_states), strict=True):
            self._write(buffer, new, start)
        if self.call_state.only_stores:
            raise StopAfterStore
        keys, values = (buffer[:, :, : self.length] for buffer in self.kv)
        rows_A = self.call_state.rows_on(keys.device)
        return (keys, values) if rows_A is None else (keys.index_select(0, rows_A), values.index_select(0, rows_A))

    def _write(self, buffer: Tensor, new: Tensor, start: int) -> None:
        rows_A, places = self.call_state.rows_on(buffer.device), self.call_state.places
        if places is not None:
            rows_N, running_N, places_N = (
                index.to(buffer.device) for index in (places.rows_N, places.running_N, places.places_N)
            )
            buffer[rows_N, :, places_N] = new[running_N, :, places_N - start]
        elif rows_A is None:
            buffer.narrow(2, start, self.length - start).copy_(new)
        else:
            buffer[rows_A, :, start : self.length] = new

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return how many positions the next ``query_length`` positions can attend to, and the first of them, 0.

        They are the cached positions and the next ones themselves.
        """
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        """Return the number of positions cached for the block."""
        return self.length

    def get_max_length(self) -> int:
        """Return -1: no maximum length."""
        return -1


class SourceLayer(CacheLayerMixin):  # type: ignore[misc]
    """Cross-attention keys and values of one block, computed once per prompt and read by rows that run the block."""

    is_sliding = False
    is_croppable = True

    def __init__(self, call_state: BlockCallState) -> None:
        self.call_state = call_state
        self.kv: list[Tensor] = []
        self.is_initialized = False

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Do nothing: no buffers are preallocated."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Store the keys and values of the encoder inputs of all batch rows, and return them unchanged."""
        self.kv, self.is_initialized = [key_states, value_states], True
        return key_states, value_states

    def _of_running(self, which: int) -> Tensor | None:
        if not self.kv:
            return None
        rows_A = self.call_state.rows_on(self.kv[which].device)
        return self.kv[which] if rows_A is None else self.kv[which].index_select(0, rows_A)

    @property
    def keys(self) -> Tensor | None:
        """Cross-attention keys of the running rows; None before they are stored."""
        return self._of_running(0)

    @property
    def values(self) -> Tensor | None:
        """Cross-attention values of the running rows; None before they are stored."""
        return self._of_running(1)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the number of source positions that a block attends to, and the first one, 0."""
        return self.get_seq_length(), 0

    def get_seq_length(self) -> int:
        """Return the number of source positions; 0 before keys and values are stored."""
        return self.kv[0].shape[2] if self.kv else 0

    def get_max_length(self) -> int:
        """Return -1: no maximum length."""
        return -1


class HostedCache(DecodingCache):
    """Key-value cache of a batch that the hosted engine decodes.

    Attributes:
        past: transformers' cache object that holds ``layers`` and any cross-attention layers. It is passed to the model
            as ``past_key_values``.
        layers: Self-attention keys and values, one entry per block.
        call_state: Rows and positions of the block call in progress.
        fed_BS: Token ids fed so far, by position in the cache.
        source_BSD: The encoder's states; None in a decoder-only model.
        source_mask_BS: 1 at the tokens of each encoder input, 0 at padding; None in a decoder-only model.
    """

    def __init__(self, n_blocks: int, n_rows: int, room: int, device: torch.device, *, has_source: bool) -> None:
        self.length, self.padding_B = 0, None
        self.waiting = [[] for _ in range(n_rows)]
        self.call_state = BlockCallState()
        self.layers = [SelfLayer(self.call_state, n_rows, room) for _ in range(n_blocks)]
        self.fed_BS = torch.zeros(n_rows, room, dtype=torch.long, device=device)
        self.source_BSD: Tensor | None = None
        self.source_mask_BS: Tensor | None = None
        self.source_layers = [SourceLayer(self.call_state) for _ in range(n_blocks)] if has_source else []
        self.past: Any = Cache(layers=self.layers)
        if has_source:
            self.past = EncoderDecoderCache(self.past, Cache(layers=self.source_layers))
        self.windows: dict[tuple[int, int], Any] = {}  # window steps recorded in this step, by start and end

    def _shallow_copy(self) -> HostedCache:
        has_source = bool(self.source_layers)
        twin = HostedCache(len(self.layers), self.n_rows, self.room, self.device, has_source=has_source)
        twin.length, twin.padding_B, twin.fed_BS = self.length, self.padding_B, self.fed_BS
        twin.source_BSD, twin.source_mask_BS = self.source_BSD, self.source_mask_BS
        for copy, layer in zip(twin.layers, self.layers, strict=True):
            copy.kv, copy.is_initialized, copy.length = layer.kv, layer.is_initialized, layer.length
        for own_source, source in zip(twin.source_layers, self.source_layers, strict=True):
            own_source.kv, own_source.is_initialized = source.kv, source.is_initialized
        if has_source:
            twin.past.is_updated = dict(self.past.is_updated)
        return twin

    @property
    def n_rows(self) -> int:
        """Number of rows of the batch, B."""
        return self.fed_BS.shape[0]

    @property
    def room(self) -> int:
        """Number of decoder positions that the cache has space for, S."""
        return self.fed_BS.shape[1]

    @property
    def device(self) -> torch.device:
        """Device of the token ids; keys and values of a block are on the device of this block."""
        return self.fed_BS.device

    def set_position(self, position: int) -> None:
        """Set the number of cached positions of every block, so that the next keys are written at ``position``."""
        for layer in self.layers:
            layer.length = position

    def mask(self, end: int) -> Tensor:
        """Return a mask of 1 at the positions before ``end`` that are not padding, [B, end]."""
        mask_BS = torch.ones(self.n_rows, end, dtype=torch.long, device=self.device)
        if self.padding_B is not None:
            mask_BS = mask_BS * (torch.arange(end, device=self.device) >= self.padding_B[:, None])
        return mask_BS

    def positions(self, start: int, end: int) -> Tensor:
        """Return cache positions start to end - 1 as positions in each row's unpadded text, [B, end - start]."""
        places_BT = torch.arange(start, end, device=self.device).expand(self.n_rows, -1)
        return places_BT if self.padding_B is None else (places_BT - self.padding_B[:, None]).clamp(min=0)

    def _select(self, rows: Tensor) -> None:
        self.windows.clear()
        self.fed_BS = self.fed_BS.index_select(0, rows)
        for layer in self.layers:
            layer.n_rows = len(rows)
            layer.kv = [buffer.index_select(0, rows.to(buffer.device)) for buffer in layer.kv]
        for source in self.source_layers:
            source.kv = [buffer.index_select(0, rows.to(buffer.device)) for buffer in source.kv]
        if self.source_BSD is not None and self.source_mask_BS is not None:
            self.source_BSD = self.source_BSD.index_select(0, rows)
            self.source_mask_BS = self.source_mask_BS.index_select(0, rows)

    def _copy_positions(self, rows: int | slice, source: slice, target: slice) -> None:
        self.windows.clear()
        self.fed_BS[rows, target] = self.fed_BS[rows, source].clone()
        for layer in self.layers:
            for buffer in layer.kv:
                buffer[rows, ..., target, :] = buffer[rows, ..., source, :].clone()
