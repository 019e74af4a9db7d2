"""CALM with the softmax measure: the difference between the two largest probabilities."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from exitbench.methods.gated import SoftmaxGated
from exitbench.methods.gates import SoftmaxMargin
from exitbench.methods.registry import register


@register
@dataclass(frozen=True)
class CalmSoftmax(SoftmaxGated):
    """Exit when the difference between the two largest token probabilities exceeds the threshold."""

    name: ClassVar[str] = "calm-softmax"
    source: ClassVar[str] = "CALM section 3.5"

    def gate(self, fitted: Mapping[str, Tensor]) -> SoftmaxMargin:
        """Return the gate that scores the difference between the head's two largest probabilities."""
        return SoftmaxMargin()
