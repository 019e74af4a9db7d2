"""CALM with the hidden-state saturation measure: the cosine similarity of successive states."""

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
    """Gate whose score is the cosine similarity of the states before and after a block, in [-1, 1].

    It does not need logits, so the LM head is read only at the exit.

    Args:
        normed: Apply the model's final norm to the states first.
        zero_first: Score 0 at the first gate block.
    """

    needs_history: ClassVar[bool] = True
    scores_numbers: ClassVar[bool] = True

    def __init__(self, normed: bool, zero_first: bool) -> None:
        self.normed = normed
        self.zero_first = zero_first

    def score(self, view: BlockView) -> Tensor:
        """Return the cosine similarity of each active row's states before and after the block, [A].

        With ``zero_first``, return 0 at the first gate block.
        """
        if self.zero_first and view.previous_score_A is None:
            return torch.zeros(view.hidden_AD.shape[0], device=view.hidden_AD.device)
        state = view.normed_state if self.normed else view.state
        # An encoder appends the output of its off-ramps' attention to its states.
        before_AD, now_AD = (state(block)[:, : view.model.d_model] for block in (view.block - 1, view.block))
        return F.cosine_similarity(before_AD.float(), now_AD.float(), dim=-1)

    def score_sql(self, gate_blocks: Sequence[int]) -> str:
        """Return SQL for the score at block ``l``, from a probe's columns (stored predictions of every block)."""
        cosine = "cosine_previous_normed[l]" if self.normed else "cosine_previous[l]"
        return f"CASE WHEN l = {gate_blocks[0]} THEN 0 ELSE {cosine} END" if self.zero_first and gate_blocks else cosine

    def cost(self, model: ModelInterface, gate_blocks: Sequence[int]) -> Cost:
        """Return the cost of three dot products per gate block, and of two final norms if the states are normed."""
        return Cost(elementwise_flops=(14 if self.normed else 6) * model.d_model * len(gate_blocks))


@register
@dataclass(frozen=True)
class CalmSaturation(Gated):
    """Exit when a block hardly changes the state: the cosine of the states before and after exceeds the threshold."""

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
        """Return the gate that scores the cosine similarity of successive states."""
        return Saturation(self.states == "normed", self.first == "zero")
