"""Conformance: declared FLOPs against those counted while a token is decoded.

Shape suffixes: A rows still running at a block.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from exitbench.harness.conformance.decoder import MAX_NEW_TOKENS, PROMPTS, WIDTH, Trial
from exitbench.harness.engine.checkpoints.loading import Checkpoint
from exitbench.harness.engine.decoding.block_runner import BlockRunner
from exitbench.harness.engine.decoding.decode import decode_step
from exitbench.harness.engine.decoding.trace import Trace
from exitbench.harness.engine.model.cost import TokenPlace, answer_cost
from exitbench.harness.engine.model.token_record import TokenRecord
from exitbench.methods.base import BlockView, Cost, Gate, Parts, Threshold
from exitbench.methods.gates import Always
from exitbench.methods.kv_policies import KV_POLICIES
from exitbench.methods.offline import score_states

_FED = 3
"""Tokens before the one that is counted; they leave at once, so that a KV policy may have work to make up for."""
_TOLERANCE = 0.01


@dataclasses.dataclass(frozen=True)
class _From(Threshold):
    """Every score leaves from a block on that depends on the position, none before."""

    firsts: tuple[int, ...]

    def value(self, block: int, position: int, max_new_tokens: int) -> float:
        return float("-inf") if block >= self.firsts[position - 1] else float("inf")

    def sql(self, max_new_tokens: int) -> str:
        raise NotImplementedError("a real decode asks no SQL")


def declared(trial: Trial) -> Iterator[str]:
    """`cost` is what a counter of FLOPs sees at the first and the last exit, and says something where a gate works."""
    yield from uncounted(trial.checkpoint, trial.plain, PROMPTS[4], sorted({trial.first_exit, trial.n_blocks}))
    yield from _forgotten(trial)


def uncounted(checkpoint: Checkpoint, parts: Parts, prompt: Sequence[int], exit_layers: Sequence[int]) -> Iterator[str]:
    """Where matrix products of a token that leaves after so many blocks are not those declared.

    Oracles declare the cost of a gate that knew without running the full depth, so such a gate stands in here. What
    verification adds is not of a step, and not counted.

    Args:
        checkpoint: The model.
        parts: The method.
        prompt: What is answered; the token counted is the fourth.
        exit_layers: Blocks after which it leaves, one after the other.
    """
    model = checkpoint.model
    if parts.kv_policy.verifies:
        parts = dataclasses.replace(parts, kv_policy=KV_POLICIES["sync-parallel"])
    if parts.gate.looks_ahead:
        parts = dataclasses.replace(parts, gate=_Known())
    first = min([*parts.asked(model.n_blocks), model.n_blocks])
    if not parts.reads_skipped:  # every token leaves there, and is given nothing to read behind
        exit_layers = [first]
    for exit_layer in exit_layers:
        layers = [first] * _FED + [exit_layer]
        at = dataclasses.replace(parts, threshold=_From(tuple(layers)))
        cache, state = model.start([prompt], room=_FED + 2)
        before, records, trace = cache.length, list[TokenRecord](), Trace(model)
        for position in range(1, _FED + 2):
            # torch has no formula for the fused attention of CPUs; its plain form is made of products that it has.
            counter = _Products()  # type: ignore[no-untyped-call]
            with counter if position > _FED else nullcontext(), sdpa_kernel(SDPBackend.MATH):
                decode_step(
                    BlockRunner(model, cache, at), torch.tensor([5]), (position,), MAX_NEW_TOKENS, (0,), observer=trace
                )
            records += trace.records
        source = len(prompt) if state is None else 0
        places = [TokenPlace(before + position, source) for position in range(1, _FED + 2)]
        costs = [answer_cost(model, at, records[:n], places[:n]).matmul_flops for n in (_FED, _FED + 1)]
        said, seen = costs[1] - costs[0], counter.flops
        if records[-1].exit_layer != exit_layer or abs(said - seen) > _TOLERANCE * seen:
            yield (
                f"cost() declares {said:,.0f} FLOPs of matrix products for a token that leaves after block "
                f"{exit_layer}, where {seen:,.0f} are counted"
            )


class _Known(Always):
    """A gate that would know where to leave: `_From` decides, token by token."""

    decides = True


class _Watching(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that torch does not hide from its compiler: to do so would import that, as long as all else together."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class _Products(_Watching):  # type: ignore[no-untyped-call]
    """The FLOPs of all operations for which torch has a formula, as its `FlopCounterMode` counts them."""

    flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        formula = flop_registry.get(func.overloadpacket)
        if formula is None:
            with self:  # it may be made of operations that have one
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        out = func(*args, **kwargs)
        if formula is not None:
            self.flops += formula(*args, **kwargs, out_val=out)
        return out


class _Worked(_Watching):  # type: ignore[no-untyped-call]
    """The most numbers that one operation reads to compute others from them."""

    most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # To search for the most probable token is what every emission does.
        if not func.is_view and func is not torch.ops.aten.argmax.default:
            self.most = max([self.most, *(value.numel() for value in args if isinstance(value, torch.Tensor))])
        return func(*args, **(kwargs or {}))


def _forgotten(trial: Trial) -> Iterator[str]:
    """A gate that computes from a row's state or logits costs something, products or not."""
    gate, asked = trial.plain.gate, trial.asked
    if gate.looks_ahead or not asked or gate.cost(trial.model, asked) != Cost():
        return
    counted = _Counted(gate)
    score_states(dataclasses.replace(trial.plain, gate=counted), trial.model, trial.states_LND[:, :1])
    if counted.most >= WIDTH:
        yield (
            f"cost() says that the gate does nothing, but score() computes from {counted.most} numbers at once "
            f"(the state has {WIDTH}): return Cost(elementwise_flops=...)"
        )


class _Counted(Gate):
    """A gate whose own operations are counted, and not those of the head that it reads."""

    def __init__(self, gate: Gate) -> None:
        self._gate, self.most = gate, 0

    def score(self, view: BlockView) -> torch.Tensor:
        head_has_read = view.logits_AK  # the head declares its own
        with _Worked() as worked:  # type: ignore[no-untyped-call]
            score_A = self._gate.score(view)
        del head_has_read
        self.most = max(self.most, worked.most)
        return score_A
