"""Cost of each method's gate on a model, per evaluated block, and whether the engine can run the method.

Costs come from the methods' declared cost models, except the number of read-outs. To count these, each method decodes
one token on the small random decoder of the conformance tests, with as many blocks as the model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Protocol

import torch

from exitbench.errors import UserError, one_line
from exitbench.harness.conformance.decoder import PROMPTS, Shape, Trial
from exitbench.harness.engine.decoding.decode import decode, prefill
from exitbench.harness.engine.decoding.generation import Request
from exitbench.harness.engine.model.cost import TokenPlace
from exitbench.methods.base import Cost, Method, ModelInterface, Parts
from exitbench.methods.registry import get_method, method_names
from exitbench.methods.thresholds import Constant

WhyNot = Callable[[Parts, int], str | None]
"""Function of (method's parts, rows per batch): why the engine cannot run the method, or None if it can."""


class HasBlockCost(ModelInterface, Protocol):
    """Interface of a model that can tell the cost of its blocks."""

    def block_cost(self, place: TokenPlace) -> Cost:
        """Return the cost of one decoder block for one token with the context and source lengths of ``place``."""


@dataclass(frozen=True)
class GateCost:
    """Gate cost of a method with its default parameters.

    Attributes:
        method: Name of the method.
        reads: Phrase for what the gate reads at a block.
        n_evaluations: Number of blocks at which the gate is evaluated.
        bytes_share: Numbers read per gate evaluation, averaged over these blocks, relative to one block; None if the
            gate is never evaluated.
        flops_share: FLOPs per gate evaluation, relative to one block; None if the gate is never evaluated.
        is_fitted: Whether the method must be fitted on the train split first.
        why_not: Reason why the method cannot run on this model; None if it can.
        why_alone: Reason why the method cannot decode batches of several rows; None if it can.
    """

    method: str
    reads: str = "nothing"
    n_evaluations: int = 0
    bytes_share: float | None = None
    flops_share: float | None = None
    is_fitted: bool = False
    why_not: str | None = None
    why_alone: str | None = None


@dataclass(frozen=True)
class SkipCost:
    """Cost that a KV policy causes for a skipped block's keys and values, if the next token runs all blocks.

    Attributes:
        policy: Name of the KV policy.
        bytes_share: Numbers read, relative to one block; None if the decoder has no block to skip.
        flops_share: FLOPs, relative to one block; None if the decoder has no block to skip.
        verifies: Whether early tokens are also verified by the full model, at a cost that is not included here.
        why_not: Reason why the policy cannot run on this model; None if it can.
        why_alone: Reason why the policy cannot decode batches of several rows; None if it can.
    """

    policy: str
    bytes_share: float | None
    flops_share: float | None
    verifies: bool
    why_not: str | None
    why_alone: str | None


def gate_costs(model: HasBlockCost, place: TokenPlace, why_not: WhyNot) -> tuple[GateCost, ...]:
    """Return the gate cost of every method on a model.

    Args:
        model: The model.
        place: Numbers of context and source tokens that the token attends to.
        why_not: Function that returns why the engine cannot run a method; None if it can.
    """
    return tuple(_costs_of(name, model, place, why_not) for name in method_names())


def _costs_of(name: str, model: HasBlockCost, place: TokenPlace, why_not: WhyNot) -> GateCost:
    try:
        method = get_method(name)()
        method.check(model.n_blocks)
        return _gate_cost(method.bound_to(model.exit_blocks), model, place, why_not)
    except UserError as refusal:
        return GateCost(name, why_not=str(refusal))
    except Exception as error:  # a third-party method may raise anything
        return GateCost(name, why_not=f"{type(error).__name__}: {one_line(error)}")


def _gate_cost(method: Method, model: HasBlockCost, place: TokenPlace, why_not: WhyNot) -> GateCost:
    parts, is_fitted = method.parts(model.n_blocks), bool(method.fit_params())
    cost = GateCost(method.name, is_fitted=is_fitted, why_not=why_not(parts, 1), why_alone=why_not(parts, 2))
    if not (exit_blocks := parts.gate_blocks(model.n_blocks)):
        return cost
    rows = _rows_read(method, Shape(model.n_blocks, model.exit_blocks))
    work = parts.evaluation_cost(model, model.n_blocks) + parts.head.cost(model, rows * model.vocab_size)
    in_bytes, in_flops = _shares(work * (1 / len(exit_blocks)), model.block_cost(place))
    reads = _reads(parts, method.needs_exit_heads, rows, work)
    return replace(cost, reads=reads, n_evaluations=len(exit_blocks), bytes_share=in_bytes, flops_share=in_flops)


def _reads(parts: Parts, has_own_heads: bool, rows: float, work: Cost) -> str:
    """Return a phrase for what a gate reads at a block, such as ``logits`` or ``earlier states``.

    For one token, ``rows`` is how many times the gate reads the whole LM head, and ``work`` is the gate's cost.
    """
    if parts.gate.looks_ahead:
        return "all blocks first"
    read = [] if not rows else ["logits of exit heads" if has_own_heads else "logits"]
    if parts.gate.needs_history:
        read.append("earlier states")
    elif not rows and work != Cost():
        read.append("states")
    return ", ".join(read) or "nothing"


@cache
def _rows_read(method: Method, shape: Shape) -> float:
    """Return how many times a gate reads the whole LM head for one token that runs all blocks."""
    with torch.no_grad():
        trial = Trial(method, shape)
        parts = replace(trial.plain, threshold=Constant(float("inf")))
        (generation,) = decode(trial.checkpoint, prefill(trial.model, [Request(PROMPTS[4])], 1), parts)
    return generation.head_rows[0] / trial.model.vocab_size - 1


def skip_costs(model: HasBlockCost, place: TokenPlace, why_not: WhyNot) -> tuple[SkipCost, ...]:
    """Return the cost of every KV policy that some method offers, on a model.

    ``place`` has the token's context and source lengths; ``why_not`` returns why the engine cannot run a method.
    """
    parts_by_policy: dict[str, list[Parts]] = {}
    for parts, _ in _choices(model):
        parts_by_policy.setdefault(parts.kv_policy.name, []).append(parts)
    return tuple(_skip_cost(parts, model, place, why_not) for parts in parts_by_policy.values())


def _skip_cost(having: Sequence[Parts], model: HasBlockCost, place: TokenPlace, why_not: WhyNot) -> SkipCost:
    """Return the cost of the KV policy that all methods in `having` use; the policy is runnable if one of them is."""
    policy, block = having[0].kv_policy, model.block_cost(place)
    reasons = ([why_not(parts, n_rows) for parts in having] for n_rows in (1, 2))
    alone, together = (None if None in reasons_of_methods else reasons_of_methods[0] for reasons_of_methods in reasons)
    if model.n_blocks < 2:
        return SkipCost(policy.name, None, None, policy.verifies, alone, together)
    work = policy.cost(model, [model.n_blocks - 1, model.n_blocks], [block, block])
    return SkipCost(policy.name, *_shares(work, block), policy.verifies, alone, together)


def refused_choices(model: HasBlockCost, why_not: WhyNot) -> dict[str, tuple[str, ...]]:
    """Return the method parameter values that the engine cannot run, as texts ``name = value``, by the reason."""
    choices_by_reason: dict[str, dict[str, None]] = {}
    for parts, choice in _choices(model):
        if choice and (reason := why_not(parts, 1)) is not None:
            choices_by_reason.setdefault(reason, {})[choice] = None
    return {reason: tuple(choices) for reason, choices in choices_by_reason.items()}


def _choices(model: HasBlockCost) -> Iterator[tuple[Parts, str]]:
    """Yield (parts, text ``name = value``) for every method: defaults, then each other enumerated value."""
    for cls in map(get_method, method_names()):
        settings: list[tuple[dict[str, str], str]] = [({}, "")]
        for field in dataclasses.fields(cls):
            values = field.metadata["choices"]
            settings += [({field.name: value}, f"{field.name} = {value}") for value in values if value != field.default]
        for params, choice in settings:
            try:
                method = cls.from_params(params)
                method.check(model.n_blocks)
                yield method.bound_to(model.exit_blocks).parts(model.n_blocks), choice
            except Exception:  # not usable on this model; `_costs_of` reports this for the method itself
                continue


def _shares(work: Cost, block: Cost) -> tuple[float, float]:
    """Return two ratios of a gate's work to one block's: elements read from memory, and FLOPs."""
    return work.read_numel / block.read_numel, work.flops / block.flops
