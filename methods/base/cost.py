"""Cost of a row: FLOPs, numbers read from memory, and work discarded by verification."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Cost:
    """Work of one row.

    Attributes:
        matmul_flops: FLOPs of matrix products; a multiply-add counts two.
        elementwise_flops: All other FLOPs.
        read_numel: Numbers (weights, keys and values) read from memory.
    """

    matmul_flops: float = 0.0
    elementwise_flops: float = 0.0
    read_numel: float = 0.0

    @property
    def flops(self) -> float:
        """Return all FLOPs: matrix products plus other operations."""
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
    """Work that verification discarded in one answer; each list has one entry per token of the answer.

    Attributes:
        rejected_layers: Exit layers of the drafts discarded just before the token was decided.
        wasted: Positions that ran for these drafts and were discarded. One fewer than the drafts if the last one would
            have ended the answer, since that draft was never fed to the model.
    """

    rejected_layers: Sequence[Sequence[int]]
    wasted: Sequence[int]
