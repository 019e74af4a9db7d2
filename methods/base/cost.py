"""Cost of a row: FLOPs and numbers read from memory, and what verification threw away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Cost:
    """Work of one row: matrix products (a multiply-add counts two), the rest apart, and numbers read from memory."""

    matmul_flops: float = 0.0
    elementwise_flops: float = 0.0
    read_numel: float = 0.0

    @property
    def flops(self) -> float:
        """Products and the rest."""
        return self.matmul_flops + self.elementwise_flops

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.matmul_flops + other.matmul_flops,
            self.elementwise_flops + other.elementwise_flops,
            self.read_numel + other.read_numel,
        )

    def __mul__(self, times: float) -> Cost:
        return Cost(self.matmul_flops * times, self.elementwise_flops * times, self.read_numel * times)


@dataclass(frozen=True)
class Drafting:
    """Work discarded by the verification of an answer, recorded at the token that took its place.

    Attributes:
        rejected: Drafted tokens thrown away right before each token was decided.
        wasted: Positions run for them in vain: as many, or one fewer if the last draft was to end the answer, so that
            nothing had been fed behind it.
        exit_layer: Blocks after which drafts leave.
    """

    rejected: Sequence[int]
    wasted: Sequence[int]
    exit_layer: int
