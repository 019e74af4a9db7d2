"""PABEE: exit when successive off-ramps agree; in a regression, when their numbers hardly change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from exitbench.methods.base import BlockView, Head, param
from exitbench.methods.gated import PeriodicGating
from exitbench.methods.heads import TrainedHead
from exitbench.methods.patience import Streak
from exitbench.methods.registry import register
from exitbench.methods.thresholds import Constant


class SteadyPrediction(Streak):
    """Number of consecutive gate blocks with the same label, or with numbers within the tolerance of the previous one.

    Args:
        tolerance: Largest difference between two numbers that agree, exclusive; for a regression.
        whole_batch: The score is the shortest streak of the active rows in the batch (the published code).
    """

    scores_numbers: ClassVar[bool] = True

    def __init__(self, tolerance: float, whole_batch: bool) -> None:
        self.tolerance, self.whole_batch = tolerance, whole_batch

    def choice(self, view: BlockView) -> Tensor:
        """Return the label of each row, or its number in a regression."""
        return view.logits_AK[:, 0].float() if view.logits_AK.shape[-1] == 1 else super().choice(view)

    def agree(self, choice_A: Tensor, before_A: Tensor) -> Tensor:
        """Return whether labels are equal, or numbers differ by less than the tolerance, [A]."""
        if choice_A.is_floating_point():
            return (choice_A - before_A).abs() < self.tolerance
        return super().agree(choice_A, before_A)

    def score(self, view: BlockView) -> Tensor:
        """Return the length of the streak [A]; with `whole_batch`, the batch's shortest."""
        streak_A = super().score(view)
        return streak_A.amin().expand_as(streak_A) if self.whole_batch else streak_A

    def score_sql(self, gate_blocks: Sequence[int]) -> str | None:
        """Return the label streak's SQL; None with `whole_batch`, since a probe has no batches."""
        return None if self.whole_batch else super().score_sql(gate_blocks)


@register
@dataclass(frozen=True)
class Pabee(PeriodicGating):
    """Exit when `patience` consecutive off-ramps confirmed the previous prediction.

    A prediction confirmed n times was made n + 1 times; counting starts at the first gate block.
    """

    name: ClassVar[str] = "pabee"
    source: ClassVar[str] = "PABEE section 3"

    patience: int = param(2, "t: number of consecutive off-ramps that must confirm the prediction", low=1)
    tolerance: float = param(0.5, "tau, for regression: predictions closer than this confirm each other", low=0.0)
    batch: str = param(
        "row",
        "row: each row of a batch exits on its own; whole: no row exits before all can (as published)",
        choices=("row", "whole"),
    )

    def make_head(self) -> Head:
        """Return the head that reads the off-ramps."""
        return TrainedHead()

    def gate(self, fitted: Mapping[str, Tensor]) -> SteadyPrediction:
        """Return the gate with the streak of equal predictions."""
        return SteadyPrediction(self.tolerance, self.batch == "whole")

    def threshold_rule(self, fitted: Mapping[str, Tensor]) -> Constant:
        """Return a threshold that streaks longer than the patience exceed."""
        return Constant(float(self.patience))
