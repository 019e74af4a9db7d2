"""MEE's top-3 heuristic: exit if the largest token probability grew over the last three blocks."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from exitbench.errors import UserError
from exitbench.methods.base import BlockView, Cost, Gate, ModelInterface, Threshold, param
from exitbench.methods.gated import Gated
from exitbench.methods.gates import softmax_cost
from exitbench.methods.registry import register


class Growing(Gate):
    """Gate whose score is the largest probability (or raw logit) m if m grew over the last three blocks, else 0.

    Args:
        logits: Use raw logits instead of probabilities (a bug in the last commit of MEE's repository).
        inner: Threshold that m must also exceed; the score is then 1 instead of m (the published code). None: no such
            threshold.
    """

    needs_history: ClassVar[bool] = True

    def __init__(self, logits: bool, inner: Threshold | None) -> None:
        self.logits = logits
        self.inner = inner

    def score(self, view: BlockView) -> Tensor:
        """Return the largest probability (or logit, or 1) of rows where it grew, else 0, [A]; 0 before block 3."""
        best_A = self._best(view.logits_AK)
        view.memory[f"best_{view.block}"] = best_A
        if view.block < 3:
            return torch.zeros_like(best_A)
        earlier = [self._remembered(view, view.block - back) for back in (2, 1)]
        grows_A = (earlier[0] < earlier[1]) & (earlier[1] < best_A)
        if self.inner is None:
            return torch.where(grows_A, best_A, 0.0)
        # The published code tests the undecayed threshold, which is the same at every position.
        return (grows_A & (best_A > self.inner.value(view.block, 1, view.max_new_tokens))).float()

    def _remembered(self, view: BlockView, block: int) -> Tensor:
        memory_key = f"best_{block}"
        if memory_key not in view.memory:
            view.memory[memory_key] = self._best(view.earlier_logits(block))
        return view.memory[memory_key]

    def _best(self, logits_AV: Tensor) -> Tensor:
        logits_AV = logits_AV.float()
        return logits_AV.amax(-1) if self.logits else torch.softmax(logits_AV, dim=-1).amax(-1)

    def score_sql(self, gate_blocks: Sequence[int]) -> str:
        """Return SQL for the score at block ``l``, from a probe's columns (stored predictions of every block).

        A raw logit is log p plus the logarithm of the softmax denominator.
        """
        at = "(ln(p1[{0}]) + logsumexp[{0}])" if self.logits else "p1[{0}]"
        first, second, third = (at.format(place) for place in ("l - 2", "l - 1", "l"))
        grows = f"l >= 3 AND {first} < {second} AND {second} < {third}"
        if self.inner is None:
            return f"CASE WHEN {grows} THEN {third} ELSE 0 END"
        return f"CASE WHEN {grows} AND {third} > ({self.inner.sql(1)})::FLOAT THEN 1 ELSE 0 END"

    def cost(self, model: ModelInterface, gate_blocks: Sequence[int]) -> Cost:
        """Return the cost of a softmax at each gate block and, from block 3 on, at the two blocks before it."""
        read = {block - back for block in gate_blocks if block >= 3 for back in (0, 1, 2)} | set(gate_blocks)
        return softmax_cost(model, len(read))


@register
@dataclass(frozen=True)
class MeeTop3(Gated):
    """Exit when the largest probability grew strictly over three blocks and exceeds the threshold.

    In the published code (`variant` "code"), the score is 1 if both hold for the undecayed threshold, else 0. The score
    is then compared with the decayed threshold.
    """

    name: ClassVar[str] = "mee-top3"
    source: ClassVar[str] = "MEE section 3"

    min_exit: int = param(4, "first block at which the gate is evaluated", low=1)
    decay: str = param(
        "code", "decay of the threshold with the position; MEE's runs use code", choices=("none", "code", "paper")
    )
    variant: str = param("text", "text: score m; code: score 1 if m > threshold", choices=("text", "code"))
    signal: str = param(
        "probabilities",
        "values that must grow; logits reproduces the bug of the last commit",
        choices=("probabilities", "logits"),
    )

    def check(self, n_blocks: int) -> None:
        """Raise UserError for rule epsilon with variant code, whose score depends on the threshold to be fitted."""
        super().check(n_blocks)
        if self.variant == "code" and self.rule == "epsilon":
            raise UserError(
                "mee-top3.rule = 'epsilon' does not go with variant = 'code'; allowed: constant, per-block."
            )

    def score_params(self) -> dict[str, Any]:
        """Return the parameters that affect the score, by name.

        With `variant` "code", they include those of the threshold rule, whose threshold is then part of the score.
        """
        rule = {name: getattr(self, name) for name in ("threshold", "rule", "levels")}
        return super().score_params() | (rule if self.variant == "code" else {})

    def gate(self, fitted: Mapping[str, Tensor]) -> Growing:
        """Return the gate whose score is the largest probability (or raw logit) if it grew over three blocks."""
        inner = dataclasses.replace(self, decay="none").threshold_rule(fitted) if self.variant == "code" else None
        return Growing(self.signal == "logits", inner)
