"""Exit rules fixed in advance, since scores of random weights carry no information."""

from __future__ import annotations

import math
from collections.abc import Sequence

from exitbench.methods.base import Threshold


class Decided(Threshold):
    """Threshold that opens after predetermined blocks whatever the score: +inf before them, -inf from there on."""

    def __init__(self, layers: Sequence[int]) -> None:
        self.layers = layers

    def value(self, block: int, position: int, max_new_tokens: int) -> float:
        """Return the threshold for the token at this position, from 1."""
        return -math.inf if block >= self.layers[(position - 1) % len(self.layers)] else math.inf

    def sql(self, max_new_tokens: int) -> str:
        """Raise: this rule is never replayed."""
        raise NotImplementedError
