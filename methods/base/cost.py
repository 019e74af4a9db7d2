"""Cost of decoding: FLOPs, numbers read from memory, and work discarded by verification."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Cost:
    """FLOPs and memory reads of some work, such as one token or one answer; costs can be added and scaled.

    Attributes:
        matmul_flops: FLOPs of matrix products; a multiply-add counts as two.
        elementwise_flops: All other FLOPs.
        read_numel: Number of elements (weights, keys and values) read from memory.
    """

    matmul_flops: float = 0.0
    elementwise_flops: float = 0.0
    read_numel: float = 0.0

    @property
    def flops(self) -> float:
        """Total FLOPs: matrix products plus all other operations."""
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
    """Drafts that verification discarded in one answer; each field has one entry per token of the final answer.

    Attributes:
        rejected_layers: Exit layers of the drafts that were discarded just before full depth chose this token in their
            place.
        n_fed_rejected: Number of these drafts that were also fed to the model as input: all of them, or all but the
            last one if that one would have ended the answer.
    """

    rejected_layers: Sequence[Sequence[int]]
    n_fed_rejected: Sequence[int]
