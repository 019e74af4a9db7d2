"""DeeBERT: exit on the entropy of an off-ramp's probabilities; p log p at p = 0 is 0, or NaN as in published code."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from exitbench.methods.base import BlockView, Gate, Head, param
from exitbench.methods.entropy import InversePerplexity
from exitbench.methods.gated import PeriodicGating, Thresholded
from exitbench.methods.gates import OneSoftmax
from exitbench.methods.heads import TrainedHead
from exitbench.methods.registry import register


class PublishedEntropy(OneSoftmax):
    """Gate whose score is exp(-H), with entropy H as in the published code: NaN if a probability is rounded to 0."""

    def score(self, view: BlockView) -> Tensor:
        """Return exp(-H) of each active row, [A]; NaN if a probability is 0, so that the row does not exit."""
        p_AK = torch.softmax(view.logits_AK.float(), dim=-1)
        return (p_AK * p_AK.log()).sum(-1).exp()


@register
@dataclass(frozen=True)
class DeeBert(Thresholded, PeriodicGating):
    """Exit when the entropy of an off-ramp's prediction is below the threshold.

    The score is exp(-H), as for the entropy gate. The checkpoint's off-ramps are read at the blocks that have one.
    """

    name: ClassVar[str] = "deebert"
    source: ClassVar[str] = "DeeBERT section 3"
    head_class: ClassVar[type[Head]] = TrainedHead

    threshold: float = param(0.3, "S: exit if the entropy in nats < threshold", low=0.0)
    underflow: str = param(
        "zero",
        "value of p log p if p is 0 in single precision: zero (its limit), or nan (as published; then no token exits)",
        choices=("zero", "nan"),
    )

    def level(self, threshold: float) -> float:
        """Convert an entropy threshold in nats to the scale of the score: exp(-threshold)."""
        return math.exp(-threshold)

    def gate(self, fitted: Mapping[str, Tensor]) -> Gate:
        """Return the gate that scores the entropy of the off-ramp's probabilities."""
        return PublishedEntropy() if self.underflow == "nan" else InversePerplexity()
