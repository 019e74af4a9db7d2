"""Entropy gate: exit on the entropy of a block's token distribution."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from exitbench.methods.base import BlockView, param
from exitbench.methods.gated import SoftmaxGated
from exitbench.methods.gates import OneSoftmax, softmax_rounding
from exitbench.methods.registry import register


class InversePerplexity(OneSoftmax):
    """Gate whose score is the inverse perplexity exp(-H), where H is the entropy in nats.

    It is 1 if one token has probability 1, and 1/V if all V tokens have the same probability.
    """

    def score(self, view: BlockView) -> Tensor:
        """Return exp(-H) of each active row, [A]."""
        return negative_entropy(view.logits_AK).exp()

    def bounds(self, lower_AV: Tensor, upper_AV: Tensor) -> tuple[Tensor, Tensor]:
        """Return lower and upper bounds of exp(-H), [A] each, for logits between ``lower_AV`` and ``upper_AV``.

        They come from the smallest and largest -p log p within each probability's bounds. -p log p increases up to
        p = 1/e and decreases from there.
        """
        rounding, vocab_size = softmax_rounding(lower_AV.shape[1]), lower_AV.shape[1]
        top_A1 = upper_AV.amax(-1, keepdim=True)
        low_AV, high_AV = (lower_AV - top_A1).exp_(), (upper_AV - top_A1).exp_()
        most_A1, least_A1 = (high_AV.sum(-1, keepdim=True), low_AV.sum(-1, keepdim=True))
        between_AV = high_AV - low_AV
        p_low_AV = low_AV / (most_A1 * (1 + rounding) - between_AV)
        p_high_AV = (high_AV / (least_A1 * (1 - rounding) + between_AV)).clamp_(max=1)
        low_A = torch.minimum(_surprise(p_low_AV), _surprise(p_high_AV)).sum(-1)
        peak_AV = p_high_AV.clamp_(max=1 / math.e).maximum(p_low_AV)
        high_A = _surprise(peak_AV).sum(-1).clamp(max=math.log(vocab_size))
        slack_A = 2 * rounding * (1 + high_A)
        return (-high_A - slack_A).exp().clamp(0, 1), (slack_A - low_A).exp().clamp(0, 1)

    def score_sql(self, gate_blocks: Sequence[int]) -> str:
        """Return the SQL expression of a token's score at the block with number ``l``, a variable of the query.

        It reads the token's row in a probe, whose columns are lists with one prediction per block. The score does not
        depend on ``gate_blocks``, the blocks at which the gate is evaluated.
        """
        return "exp(-entropy[l])"


def negative_entropy(logits_AK: Tensor) -> Tensor:
    """Return the negative entropy of each row's softmax, the sum of p log p in nats, [A]."""
    log_p_AK = torch.log_softmax(logits_AK.float(), dim=-1)
    # Ids that a pruned head does not read have p = 0 and log p = -inf; they add nothing.
    return (log_p_AK.exp() * log_p_AK.clamp(min=-1e4)).sum(-1)


def _surprise(p: Tensor) -> Tensor:
    """Return -p log p for each element; 0 at p = 0."""
    return p.clamp(min=1e-30).log_().mul_(p).neg_()


@register
@dataclass(frozen=True)
class Entropy(SoftmaxGated):
    """Exit when the entropy of the prediction is below the threshold.

    The threshold is an entropy in nats. The score is exp(-H), so that higher is more confident, as for all other gates.
    A token exits if score > exp(-threshold), which is the same as H < threshold.
    """

    name: ClassVar[str] = "entropy"
    source: ClassVar[str] = "NATCAP section 3"

    threshold: float = param(0.5, "exit if the entropy in nats < threshold", low=0.0)

    def level(self, threshold: float) -> float:
        """Convert an entropy threshold in nats to the scale of the score: exp(-threshold)."""
        return math.exp(-threshold)

    def gate(self, fitted: Mapping[str, Tensor]) -> InversePerplexity:
        """Return the gate, whose score is exp(-H) with the entropy H of a block's prediction; `fitted` is not used."""
        return InversePerplexity()
