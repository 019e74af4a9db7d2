"""Thresholds that force given exit layers, since scores of random weights carry no information."""

from __future__ import annotations

import math
from collections.abc import Sequence

from exitbench.methods.base import Threshold


class ForcedExits(Threshold):
    """Threshold that forces each token's exit layer, whatever its score: +inf before that block, -inf from it on."""

    def __init__(self, layers: Sequence[int]) -> None:
        self.layers = layers

    def value(self, block: int, position: int, max_new_tokens: int) -> float:
        """Return the threshold at this block for the token at this position, counted from 1."""
        return -math.inf if block >= self.layers[(position - 1) % len(self.layers)] else math.inf

    def sql(self, max_new_tokens: int) -> str:
        """Raise NotImplementedError: this rule is never replayed."""
        raise NotImplementedError
