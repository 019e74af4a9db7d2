"""Max-probability gate: exit on the largest token probability."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from exitbench.methods.base import BlockView
from exitbench.methods.gated import SoftmaxGated
from exitbench.methods.gates import IntervalExponentials, OneSoftmax
from exitbench.methods.registry import register


class LargestProbability(OneSoftmax):
    """Gate whose score is the largest token probability p_(1), in [0, 1]."""

    def score(self, view: BlockView) -> Tensor:
        """Return the largest probability of each active row, [A]."""
        return torch.softmax(view.logits_AK.float(), dim=-1).amax(-1)

    def bounds(self, lower_AV: Tensor, upper_AV: Tensor) -> tuple[Tensor, Tensor]:
        """Return bounds of the largest probability, [A] each, for logits between ``lower_AV`` and ``upper_AV``."""
        exps = IntervalExponentials.from_bounds(lower_AV, upper_AV)
        low_A = exps.first_low_A / (exps.first_low_A + exps.rest_high_A)
        return exps.widened(low_A, 1 / (1 + exps.rest_low_A))

    def score_sql(self, gate_blocks: Sequence[int]) -> str:
        """Return SQL for the score at block ``l``, from a probe's columns (stored predictions of every block)."""
        return "p1[l]"


@register
@dataclass(frozen=True)
class MaxProb(SoftmaxGated):
    """Exit when the probability of the most probable token exceeds the threshold."""

    name: ClassVar[str] = "max-prob"
    source: ClassVar[str] = "NATCAP section 3"

    def gate(self, fitted: Mapping[str, Tensor]) -> LargestProbability:
        """Return the gate that scores the largest of the head's probabilities."""
        return LargestProbability()
