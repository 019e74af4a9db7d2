"""Self-speculative decoding: the first blocks draft, all blocks verify (LayerSkip)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from exitbench.methods.base import NOTHING_FITTED, BlockView, Gate, Method, Parts, check_block, param
from exitbench.methods.heads import DraftHead, LMHead
from exitbench.methods.kv_policies import Speculation
from exitbench.methods.max_prob import LargestProbability
from exitbench.methods.registry import register
from exitbench.methods.thresholds import Constant


class EveryDraft(Gate):
    """Gate that scores 1, so that every token is a draft until the maximum number of drafts waits for verification."""

    reads_logits: ClassVar[bool] = False

    @property
    def is_bounded(self) -> bool:
        """Whether bounds of the logits decide: yes, since drafts exit without a look at logits."""
        return True

    def score(self, view: BlockView) -> Tensor:
        """Return a score of 1 for each active row, [A]."""
        return torch.ones(len(view.hidden_AD), device=view.hidden_AD.device)


@register
@dataclass(frozen=True)
class SelfSpeculation(Method):
    """Draft k tokens with the first E blocks, then verify them in one pass of the remaining blocks.

    The pass also computes the next token, so it yields one token more than the drafts that it accepts. The answer
    equals that of greedy full depth up to rounding. Matrix products over several tokens round differently, so near-ties
    may resolve differently, in bf16 more often than in fp32. Checkpoints trained with layer dropout and an early-exit
    loss accept more drafts.
    """

    name: ClassVar[str] = "self-speculation"
    source: ClassVar[str] = "LayerSkip section 4.3"
    drafting: ClassVar[tuple[str, str] | None] = ("exit_layer", "drafts")

    exit_layer: int = param(2, "E: blocks run to draft a token", low=1)
    drafts: int = param(6, "k: tokens drafted before they are verified", low=1)
    stop_below: float = param(
        0.0,
        "drafting stops before a token whose probability is at most this; the full model chooses it, and verifies the "
        "drafts before it (Kangaroo's rule). 0: k tokens are drafted every time",
        low=0.0,
        high=1.0,
    )
    draft_ids: int = param(
        0,
        "number of token ids that drafts are chosen from: the lowest ones, which byte-pair encodings give to frequent "
        "tokens. 0: all",
        low=0,
    )

    def check(self, n_blocks: int) -> None:
        """Raise UserError if `exit_layer`, after which drafts exit, is deeper than the decoder."""
        check_block(self, "exit_layer", n_blocks)

    def parts(self, n_blocks: int, fitted: Mapping[str, Tensor] = NOTHING_FITTED) -> Parts:
        """Return gate, threshold, head and KV policy; the gate is evaluated at `exit_layer` only.

        The score is the draft's probability if `stop_below` is positive, and 1 otherwise.
        """
        gate: Gate = LargestProbability() if self.stop_below else EveryDraft()
        head = DraftHead(self.draft_ids) if self.draft_ids else LMHead()
        policy, blocks = Speculation(self.drafts), frozenset({self.exit_layer})
        return Parts(gate, Constant(self.stop_below or 0.5), head, policy, blocks)

    def score_params(self) -> dict[str, Any]:
        """Return the parameters that affect the score, by name: all but the number of drafts."""
        return {"exit_layer": self.exit_layer, "stop_below": self.stop_below, "draft_ids": self.draft_ids}
