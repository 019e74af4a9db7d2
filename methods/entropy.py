"""Entropy gate: exit on the entropy of the distribution."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from exitbench.methods.base import BlockView, Cost, Gate, Model, param
from exitbench.methods.gated import SoftmaxGated
from exitbench.methods.gates import softmax_cost
from exitbench.methods.registry import register


class InversePerplexity(Gate):
    """exp(-H) of the entropy H in nats: 1 if one token has all probability, 1/V if all have the same."""

    def score(self, view: BlockView) -> Tensor:
        """Return exp(-H) [A]."""
        log_p_AK = torch.log_softmax(view.logits_AK.float(), dim=-1)
        # Ids that a pruned head does not read have p = 0 and log p = -inf; they add nothing.
        return (log_p_AK.exp() * log_p_AK.clamp(min=-1e4)).sum(-1).exp()

    def score_sql(self, asked: Sequence[int]) -> str:
        """From the recorded entropy."""
        return "exp(-entropy[l])"

    def cost(self, model: Model, asked: Sequence[int]) -> Cost:
        """A softmax and a sum."""
        return softmax_cost(model, len(asked))


@register
@dataclass(frozen=True)
class Entropy(SoftmaxGated):
    """Exit when the entropy of the prediction is below the threshold.

    The threshold is an entropy in nats. The score is exp(-H), so that higher is more confident, all threshold rules
    mean the same as for other gates, and score > exp(-threshold) is H < threshold.
    """

    name: ClassVar[str] = "entropy"
    source: ClassVar[str] = "NATCAP section 3"

    threshold: float = param(0.5, "exit where the entropy in nats < threshold", low=0.0)

    def level(self, threshold: float) -> float:
        """An entropy, on the scale of the score."""
        return math.exp(-threshold)

    def gate(self, fitted: Mapping[str, Tensor]) -> InversePerplexity:
        """The entropy of the head's probabilities."""
        return InversePerplexity()
