"""Watch a method while it is tried: what its gate returns, and whether it changes tensors it was shown.

Shape suffixes: A rows still running at a block, K columns of the head.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from exitbench.methods.base import BlockView, Cost, Gate, Head, Model, Parts, Reading

Kept = list[tuple[str, Tensor, Tensor]]
"""What was shown, itself, and as it was."""


class Breach(Exception):
    """What a gate did that it must not, in words."""


def watched(parts: Parts) -> Parts:
    """Return parts that do the same, and raise Breach where a score is none or something shown was changed."""
    read: Kept = []
    return dataclasses.replace(parts, gate=_watched_gate(parts.gate, read), head=_watched_head(parts.head, read))


def _watched_gate(gate: Gate, read: Kept) -> Gate:
    class Watched(Gate):
        needs_history = gate.needs_history
        looks_ahead = gate.looks_ahead

        @property
        def chooses_from_logits(self) -> bool:
            return gate.chooses_from_logits

        def score(self, view: BlockView) -> Tensor:
            shown = _shown(view)
            read.clear()
            score_A = gate.score(view)
            _check_score(score_A, view)
            _check_unchanged("score()", view, [*shown, *read])
            return score_A

        def choose(self, view: BlockView) -> Tensor:
            shown = _shown(view)
            token_A = gate.choose(view)
            _check_shape("choose() must return one token a row", token_A, len(view.positions_A))
            _check_unchanged("choose()", view, shown)
            return token_A

        def score_sql(self, asked: Sequence[int]) -> str | None:
            return gate.score_sql(asked)

        def cost(self, model: Model, asked: Sequence[int]) -> Cost:
            return gate.cost(model, asked)

    return Watched()


def _watched_head(head: Head, read: Kept) -> Head:
    """The head, which keeps what it says: the gate is given it while it scores."""

    class Watched(Head):
        reads_vocabulary = head.reads_vocabulary

        def read(self, view: BlockView) -> Reading:
            reading = head.read(view)
            read.append(("view.logits_AK", reading.logits_AK, reading.logits_AK.clone()))
            return reading

        def earlier_logits(self, view: BlockView, block: int) -> Tensor:
            logits_AK = head.earlier_logits(view, block)
            read.append((f"view.earlier_logits({block})", logits_AK, logits_AK.clone()))
            return logits_AK

        def cost(self, model: Model, rows: float) -> Cost:
            return head.cost(model, rows)

    return Watched()


def _check_score(score_A: object, view: BlockView) -> None:
    _check_shape("score() must return one number a row", score_A, len(view.positions_A))
    assert isinstance(score_A, Tensor)
    if not score_A.is_floating_point():
        raise Breach(f"score() must return floating-point numbers, got {score_A.dtype}; `.float()` makes them so")
    if not bool(score_A.isfinite().all()):
        raise Breach(f"score() must return finite numbers, got {score_A.tolist()} at block {view.block}")
    for name, value in view.memory.items():
        if value.ndim == 0 or len(value) != len(score_A):
            raise Breach(
                f"view.memory[{name!r}] must have one row a running row: [A, ...] = [{len(score_A)}, ...], "
                f"got {list(value.shape)}"
            )


def _check_shape(rule: str, value: object, n_rows: int) -> None:
    if not isinstance(value, Tensor):
        raise Breach(f"{rule}: a tensor [A] = [{n_rows}], got {type(value).__name__}")
    if value.shape != (n_rows,):
        raise Breach(f"{rule}: [A] = [{n_rows}], got {list(value.shape)}")


def _check_unchanged(by: str, view: BlockView, shown: Kept) -> None:
    now = {name: tensor for name, tensor, _ in _shown(view)}
    for name, tensor, before in shown:
        if now.get(name, tensor) is not tensor or not torch.equal(tensor, before):
            raise Breach(f"{by} changes {name} at block {view.block}: what it is shown is not its own")


def _shown(view: BlockView) -> Kept:
    """What the view shows, and would show others after it."""
    tensors = {"view.hidden_AD": view.hidden_AD, "view.previous_score_A": view.previous_score_A}
    tensors |= {"view.ahead_LAD": view.ahead_LAD}
    tensors |= {f"view.state({block})": state_AD for block, state_AD in enumerate(view.earlier)}
    return [(name, tensor, tensor.clone()) for name, tensor in tensors.items() if tensor is not None]
