"""FastBERT: exit on the entropy of a branch's probabilities, normalized by the largest possible entropy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from exitbench.methods.base import BlockView, Head, param
from exitbench.methods.entropy import negative_entropy
from exitbench.methods.gated import PeriodicGating, Thresholded
from exitbench.methods.gates import OneSoftmax
from exitbench.methods.heads import TrainedHead
from exitbench.methods.registry import register


class Certainty(OneSoftmax):
    """Gate whose score is the certainty 1 - H / log C, where H is the entropy of the C labels' probabilities.

    It is 1 if one label has probability 1, and 0 if all labels have the same probability.
    """

    def score(self, view: BlockView) -> Tensor:
        """Return the certainty 1 - H / log C of each active row, [A]."""
        return 1 + negative_entropy(view.logits_AK) / math.log(view.logits_AK.shape[-1])


@register
@dataclass(frozen=True)
class FastBert(Thresholded, PeriodicGating):
    """Exit when the normalized entropy (uncertainty) of a branch's prediction is below the threshold.

    The paper calls the threshold "speed", and off-ramps "branches". The score is 1 - H / log C, so that higher is more
    confident. The checkpoint's off-ramps are read at the blocks that have one.
    """

    name: ClassVar[str] = "fastbert"
    source: ClassVar[str] = "FastBERT section 3.3 (adaptive inference)"
    head_class: ClassVar[type[Head]] = TrainedHead

    threshold: float = param(0.5, "speed: exit if H / log C < threshold", low=0.0, high=1.0)

    def level(self, threshold: float) -> float:
        """Convert an uncertainty threshold to the scale of the score: 1 - threshold."""
        return 1 - threshold

    def gate(self, fitted: Mapping[str, Tensor]) -> Certainty:
        """Return the gate that scores the certainty of a branch's prediction."""
        return Certainty()
