"""Methods of another distribution: one that keeps every contract, and methods that break one contract each."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from exitbench.methods.base import BlockView, Cost, Gate, ModelInterface, param
from exitbench.methods.gated import Gated


class Honest(Gate):
    """Gate whose score is the probability of the most probable token; it keeps every contract."""

    def score(self, view: BlockView) -> Tensor:
        return torch.softmax(view.logits_AK.float(), dim=-1).amax(-1)

    def score_sql(self, gate_blocks: Sequence[int]) -> str | None:
        return "p1[l]"

    def cost(self, model: ModelInterface, gate_blocks: Sequence[int]) -> Cost:
        return Cost(elementwise_flops=5 * model.vocab_size * len(gate_blocks))


class NotReplayable(Honest):
    """Gate like `Honest`, but its score cannot be computed from a probe."""

    def score_sql(self, gate_blocks: Sequence[int]) -> str | None:
        return None


class Nan(Honest):
    def score(self, view: BlockView) -> Tensor:
        return super().score(view) * torch.nan


class Column(Honest):
    def score(self, view: BlockView) -> Tensor:
        return super().score(view)[:, None]


class Scalar(Honest):
    def score(self, view: BlockView) -> Tensor:
        return super().score(view).mean()


class Truth(Honest):
    def score(self, view: BlockView) -> Tensor:
        return super().score(view) > 0.5


class Raises(Honest):
    def score(self, view: BlockView) -> Tensor:
        raise RuntimeError("oops in my gate")


class Draws(NotReplayable):
    def score(self, view: BlockView) -> Tensor:
        return torch.rand(len(view.hidden_AD))


class OfBatch(NotReplayable):
    def score(self, view: BlockView) -> Tensor:
        score_A = super().score(view)
        return score_A / score_A.max()


class HalvesState(Honest):
    def score(self, view: BlockView) -> Tensor:
        score_A = super().score(view)
        view.hidden_AD.mul_(0.5)
        return score_A


class OtherState(Honest):
    def score(self, view: BlockView) -> Tensor:
        score_A = super().score(view)
        view.hidden_AD = view.hidden_AD * 0.5
        return score_A


class RollsLogits(Honest):
    def score(self, view: BlockView) -> Tensor:
        score_A = super().score(view)
        view.logits_AK.copy_(view.logits_AK.roll(1, dims=-1))
        return score_A


class HalvesHistory(NotReplayable):
    needs_history: ClassVar[bool] = True

    def score(self, view: BlockView) -> Tensor:
        score_A = super().score(view)
        view.state(view.block - 1).mul_(0.5)
        return score_A


class HalvesWeights(NotReplayable):
    def score(self, view: BlockView) -> Tensor:
        score_A = super().score(view)
        view.model.weights.lm_head.weight[:5] *= 0.5  # type: ignore[attr-defined]
        return score_A


class OneMemory(NotReplayable):
    def score(self, view: BlockView) -> Tensor:
        view.memory["seen"] = torch.ones(3)
        return super().score(view)


class Counts(NotReplayable):
    def __init__(self) -> None:
        self.calls = 0

    def score(self, view: BlockView) -> Tensor:
        self.calls += 1
        return super().score(view) * (self.calls % 7 != 0)


class Negative(NotReplayable):
    """Gate whose scores never exceed a threshold that is allowed."""

    def score(self, view: BlockView) -> Tensor:
        return -super().score(view)


class Reversed(NotReplayable):
    def score(self, view: BlockView) -> Tensor:
        return 1 - super().score(view)


class Huge(NotReplayable):
    """Gate whose scores exceed every threshold that is allowed."""

    def score(self, view: BlockView) -> Tensor:
        return 2 + super().score(view)


class WrongSql(Honest):
    def score_sql(self, gate_blocks: Sequence[int]) -> str | None:
        return "1 - p1[l]"


class NoSql(Honest):
    def score_sql(self, gate_blocks: Sequence[int]) -> str | None:
        return "p_one[l]"


class Free(Honest):
    def cost(self, model: ModelInterface, gate_blocks: Sequence[int]) -> Cost:
        return Cost()


class ReadsTwice(NotReplayable):
    """Gate that multiplies by the LM head itself, without the view, so that this work is not counted."""

    def score(self, view: BlockView) -> Tensor:
        return torch.softmax(view.model.logits(view.hidden_AD), dim=-1).amax(-1)


class OtherToken(Honest):
    def choose(self, view: BlockView) -> Tensor:
        return (super().choose(view) + 1) % view.model.vocab_size


class Hangs(NotReplayable):
    def score(self, view: BlockView) -> Tensor:
        while True:
            time.sleep(1)


class Exits(NotReplayable):
    def score(self, view: BlockView) -> Tensor:
        os._exit(3)


class Crashes(NotReplayable):
    def score(self, view: BlockView) -> Tensor:
        os.abort()


GATES: dict[str, Callable[[], Gate]] = {
    cls.__name__: cls
    for cls in (
        *(Honest, NotReplayable, Nan, Column, Scalar, Truth, Raises, Draws, OfBatch, HalvesState, OtherState),
        *(RollsLogits, HalvesHistory, HalvesWeights, OneMemory, Counts, Negative, Reversed, Huge, WrongSql, NoSql),
        *(Free, ReadsTwice, OtherToken, Hangs, Exits, Crashes),
    )
}


@dataclass(frozen=True)
class Broken(Gated):
    """Method with the gate named by `how`, which may break a contract."""

    name: ClassVar[str] = "broken"
    threshold: float = param(0.3, "exit above it", low=0.0, high=1.0)
    how: str = param("Honest", "its gate", choices=tuple(GATES))

    def gate(self, fitted: Mapping[str, Tensor]) -> Gate:
        return GATES[self.how]()


@dataclass(frozen=True)
class UndeclaredField(Broken):
    """Method with a field that is not declared as a parameter."""

    name: ClassVar[str] = "plain"
    mine: float = 3.0


@dataclass(frozen=True)
class GateRaises(Broken):
    """Method whose gate cannot be created."""

    name: ClassVar[str] = "unmade"

    def gate(self, fitted: Mapping[str, Tensor]) -> Gate:
        raise LookupError("no such gate")
