"""Conformance of costs: compare declared FLOPs with the FLOPs counted while a token is decoded.

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
"""Number of tokens before the counted token. They exit at the first block, so later blocks were skipped."""
_TOLERANCE = 0.01


@dataclasses.dataclass(frozen=True)
class _ForcedExitThreshold(Threshold):
    """Threshold that forces the token at answer position p to exit at the first gate block from `firsts[p - 1]` on.

    Attributes:
        firsts: Block from which on each token may exit, by answer position.
    """

    firsts: tuple[int, ...]

    def value(self, block: int, position: int, max_new_tokens: int) -> float:
        return float("-inf") if block >= self.firsts[position - 1] else float("inf")

    def sql(self, max_new_tokens: int) -> str:
        raise NotImplementedError("a real decode runs no SQL")


def declared(trial: Trial) -> Iterator[str]:
    """Check that a method's declared FLOPs equal those counted, for the earliest and the latest possible exit.

    Also check that its gate declares a cost if it computes anything. Yield a message per violation.
    """
    yield from cost_mismatches(trial.checkpoint, trial.plain, PROMPTS[4], sorted({trial.first_exit, trial.n_blocks}))
    yield from _undeclared_gate_cost(trial)


def cost_mismatches(
    checkpoint: Checkpoint, parts: Parts, prompt: Sequence[int], exit_layers: Sequence[int]
) -> Iterator[str]:
    """Yield a message for each exit layer at which a method's declared matrix-product FLOPs differ from those counted.

    An oracle's gate first runs all blocks, but the declared cost leaves this run out. So a gate that computes nothing
    replaces it here. Verification of drafts is not part of a decode step and is not counted.

    Args:
        checkpoint: The model.
        parts: The method's gate, threshold, head and KV policy.
        prompt: Token ids of the prompt; FLOPs are counted for the fourth token of the answer.
        exit_layers: Exit layers to test, one after the other.
    """
    model = checkpoint.model
    if parts.kv_policy.verifies:
        parts = dataclasses.replace(parts, kv_policy=KV_POLICIES["sync-parallel"])
    if parts.gate.looks_ahead:
        parts = dataclasses.replace(parts, gate=_FixedExits())
    first = min([*parts.gate_blocks(model.n_blocks), model.n_blocks])
    if not parts.may_read_skipped_keys:  # every token exits at the same block, so only this exit is tested
        exit_layers = [first]
    for exit_layer in exit_layers:
        layers = [first] * _FED + [exit_layer]
        at = dataclasses.replace(parts, threshold=_ForcedExitThreshold(tuple(layers)))
        cache, state = model.start([prompt], room=_FED + 2)
        before, records, trace = cache.length, list[TokenRecord](), Trace(model)
        memory = at.gate.start_answers(1, model.device)
        for position in range(1, _FED + 2):
            # torch has no FLOP formula for fused attention on CPUs; plain attention consists of products that have one.
            counter = _FlopCounter()  # type: ignore[no-untyped-call]
            with counter if position > _FED else nullcontext(), sdpa_kernel(SDPBackend.MATH):
                runner = BlockRunner(model, cache, at)
                fed = (torch.tensor([5]), (position,), MAX_NEW_TOKENS, (0,))
                decode_step(runner, *fed, observer=trace, answer_memory=memory)
            records += trace.records
        source = len(prompt) if state is None else 0
        places = [TokenPlace(before + position, source) for position in range(1, _FED + 2)]
        costs = [answer_cost(model, at, records[:n], places[:n]).matmul_flops for n in (_FED, _FED + 1)]
        declared_flops, counted_flops = costs[1] - costs[0], counter.flops
        if records[-1].exit_layer != exit_layer or abs(declared_flops - counted_flops) > _TOLERANCE * counted_flops:
            yield (
                f"cost() declares {declared_flops:,.0f} FLOPs of matrix products for a token that leaves after block "
                f"{exit_layer}, where {counted_flops:,.0f} are counted"
            )


class _FixedExits(Always):
    """Gate that computes nothing; `_ForcedExitThreshold` alone determines the exit layer of each token."""

    decides = True


class _Watching(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Base class of torch dispatch modes that torch does not hide from its compiler.

    To hide a mode, torch would import the compiler, which is slow.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class _FlopCounter(_Watching):  # type: ignore[no-untyped-call]
    """Dispatch mode that counts the FLOPs of operations with a FLOP formula in torch, like its `FlopCounterMode`."""

    flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        formula = flop_registry.get(func.overloadpacket)
        if formula is None:
            with self:  # the operation may decompose into operations that have a formula
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        output = func(*args, **kwargs)
        if formula is not None:
            self.flops += formula(*args, **kwargs, out_val=output)
        return output


class _InputSizeRecorder(_Watching):  # type: ignore[no-untyped-call]
    """Dispatch mode that records the number of elements of the largest tensor read, except by views and argmax."""

    most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # The argmax over the logits is part of every emission, not of the gate.
        if not func.is_view and func is not torch.ops.aten.argmax.default:
            self.most = max([self.most, *(value.numel() for value in args if isinstance(value, torch.Tensor))])
        return func(*args, **(kwargs or {}))


def _undeclared_gate_cost(trial: Trial) -> Iterator[str]:
    """Yield a message if the method's gate declares no cost, although it computes from hidden states or logits."""
    gate, gate_blocks = trial.plain.gate, trial.gate_blocks
    if gate.looks_ahead or not gate_blocks or gate.cost(trial.model, gate_blocks) != Cost():
        return
    counted = _InputSizeGate(gate)
    score_states(dataclasses.replace(trial.plain, gate=counted), trial.model, trial.states_LND[:, :1])
    if counted.most >= WIDTH:
        yield (
            f"cost() says that the gate does nothing, but score() computes from {counted.most} numbers at once "
            f"(the state has {WIDTH}): return Cost(elementwise_flops=...)"
        )


class _InputSizeGate(Gate):
    """Gate wrapper that records the size of the largest tensor that the gate itself reads; the head does not count."""

    def __init__(self, gate: Gate) -> None:
        self._gate, self.most = gate, 0

    def start_answers(self, n_rows: int, device: torch.device) -> dict[str, torch.Tensor]:
        return self._gate.start_answers(n_rows, device)

    def score(self, view: BlockView) -> torch.Tensor:
        head_has_read = view.logits_AK  # computed before recording, since the head declares its own cost
        with _InputSizeRecorder() as recorder:  # type: ignore[no-untyped-call]
            score_A = self._gate.score(view)
        del head_has_read
        self.most = max(self.most, recorder.most)
        return score_A
