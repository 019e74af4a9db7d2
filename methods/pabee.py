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


class PredictionStreak(Streak):
    """Gate whose score is the number of consecutive gate blocks that predict the same label, or nearly the same number.

    Args:
        tolerance: In a regression, two numbers agree if they differ by less than this.
        whole_batch: If True, the score of every row is the smallest count of the active rows in the batch (the
            published code).
    """

    scores_numbers: ClassVar[bool] = True

    def __init__(self, tolerance: float, whole_batch: bool) -> None:
        self.tolerance, self.whole_batch = tolerance, whole_batch

    def choice(self, view: BlockView) -> Tensor:
        """Return the predicted label of each row, or its predicted number in a regression, [A]."""
        return view.logits_AK[:, 0].float() if view.logits_AK.shape[-1] == 1 else super().choice(view)

    def agree(self, choice_A: Tensor, before_A: Tensor) -> Tensor:
        """Return whether each row's label equals the previous one, or its number is within the tolerance of it, [A]."""
        if choice_A.is_floating_point():
            return (choice_A - before_A).abs() < self.tolerance
        return super().agree(choice_A, before_A)

    def score(self, view: BlockView) -> Tensor:
        """Return the number of consecutive gate blocks with equal predictions, for each active row, [A].

        With `whole_batch`, every row gets the smallest number of all active rows.
        """
        streak_A = super().score(view)
        return streak_A.amin().expand_as(streak_A) if self.whole_batch else streak_A

    def score_sql(self, gate_blocks: Sequence[int]) -> str | None:
        """Return SQL for the score at block ``l``, over a probe (stored predictions of every block).

        Return None with `whole_batch`, since a probe records each document alone.
        """
        return None if self.whole_batch else super().score_sql(gate_blocks)


@register
@dataclass(frozen=True)
class Pabee(PeriodicGating):
    """Exit when `patience` consecutive off-ramps have repeated the prediction of the off-ramp before.

    The same prediction was then made patience + 1 times in a row. Counting starts at the first gate block.
    """

    name: ClassVar[str] = "pabee"
    source: ClassVar[str] = "PABEE section 3"
    head_class: ClassVar[type[Head]] = TrainedHead

    patience: int = param(2, "t: number of consecutive off-ramps that must confirm the prediction", low=1)
    tolerance: float = param(0.5, "tau, for regression: predictions closer than this confirm each other", low=0.0)
    batch: str = param(
        "row",
        "row: each row of a batch exits on its own; whole: no row exits before all can (as published)",
        choices=("row", "whole"),
    )

    def gate(self, fitted: Mapping[str, Tensor]) -> PredictionStreak:
        """Return the gate that counts consecutive equal predictions."""
        return PredictionStreak(self.tolerance, self.batch == "whole")

    def threshold_rule(self, fitted: Mapping[str, Tensor]) -> Constant:
        """Return the patience as a constant threshold, which the count of equal predictions must exceed."""
        return Constant(float(self.patience))
