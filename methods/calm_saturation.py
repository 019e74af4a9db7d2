"""CALM with the hidden-state saturation measure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from exitbench.methods.base import BlockView, Cost, Gate, ModelInterface, param
from exitbench.methods.gated import Gated
from exitbench.methods.registry import register


class Saturation(Gate):
    """cos(h^{l-1}, h^l) in [-1, 1]; the LM head is read only at the exit."""

    needs_history: ClassVar[bool] = True
    scores_numbers: ClassVar[bool] = True

    def __init__(self, normed: bool, zero_first: bool) -> None:
        self.normed = normed
        self.zero_first = zero_first

    def score(self, view: BlockView) -> Tensor:
        """Return the cosine [A]."""
        if self.zero_first and view.previous_score_A is None:
            return torch.zeros(view.hidden_AD.shape[0], device=view.hidden_AD.device)
        state = view.normed_state if self.normed else view.state
        before_AD, now_AD = state(view.block - 1), state(view.block)
        return F.cosine_similarity(before_AD.float(), now_AD.float(), dim=-1)

    def score_sql(self, gate_blocks: Sequence[int]) -> str:
        """Return the probe's column of the cosine."""
        cosine = "cosine_previous_normed[l]" if self.normed else "cosine_previous[l]"
        return f"CASE WHEN l = {gate_blocks[0]} THEN 0 ELSE {cosine} END" if self.zero_first and gate_blocks else cosine

    def cost(self, model: ModelInterface, gate_blocks: Sequence[int]) -> Cost:
        """Return the cost of three dot products per gate block, and of two norms if `states` is "normed"."""
        return Cost(elementwise_flops=(14 if self.normed else 6) * model.d_model * len(gate_blocks))


@register
@dataclass(frozen=True)
class CalmSaturation(Gated):
    """Exit when a block barely turned the state: its cosine to the previous state exceeds the threshold."""

    name: ClassVar[str] = "calm-saturation"
    source: ClassVar[str] = "CALM section 3.5"

    states: str = param(
        "normed", "compared states: with the final norm applied (MEE) or without (t5x)", choices=("normed", "raw")
    )
    first: str = param(
        "embedding",
        "score at the first gate block: compare with the state before it, at block 1 the embedding (MEE), or 0 (t5x)",
        choices=("embedding", "zero"),
    )

    def gate(self, fitted: Mapping[str, Tensor]) -> Saturation:
        """Return the gate with the cosine of successive states."""
        return Saturation(self.states == "normed", self.first == "zero")
