"""Confidence gates that several methods share. A gate of one method lives in that method's file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from exitbench.methods.base import BlockView, Cost, Gate, ModelInterface
from exitbench.methods.sampling import Sampling


class Always(Sampling):
    """Score 1 at every gate block: exits depend on the gate blocks alone."""

    decides = False
    scores_numbers = True

    def score(self, view: BlockView) -> Tensor:
        """Return ones [A]."""
        return torch.ones(view.hidden_AD.shape[0], device=view.hidden_AD.device)

    def score_sql(self, gate_blocks: Sequence[int]) -> str:
        """Always 1."""
        return "1"


class SoftmaxMargin(Gate):
    """CALM's softmax measure: p_(1) - p_(2), in [0, 1]; a tie gives 0."""

    def score(self, view: BlockView) -> Tensor:
        """Return the margin [A]."""
        return margin(torch.softmax(view.logits_AK.float(), dim=-1))

    def bounds(self, lower_AV: Tensor, upper_AV: Tensor) -> tuple[Tensor, Tensor]:
        """Return the margin [A] where one id is as far ahead of all others as it can be, and as little."""
        masses = Masses.from_bounds(lower_AV, upper_AV)
        low_A = (masses.first_low_A - masses.rival_high_A) / (masses.first_low_A + masses.rest_high_A)
        high_A = (1 - masses.second_low_A) / (1 + masses.rest_low_A)
        return masses.widened(low_A, high_A)

    def score_sql(self, gate_blocks: Sequence[int]) -> str:
        """The margin of the recorded probabilities."""
        return "p1[l] - p2[l]"

    def cost(self, model: ModelInterface, gate_blocks: Sequence[int]) -> Cost:
        """Softmax and top two over the vocabulary."""
        return softmax_cost(model, len(gate_blocks))


class Masses(NamedTuple):
    """Bounds of e^z for logits in intervals, relative to the largest of all.

    ``first`` is the id of the largest lower end.
    The largest probability is no less than what ``first`` has with all others as large as they can be, and no more than
    1 / (1 + rest_low): whichever id it is, the others add up to no less than all lower ends but the largest do.

    Attributes:
        first_low_A: The largest lower end.
        second_low_A: The second largest.
        rival_high_A: The largest upper end of the other ids.
        rest_low_A: Sum of their lower ends.
        rest_high_A: Sum of their upper ends.
        rounding: What rounding does to a probability, at most, as a share of it.
    """

    first_low_A: Tensor
    second_low_A: Tensor
    rival_high_A: Tensor
    rest_low_A: Tensor
    rest_high_A: Tensor
    rounding: float

    @classmethod
    def from_bounds(cls, lower_AV: Tensor, upper_AV: Tensor) -> Masses:
        """Bound the masses of logits within the given intervals."""
        top_A1 = upper_AV.amax(-1, keepdim=True)
        low_AV, high_AV = (lower_AV - top_A1).exp_(), (upper_AV - top_A1).exp_()
        first_A1 = lower_AV.argmax(-1, keepdim=True)
        first_low_A = low_AV.gather(1, first_A1)[:, 0]
        low_AV.scatter_(1, first_A1, 0.0)
        high_AV.scatter_(1, first_A1, 0.0)
        second_low_A, rival_high_A = low_AV.amax(-1), high_AV.amax(-1)
        rest_low_A, rest_high_A, rounding = low_AV.sum(-1), high_AV.sum(-1), softmax_rounding(lower_AV.shape[1])
        return cls(first_low_A, second_low_A, rival_high_A, rest_low_A, rest_high_A, rounding)

    def widened(self, low_A: Tensor, high_A: Tensor) -> tuple[Tensor, Tensor]:
        """Return bounds of the largest probability, or of it less another, with what rounding does; in [0, 1]."""
        slack_A = 2 * self.rounding / (1 + self.rest_low_A)  # of a probability no larger than 1 / (1 + rest_low)
        # Where all lower ends are out of reach of float32, there is no lower bound; NaN stays NaN.
        low_A = torch.where(self.first_low_A > _SMALLEST, low_A, 0 * low_A)
        return (low_A - slack_A).clamp(0, 1), (high_A + slack_A).clamp(0, 1)


_SMALLEST = 1e-30


def softmax_rounding(vocab_size: int) -> float:
    """Bound what rounding does to a probability of a float32 softmax, and to bounds of one.

    A sum of V numbers above 0 is off by less than V units of 2^-24, relative, in whatever order they are added; the
    exponentials, differences and quotients by less than 128. Both happen in the score and again in its bounds.
    """
    return 2 * (vocab_size + 128) * 2.0**-24


def margin(p_AK: Tensor) -> Tensor:
    """Largest minus second largest, [A]; the largest itself where there is only one."""
    if p_AK.shape[-1] == 1:
        return p_AK[:, 0]
    # Two maxima, which are faster than `topk(2)` over a vocabulary.
    largest_A1, index_A1 = p_AK.max(-1, keepdim=True)
    return largest_A1[:, 0] - p_AK.scatter(-1, index_A1, -torch.inf).amax(-1)


def softmax_cost(model: ModelInterface, times: float) -> Cost:
    """A softmax over the vocabulary and the search for its best."""
    return Cost(elementwise_flops=7 * model.vocab_size * times)


class Scheduled(Gate):
    """Exit layers known in advance: what an oracle would cost if it really knew, with blocks really skipped.

    Args:
        layers: Exit layer of every token, by the seed of its row; deeper or later tokens run at full depth.
    """

    scores_numbers = True

    def __init__(self, layers: Mapping[int, Sequence[int]]) -> None:
        self.layers = layers

    def score(self, view: BlockView) -> Tensor:
        """Return 1.0 or 0.0 a row, [A]."""
        if "exit_A" not in view.memory:
            exit_rows = [(self.layers[seed], at) for seed, at in zip(view.seeds_A, view.positions_A, strict=True)]
            exits = [row[at - 1] if at <= len(row) else view.model.n_blocks for row, at in exit_rows]
            view.memory["exit_A"] = torch.tensor(exits, device=view.hidden_AD.device)
        return (view.memory["exit_A"] <= view.block).float()
