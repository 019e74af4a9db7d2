"""Static-shape decoding for CUDA graphs: what a block reads and writes lies at the same place for every token.

On a GPU a block takes less time than launching its kernels one by one. With the position on the device too, a block, or
the score of a gate, is the same work on the same memory every time: a CUDA graph that is captured once a shape and then
replayed in one launch. Without graphs the same work is simply called, on any device.

It goes this way as long as all rows of the batch run and none has ended; rows that go on alone, tokens that wait, and
what ends a step (LM head, keys and values of skipped blocks) go the ordinary way, on the same memory. A GPU has never
run this yet, so it must be asked for: ``decode(..., runner_of=StaticSteps(model, graphs=True))``.

Shape suffixes: B rows of the batch, D model width, V vocabulary, H query heads, S positions there is room for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from exitbench.errors import UserError
from exitbench.harness.engine.decoding.block_runner import BlockRunner
from exitbench.harness.engine.model.cache import Cache
from exitbench.harness.engine.model.positions import Places, additive
from exitbench.harness.engine.model.step_context import StepContext
from exitbench.harness.engine.static.gates import Asked, static_gate
from exitbench.harness.engine.static.graphs import Graphs
from exitbench.methods.base import BlockView, Gate, Parts

if TYPE_CHECKING:
    from exitbench.harness.engine.model.model import Transformer

ROUNDED_TO = 64
"""Positions of prompt and source are rounded up to so many, so that batches of alike length share their buffers."""
SHAPES_KEPT = 4
"""Shapes of batches whose buffers and graphs are kept; the oldest goes first."""
METHODS_KEPT = 8
"""Methods whose gates' graphs are kept for a shape."""


class StaticSteps:
    """Static buffers of a model by the shape of the batch, made when one of that shape first comes.

    Args:
        model: The model.
        graphs: Capture the work as CUDA graphs.
        one_ahead: Enqueue the next block before the host looks at a decision: no gap where rows go on, and a block run
            in vain where they leave. Whatever that block wrote is written again by the KV policy or a later token.
    """

    def __init__(self, model: Transformer, *, graphs: bool, one_ahead: bool = False) -> None:
        if graphs and model.device.type != "cuda":
            raise UserError(f"static steps: graphs need a model on a CUDA device, not on {model.device}.")
        self.model, self.graphs, self.one_ahead = model, graphs, one_ahead
        self._made: dict[tuple[int, int, int], StaticStep] = {}

    def __call__(self, model: Transformer, cache: Cache, parts: Parts) -> BlockRunner:
        """Let a batch after its prefill decode on static buffers, until another batch of the same shape does."""
        if parts.kv_policy.deferred is not None or parts.gate.looks_ahead:
            return BlockRunner(model, cache, parts)
        return StaticRunner(self._bound(cache), model, cache, parts)

    def _bound(self, cache: Cache) -> StaticStep:
        source = 0 if cache.cross_kv is None else _rounded(cache.cross_kv.shape[3])
        shape = cache.n_rows, _rounded(cache.room), source
        if shape not in self._made:
            _drop_oldest(self._made, SHAPES_KEPT)
            self._made[shape] = StaticStep(self.model, *shape, Graphs() if self.graphs else None, self.one_ahead)
        self._made[shape].take(cache)
        return self._made[shape]


def _drop_oldest(kept: dict[Any, Any], limit: int) -> None:
    """Make room for one more where at most so many are kept."""
    if len(kept) == limit:
        del kept[next(iter(kept))]


def _rounded(positions: int) -> int:
    return -(-positions // ROUNDED_TO) * ROUNDED_TO


class StaticStep:
    """The buffers of batches of one shape, and the work on them."""

    def __init__(
        self, model: Transformer, n_rows: int, room: int, source: int, graphs: Graphs | None, one_ahead: bool
    ) -> None:
        self.model, self.one_ahead, self._graphs = model, one_ahead, graphs
        self.own = own = Cache(model, n_rows, room)
        own.self_kv.zero_()  # what a mask hides is multiplied by 0, which hides no NaN
        own.padding_B = torch.zeros(n_rows, dtype=torch.long, device=model.device)
        if source:
            own.make_cross_kv(source).zero_()
            own.source_mask = torch.zeros(n_rows, 1, 1, source, dtype=model.dtype, device=model.device)
        self.position_11 = torch.zeros(1, 1, dtype=torch.long, device=model.device)
        self._keys_S = torch.arange(room, device=model.device)
        self.places = Places(self.position_11.expand(n_rows, 1), self._bias(), self._rotary())
        width, stream = model.d_model, torch.float32 if model.arch.wide_stream else model.dtype
        self.states = [own.self_kv.new_zeros(n_rows, width, dtype=stream) for _ in range(model.n_blocks + 1)]
        self._begin = self._prepared(self._locate)
        self._blocks = [self._prepared(self._block(block)) for block in range(1, model.n_blocks + 1)]
        self._gates: dict[int, tuple[Parts, dict[int, Asked]]] = {}
        self._enqueued = 0  # block that has been started before it was asked for
        self._on_device = model.device.type == "cuda"
        self._leaves_B = torch.empty(n_rows, dtype=torch.bool, pin_memory=self._on_device)

    def take(self, cache: Cache) -> None:
        """Move a batch's keys and values here; the batch then reads and writes them here, whichever way it goes."""
        own = self.own
        own.self_kv.zero_()[:, :, :, : cache.length] = cache.self_kv[:, :, :, : cache.length]
        if cache.cross_kv is not None and own.cross_kv is not None and own.source_mask is not None:
            source = cache.cross_kv.shape[3]
            own.cross_kv.zero_()[:, :, :, :source] = cache.cross_kv
            own.source_mask.fill_(torch.finfo(own.source_mask.dtype).min)
            own.source_mask[..., :source] = 0 if cache.source_mask is None else cache.source_mask
        assert own.padding_B is not None, "made with the buffers"
        own.padding_B.zero_()
        cache.self_kv, cache.cross_kv, cache.source_mask = own.self_kv, own.cross_kv, own.source_mask
        cache.by_distance = own.by_distance

    # -------------------------------------------------------------- the work

    def _prepared(self, work: Callable[[], None]) -> Callable[[], None]:
        return work if self._graphs is None else self._graphs.captured(work)

    def _bias(self) -> Tensor:
        """Mask and position bias of all keys as seen from the position: [B, 1 or H, 1, S]."""
        assert self.own.padding_B is not None, "made with the buffers"
        bias = self.own.by_distance.index_select(-1, self._keys_S + (self.own.room - 1) - self.position_11[0])
        return bias + additive(self._keys_S >= self.own.padding_B[:, None], self.model.dtype)[:, None, None, :]

    def _rotary(self) -> tuple[Tensor, Tensor] | None:
        return self.model.rotary_at(self.own, None, self.position_11)

    def _locate(self) -> None:
        """What all blocks share at the position."""
        self.places.bias.copy_(self._bias())
        if self.places.rotary is not None and (angles := self._rotary()) is not None:
            for buffer, new in zip(self.places.rotary, angles, strict=True):
                buffer.copy_(new)

    def _block(self, block: int) -> Callable[[], None]:
        context = StepContext(self.own, self.own.length)

        def work() -> None:
            before_BD, after_BD = self.states[block - 1], self.states[block]
            after_BD.copy_(self.model.block(block, before_BD, context, None, self.places))

        return work

    # ------------------------------------------------------------- the steps

    def run(self, cache: Cache, block: int, hidden_BD: Tensor) -> Tensor:
        """Run a block for the new token of every row; returns states [B, D] that hold until the next token."""
        if block == 1:
            self.position_11.fill_(cache.length)
            if cache.padding_B is not None and self.own.padding_B is not None:
                self.own.padding_B.copy_(cache.padding_B)
            self._begin()
        if hidden_BD is not self.states[block - 1]:
            self.states[block - 1].copy_(hidden_BD)
        if self._enqueued != block:
            self._blocks[block - 1]()
        self._enqueued = 0
        return self.states[block]

    def score(self, parts: Parts, view: BlockView) -> Tensor:
        """The score of a method's gate of every row, [B]."""
        if id(parts) not in self._gates:
            _drop_oldest(self._gates, METHODS_KEPT)
            self._gates[id(parts)] = parts, static_gate(parts, self.model, self.states, self._prepared)
        asked = self._gates[id(parts)][1].get(view.block)
        if asked is None:
            return parts.gate.score(view)
        asked.run()
        return asked.show(view)

    def look(self, leaves_B: Tensor, block: int) -> list[bool]:
        """A decision after a block, on the host."""
        if not self.one_ahead:
            return list(leaves_B.tolist())
        self._leaves_B.copy_(leaves_B, non_blocking=True)
        seen = torch.cuda.current_stream().record_event() if self._on_device else None
        self._blocks[block]()
        self._enqueued = block + 1
        if seen is not None:
            seen.synchronize()
        return list(self._leaves_B.tolist())


class StaticRunner(BlockRunner):
    """Runs the blocks of a batch on static buffers as long as all rows run and none has left the batch."""

    def __init__(self, step: StaticStep, model: Transformer, cache: Cache, parts: Parts) -> None:
        super().__init__(model, cache, replace(parts, gate=_StaticGate(self, parts)))
        self.step, self._kv = step, cache
        self.is_static = False  # whether the block run last was run on the buffers

    def run(self, block: int, hidden_AD: Tensor, rows_A: Tensor | None = None) -> Tensor:
        """Run a block for the new token of each row; returns states [A, D]."""
        self.is_static = rows_A is None and self._kv.self_kv is self.step.own.self_kv
        if self.is_static:
            return self.step.run(self._kv, block, hidden_AD)
        return super().run(block, hidden_AD, rows_A)

    def above(self, score_A: Tensor, level: float | Tensor, block: int) -> list[bool]:
        """Which scores after a block are above a level."""
        return self.on_host(score_A > level, block) if self.is_static else super().above(score_A, level, block)

    def on_host(self, leaves_A: Tensor, block: int) -> list[bool]:
        """A decision after a block, on the host."""
        return self.step.look(leaves_A, block) if self.is_static else super().on_host(leaves_A, block)


class _StaticGate(Gate):
    """A gate asked on static buffers where the block was run there."""

    def __init__(self, runner: StaticRunner, parts: Parts) -> None:
        self._runner, self._parts = runner, parts
        self.needs_history = parts.gate.needs_history  # type: ignore[misc]  # of the class elsewhere

    @property
    def chooses_from_logits(self) -> bool:
        return self._parts.gate.chooses_from_logits

    def score(self, view: BlockView) -> Tensor:
        return self._runner.step.score(self._parts, view) if self._runner.is_static else self._parts.gate.score(view)

    def bounds(self, lower_AV: Tensor, upper_AV: Tensor) -> tuple[Tensor, Tensor]:
        return self._parts.gate.bounds(lower_AV, upper_AV)

    def choose(self, view: BlockView) -> Tensor:
        return self._parts.gate.choose(view)

    def log_p(self, view: BlockView) -> Tensor:
        return self._parts.gate.log_p(view)
