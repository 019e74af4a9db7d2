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
    """Gate whose score is the number of consecutive gate blocks, up to the current one, that chose the same token.

    It is 1 at the first gate block and after a change.
    """

    def choice(self, view: BlockView) -> Tensor:
        """Return the most probable token of each active row, [A]; the score counts how often it is repeated."""
        return view.best(view.logits_AK)

    def agree(self, choice_A: Tensor, before_A: Tensor) -> Tensor:
        """Return whether each row's choice equals that of the previous gate block, [A]."""
        return choice_A == before_A

    def score(self, view: BlockView) -> Tensor:
        """Return the number of consecutive gate blocks with the same choice, for each active row, [A]."""
        choice_A = self.choice(view)
        streak_A = torch.ones(choice_A.shape, device=choice_A.device)
        if "choice_A" in view.memory:
            streak_A += torch.where(self.agree(choice_A, view.memory["choice_A"]), view.memory["streak_A"], 0.0)
        view.memory["choice_A"], view.memory["streak_A"] = choice_A, streak_A
        return streak_A

    def score_sql(self, gate_blocks: Sequence[int]) -> str | None:
        """Return SQL for the score at block ``l``, over a probe (stored predictions of every block).

        It counts the gate blocks up to ``l`` after the last one that chose another token than block ``l``.
        """
        changes = f"list_filter({list(gate_blocks)}::INTEGER[], lambda j: j < l AND top1_id[j] != top1_id[l])"
        since = f"coalesce(list_max({changes}), 0)"
        return f"len(list_filter({list(gate_blocks)}::INTEGER[], lambda i: i <= l AND i > {since}))"


@register
@dataclass(frozen=True)
class Patience(SoftmaxGating):
    """Exit when `patience` consecutive blocks chose the same token; counting starts at the first gate block.

    The papers' formula requires patience + 1 equal choices, and their text requires patience; the parameter `counting`
    selects one.
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
        """Return the gate that counts consecutive equal choices."""
        return Streak()

    def threshold_rule(self, fitted: Mapping[str, Tensor]) -> Constant:
        """Return the constant threshold: the patience tau, or tau - 1 if `counting` is "sentence"."""
        return Constant(float(self.patience if self.counting == "formula" else self.patience - 1))
