"""What each method costs on a model for every block at which it asks, and which the engine can run.

Work is what the cost model declares; what a gate reads of heads is not declared but counted as it reads, so each method
answers one token on the small random decoder of the contracts, made as deep as the model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from exitbench.errors import UserError, told
from exitbench.harness.conformance.decoder import PROMPTS, Shape, Trial
from exitbench.harness.engine.decoding.decode import decode, prefill
from exitbench.harness.engine.decoding.generation import Request
from exitbench.harness.engine.model.cost import TokenPlace
from exitbench.methods.base import Cost, Method, Model, Parts
from exitbench.methods.registry import get_method, method_names
from exitbench.methods.thresholds import Constant

WhyNot = Callable[[Parts, int], str | None]
"""Why the engine cannot run a method in batches of so many rows; None where it can."""


class Costed(Model, Protocol):
    """A model that knows what its blocks cost."""

    def block_cost(self, place: TokenPlace) -> Cost:
        """Work of one decoder block for one token of one row."""


@dataclass(frozen=True)
class Asking:
    """A method, with its default parameters.

    Attributes:
        method: Its name.
        reads: What its gate reads.
        n_asked: Blocks at which it asks.
        bytes_share: Numbers read to ask once, the mean over these blocks, in those of a block run; None without any.
        flops_share: The same of arithmetic.
        is_fitted: Whether it is trained on the train split first.
        why_not: Why it cannot be run on this model; None where it can.
        why_alone: Why rows cannot be decoded together; None where they can.
    """

    method: str
    reads: str = "nothing"
    n_asked: int = 0
    bytes_share: float | None = None
    flops_share: float | None = None
    is_fitted: bool = False
    why_not: str | None = None
    why_alone: str | None = None


@dataclass(frozen=True)
class Skipping:
    """A KV policy: what a skipped block costs in the end, where the next token runs all blocks.

    Attributes:
        policy: Its name.
        bytes_share: Numbers read, in those of a block; None of a decoder that has nothing to skip.
        flops_share: The same of arithmetic.
        verifies: Whether tokens are verified besides, which costs what is not in these.
        why_not: Why it cannot be run on this model; None where it can.
        why_alone: Why rows cannot be decoded together; None where they can.
    """

    policy: str
    bytes_share: float | None
    flops_share: float | None
    verifies: bool
    why_not: str | None
    why_alone: str | None


def askings(model: Costed, place: TokenPlace, why_not: WhyNot) -> tuple[Asking, ...]:
    """Return what every method costs on a model.

    Args:
        model: The model.
        place: Where the token stands.
        why_not: Of the engine.
    """
    return tuple(_asking(name, model, place, why_not) for name in method_names())


def _asking(name: str, model: Costed, place: TokenPlace, why_not: WhyNot) -> Asking:
    try:
        method = get_method(name)()
        method.check(model.n_blocks)
        return _asked(method.bound_to(model.exit_blocks), model, place, why_not)
    except UserError as refusal:
        return Asking(name, why_not=str(refusal))
    except Exception as error:  # whatever a method of another distribution raises
        return Asking(name, why_not=f"{type(error).__name__}: {told(error)}")


def _asked(method: Method, model: Costed, place: TokenPlace, why_not: WhyNot) -> Asking:
    parts, is_fitted = method.parts(model.n_blocks), bool(method.fit_params())
    asking = Asking(method.name, is_fitted=is_fitted, why_not=why_not(parts, 1), why_alone=why_not(parts, 2))
    if not (asked := parts.asked(model.n_blocks)):
        return asking
    rows = _rows_read(method, Shape(model.n_blocks, model.exit_blocks))
    work = parts.asking_cost(model, model.n_blocks) + parts.head.cost(model, rows * model.vocab_size)
    in_bytes, in_flops = _shares(work * (1 / len(asked)), model.block_cost(place))
    reads = _reads(parts, method.needs_exit_heads, rows, work)
    return replace(asking, reads=reads, n_asked=len(asked), bytes_share=in_bytes, flops_share=in_flops)


def _reads(parts: Parts, has_own_heads: bool, rows: float, work: Cost) -> str:
    """What a gate reads, in words."""
    if parts.gate.looks_ahead:
        return "all blocks first"
    read = [] if not rows else ["logits of exit heads" if has_own_heads else "logits"]
    if parts.gate.needs_history:
        read.append("earlier states")
    elif not rows and work != Cost():
        read.append("states")
    return ", ".join(read) or "nothing"


def _rows_read(method: Method, shape: Shape) -> float:
    """Read-outs of the whole head for one token that stays to the end, without the one that it is emitted from."""
    with torch.no_grad():
        trial = Trial(method, shape)
        parts = replace(trial.plain, threshold=Constant(float("inf")))
        (made,) = decode(trial.checkpoint, prefill(trial.model, [Request(PROMPTS[4])], 1), parts)
    return made.head_rows[0] / trial.model.vocab_size - 1


def skippings(model: Costed, place: TokenPlace, why_not: WhyNot) -> tuple[Skipping, ...]:
    """Return every KV policy that a parameter of some method names, and what it costs on a model."""
    found: dict[str, list[Parts]] = {}
    for parts, _ in _choices(model):
        found.setdefault(parts.kv_policy.name, []).append(parts)
    return tuple(_skipping(parts, model, place, why_not) for parts in found.values())


def _skipping(having: Sequence[Parts], model: Costed, place: TokenPlace, why_not: WhyNot) -> Skipping:
    """A policy, by the methods that have it: it can be run where one of them can."""
    policy, block = having[0].kv_policy, model.block_cost(place)
    reasons = ([why_not(parts, n_rows) for parts in having] for n_rows in (1, 2))
    alone, together = (None if None in said else said[0] for said in reasons)
    if model.n_blocks < 2:
        return Skipping(policy.name, None, None, policy.verifies, alone, together)
    work = policy.cost(model, [model.n_blocks - 1, model.n_blocks], [block, block])
    return Skipping(policy.name, *_shares(work, block), policy.verifies, alone, together)


def refused_choices(model: Costed, why_not: WhyNot) -> dict[str, tuple[str, ...]]:
    """Return parameters' values that the engine cannot run, ``name = value``, by the reason."""
    found: dict[str, dict[str, None]] = {}
    for parts, choice in _choices(model):
        if choice and (reason := why_not(parts, 1)) is not None:
            found.setdefault(reason, {})[choice] = None
    return {reason: tuple(choices) for reason, choices in found.items()}


def _choices(model: Costed) -> Iterator[tuple[Parts, str]]:
    """Every method with its defaults, and with each value of a parameter that has a list of them."""
    for cls in map(get_method, method_names()):
        asked: list[tuple[dict[str, str], str]] = [({}, "")]
        for field in dataclasses.fields(cls):
            values = field.metadata["choices"]
            asked += [({field.name: value}, f"{field.name} = {value}") for value in values if value != field.default]
        for params, said in asked:
            try:
                method = cls.from_params(params)
                method.check(model.n_blocks)
                yield method.bound_to(model.exit_blocks).parts(model.n_blocks), said
            except Exception:  # does not fit this model: told of the method itself
                continue


def _shares(work: Cost, block: Cost) -> tuple[float, float]:
    """Numbers read and arithmetic, in those of a block."""
    return work.read_numel / block.read_numel, work.flops / block.flops
