"""Patience gate: exit when successive blocks choose the same token."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from exitbench.methods.base import BlockView, Gate, param
from exitbench.methods.gated import SoftmaxGating
from exitbench.methods.registry import register
from exitbench.methods.thresholds import Constant


class Streak(Gate):
    """Number of consecutive gate blocks, up to the current one, that chose the same token: 1 after a change."""

    def choice(self, view: BlockView) -> Tensor:
        """Return each row's choice, [A]."""
        return view.best(view.logits_AK)

    def agree(self, choice_A: Tensor, before_A: Tensor) -> Tensor:
        """Return whether each row's choice equals that of the previous gate block, [A]."""
        return choice_A == before_A

    def score(self, view: BlockView) -> Tensor:
        """Return the length of the streak [A]."""
        choice_A = self.choice(view)
        streak_A = torch.ones(choice_A.shape, device=choice_A.device)
        if "choice_A" in view.memory:
            streak_A += torch.where(self.agree(choice_A, view.memory["choice_A"]), view.memory["streak_A"], 0.0)
        view.memory["choice_A"], view.memory["streak_A"] = choice_A, streak_A
        return streak_A

    def score_sql(self, gate_blocks: Sequence[int]) -> str | None:
        """Return the number of gate blocks since the last one that chose another token."""
        changes = f"list_filter({list(gate_blocks)}::INTEGER[], lambda j: j < l AND top1_id[j] != top1_id[l])"
        since = f"coalesce(list_max({changes}), 0)"
        return f"len(list_filter({list(gate_blocks)}::INTEGER[], lambda i: i <= l AND i > {since}))"


@register
@dataclass(frozen=True)
class Patience(SoftmaxGating):
    """Exit when `patience` consecutive blocks chose the same token; counting starts at the first gated block.

    The papers' formula requires patience + 1 equal predictions, their text requires patience.
    """

    name: ClassVar[str] = "patience"
    source: ClassVar[str] = "NATCAP section 3 (after PABEE)"

    patience: int = param(2, "tau: number of blocks for which the prediction must hold", low=1)
    counting: str = param(
        "formula",
        "formula: tau + 1 equal predictions; sentence: tau equal predictions",
        choices=("formula", "sentence"),
    )

    def gate(self, fitted: Mapping[str, Tensor]) -> Streak:
        """Return the gate with the streak of equal choices."""
        return Streak()

    def threshold_rule(self, fitted: Mapping[str, Tensor]) -> Constant:
        """Return the threshold tau, or tau - 1 if the text's rule is selected."""
        return Constant(float(self.patience if self.counting == "formula" else self.patience - 1))
