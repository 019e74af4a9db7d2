"""Confidence gates that several methods share. A gate of one method lives in that method's file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from exitbench.methods.base import BlockView, Cost, Gate, ModelInterface
from exitbench.methods.sampling import Sampling


class Always(Sampling):
    """Gate that scores 1 at every gate block, so that exits do not depend on the token."""

    decides = False
    reads_logits = False
    scores_numbers = True

    def score(self, view: BlockView) -> Tensor:
        """Return a score of 1 for each active row, [A]."""
        return torch.ones(view.hidden_AD.shape[0], device=view.hidden_AD.device)

    @property
    def is_bounded(self) -> bool:
        """Whether bounds of the logits decide: its exits need no logits, and its tokens do if they are drawn."""
        return self.temperature == 0

    def score_sql(self, gate_blocks: Sequence[int]) -> str:
        """Return SQL for the constant score 1, for replays, which compute exits without running the model."""
        return "1"


class OneSoftmax(Gate):
    """Base class of gates that compute one softmax over the head's vocabulary, or the labels, per gate block."""

    def cost(self, model: ModelInterface, gate_blocks: Sequence[int]) -> Cost:
        """Return the cost of a softmax, and of a search or sum over its values, per gate block."""
        return softmax_cost(model, len(gate_blocks))


class SoftmaxMargin(OneSoftmax):
    """Gate whose score is CALM's softmax measure: the difference between the two largest probabilities, in [0, 1]."""

    def score(self, view: BlockView) -> Tensor:
        """Return the difference between the two largest probabilities of each active row, [A]; 0 for a tie."""
        return margin(torch.softmax(view.logits_AK.float(), dim=-1))

    def bounds(self, lower_AV: Tensor, upper_AV: Tensor) -> tuple[Tensor, Tensor]:
        """Return lower and upper bounds of the margin, [A] each, for logits between ``lower_AV`` and ``upper_AV``."""
        exps = IntervalExponentials.from_bounds(lower_AV, upper_AV)
        low_A = (exps.first_low_A - exps.rival_high_A) / (exps.first_low_A + exps.rest_high_A)
        high_A = (1 - exps.second_low_A) / (1 + exps.rest_low_A)
        return exps.widened(low_A, high_A)

    def score_sql(self, gate_blocks: Sequence[int]) -> str:
        """Return SQL for the score at block ``l``, from a probe's columns (stored predictions of every block)."""
        return "p1[l] - p2[l]"


class IntervalExponentials(NamedTuple):
    """Exponentials e^z of the ends of logit intervals, from which softmax probabilities are bounded.

    z is the end of an interval minus the largest upper end of its row. ``first`` is the token id with the largest lower
    end, and "other ids" are all ids except ``first``.

    The largest probability is at least that of ``first`` when all other logits are at their upper ends. Its upper bound
    is 1 / (1 + rest_low): e^z of any id is at most 1, and e^z of all other ids sums to at least rest_low.

    Attributes:
        first_low_A: e^z of the largest lower end.
        second_low_A: e^z of the second largest lower end.
        rival_high_A: e^z of the largest upper end of the other ids.
        rest_low_A: Sum of e^z over the other ids' lower ends.
        rest_high_A: Sum of e^z over the other ids' upper ends.
        rounding: Upper bound of a probability's relative rounding error.
    """

    first_low_A: Tensor
    second_low_A: Tensor
    rival_high_A: Tensor
    rest_low_A: Tensor
    rest_high_A: Tensor
    rounding: float

    @classmethod
    def from_bounds(cls, lower_AV: Tensor, upper_AV: Tensor) -> IntervalExponentials:
        """Return the `IntervalExponentials` of logits between ``lower_AV`` and ``upper_AV``."""
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
        """Return bounds ``low_A`` and ``high_A`` of a probability or margin, widened by its rounding error.

        They stay within [0, 1]. The lower bound is 0 if the largest lower end underflows.
        """
        slack_A = 2 * self.rounding / (1 + self.rest_low_A)  # of a probability no larger than 1 / (1 + rest_low)
        # If all lower ends underflow in float32, there is no lower bound; NaN stays NaN.
        low_A = torch.where(self.first_low_A > _SMALLEST, low_A, 0 * low_A)
        return (low_A - slack_A).clamp(0, 1), (high_A + slack_A).clamp(0, 1)


_SMALLEST = 1e-30


def softmax_rounding(vocab_size: int) -> float:
    """Return an upper bound of the relative rounding error of a float32 softmax probability and of its bounds.

    A sum of V positive numbers has a relative error below V units of 2^-24, in any order of summation. Exponentials,
    differences and quotients add less than 128 units. Both errors occur in the score and again in its bounds.
    """
    return 2 * (vocab_size + 128) * 2.0**-24


def margin(p_AK: Tensor) -> Tensor:
    """Return the largest minus the second largest value of each row, [A]; with only one column, its value."""
    if p_AK.shape[-1] == 1:
        return p_AK[:, 0]
    # Two maxima, which are faster than `topk(2)` over a vocabulary.
    largest_A1, index_A1 = p_AK.max(-1, keepdim=True)
    return largest_A1[:, 0] - p_AK.scatter(-1, index_A1, -torch.inf).amax(-1)


def softmax_cost(model: ModelInterface, times: float) -> Cost:
    """Return the cost of ``times`` softmaxes over the vocabulary, each with a search for the most probable tokens."""
    return Cost(elementwise_flops=7 * model.vocab_size * times)


class Scheduled(Gate):
    """Gate with exit layers given in advance, to measure an oracle that knows them and really skips blocks.

    Args:
        layers: Exit layers of an answer's tokens, in order, by the random seed that identifies the answer's row. Tokens
            beyond the end of the list run at full depth.
    """

    scores_numbers = True

    def __init__(self, layers: Mapping[int, Sequence[int]]) -> None:
        self.layers = layers

    def score(self, view: BlockView) -> Tensor:
        """Return 1 for each active row whose exit layer is reached, else 0, [A]."""
        if "exit_A" not in view.memory:
            exit_rows = [(self.layers[seed], at) for seed, at in zip(view.seeds_A, view.positions_A, strict=True)]
            exits = [row[at - 1] if at <= len(row) else view.model.n_blocks for row, at in exit_rows]
            view.memory["exit_A"] = torch.tensor(exits, device=view.hidden_AD.device)
        return (view.memory["exit_A"] <= view.block).float()
