"""Self-speculative decoding: the first blocks draft, all blocks verify (LayerSkip)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from exitbench.methods.base import NOTHING_FITTED, BlockView, Gate, Method, Parts, check_block, param
from exitbench.methods.heads import LMHead
from exitbench.methods.kv_policies import Speculation
from exitbench.methods.registry import register
from exitbench.methods.thresholds import Constant


class Drafts(Gate):
    """Score 1 while fewer than `drafts` drafts of the row wait for verification."""

    def __init__(self, drafts: int) -> None:
        self.drafts = drafts

    def score(self, view: BlockView) -> Tensor:
        """Return 1.0 or 0.0 per row, [A]."""
        waiting_A = view.waiting_A or (0,) * len(view.hidden_AD)
        return torch.tensor([float(waiting < self.drafts) for waiting in waiting_A], device=view.hidden_AD.device)


@register
@dataclass(frozen=True)
class SelfSpeculation(Method):
    """Draft k tokens with the first E blocks, then verify them in one pass of the remaining blocks.

    That pass is also the next token's own, so it produces one token more than it accepts. In fp32 the answer equals
    that of greedy full depth, up to rounding. Rows verified together are multiplied in another shape, so a near-tie may
    resolve differently, in bf16 more often. A checkpoint trained for it (layer dropout, early-exit loss) accepts more
    drafts.
    """

    name: ClassVar[str] = "self-speculation"
    source: ClassVar[str] = "LayerSkip section 4.3"
    drafting: ClassVar[tuple[str, str] | None] = ("exit_layer", "drafts")

    exit_layer: int = param(2, "E: blocks run to draft a token", low=1)
    drafts: int = param(6, "k: tokens drafted before they are verified", low=1)

    def check(self, n_blocks: int) -> None:
        """Raise UserError if the drafting exit is deeper than the decoder."""
        check_block(self, "exit_layer", n_blocks)

    def parts(self, n_blocks: int, fitted: Mapping[str, Tensor] = NOTHING_FITTED) -> Parts:
        """Return parts whose gate counts drafts, evaluated at one block."""
        return Parts(Drafts(self.drafts), Constant(0.5), LMHead(), Speculation(), frozenset({self.exit_layer}))

    def score_params(self) -> dict[str, Any]:
        """Return the draft layer only; the number of waiting drafts is not a property of a single token."""
        return {"exit_layer": self.exit_layer}
