"""FastBERT: exit on the entropy of a branch's probabilities as a share of the largest there is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from exitbench.methods.base import BlockView, Cost, Gate, Head, ModelInterface, param
from exitbench.methods.entropy import negative_entropy
from exitbench.methods.gated import PeriodicGating, Thresholded
from exitbench.methods.gates import softmax_cost
from exitbench.methods.heads import TrainedHead
from exitbench.methods.registry import register


class Certainty(Gate):
    """1 - H / log C of C labels: 1 if one of them has all probability, 0 if all have the same."""

    def score(self, view: BlockView) -> Tensor:
        """Return the certainty [A]."""
        return 1 + negative_entropy(view.logits_AK) / math.log(view.logits_AK.shape[-1])

    def cost(self, model: ModelInterface, gate_blocks: Sequence[int]) -> Cost:
        """A softmax and a sum."""
        return softmax_cost(model, len(gate_blocks))


@register
@dataclass(frozen=True)
class FastBert(Thresholded, PeriodicGating):
    """Exit when the normalised entropy (uncertainty) of a branch's prediction is below the speed.

    The score is 1 - H / log C, so that higher is more confident; off-ramps are read where the checkpoint has them.
    """

    name: ClassVar[str] = "fastbert"
    source: ClassVar[str] = "FastBERT section 3.3 (adaptive inference)"

    threshold: float = param(0.5, "speed: exit if H / log C < threshold", low=0.0, high=1.0)

    def level(self, threshold: float) -> float:
        """Return an uncertainty threshold on the scale of the score."""
        return 1 - threshold

    def make_head(self) -> Head:
        """The branches."""
        return TrainedHead()

    def gate(self, fitted: Mapping[str, Tensor]) -> Certainty:
        """The certainty of the branch."""
        return Certainty()
