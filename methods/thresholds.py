"""Threshold rules: the value that a confidence score must exceed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from exitbench.methods.base import Threshold


@dataclass(frozen=True)
class Constant(Threshold):
    """Threshold with the same value at every block and position."""

    level: float

    def value(self, block: int, position: int, max_new_tokens: int) -> float:
        """Return the constant threshold, the same for every block and position."""
        return self.level

    def sql(self, max_new_tokens: int) -> str:
        """Return the constant threshold as a SQL literal."""
        return _literal(self.level)


@dataclass(frozen=True)
class PerBlock(Threshold):
    """Threshold with a separate value for each block 1..L-1; no token exits at a block whose value is infinity."""

    levels: tuple[float, ...]

    def value(self, block: int, position: int, max_new_tokens: int) -> float:
        """Return the threshold of ``block``, the same for every position."""
        return self.levels[block - 1]

    def sql(self, max_new_tokens: int) -> str:
        """Return SQL for the threshold: a list with one value per block, indexed by the block number ``l``."""
        return f"[{', '.join(_literal(level) for level in self.levels)}][l]"


@dataclass(frozen=True)
class PositionDecayed(Threshold):
    """CALM's threshold, which decreases with the position of the token.

    ``code``: 0.9 level + 0.1 level exp(-temperature t / N), the formula in the code of t5x and FREE. MEE's runs use it.
    t5x and FREE run without decay: t5x's sampler passes no position, and FREE's scripts set no temperature.
    ``paper``: clip(0.9 level + 0.1 exp(-temperature t / N), 0, 1), as printed in CALM.

    t is the token's position, 1 for the first generated token. N is the longest answer allowed, and level the value of
    ``rule``, another threshold rule.
    """

    rule: Threshold
    temperature: float
    decay: Literal["code", "paper"]

    def value(self, block: int, position: int, max_new_tokens: int) -> float:
        """Return the threshold at a block and position, after the decay."""
        level = self.rule.value(block, position, max_new_tokens)
        fading = math.exp(-self.temperature * position / max_new_tokens)
        if self.decay == "code":
            return 0.9 * level + 0.1 * level * fading
        return min(1.0, max(0.0, 0.9 * level + 0.1 * fading))

    def sql(self, max_new_tokens: int) -> str:
        """Return SQL for the decayed threshold, an expression of block number ``l`` and column ``position`` of a probe.

        A probe is the stored record of every block's predictions, one row per token.
        """
        level = self.rule.sql(max_new_tokens)
        fading = f"exp(-({self.temperature!r}) * position / {max_new_tokens})"
        if self.decay == "code":
            return f"0.9::DOUBLE * {level} + 0.1::DOUBLE * {level} * {fading}"
        return f"least(1, greatest(0, 0.9::DOUBLE * {level} + 0.1::DOUBLE * {fading}))"


def _literal(level: float) -> str:
    return f"'{level!r}'::DOUBLE"
