"""Contrastive confidence (PRUNE): a block's token distribution against that of an earlier block, the amateur."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from exitbench.methods.base import BlockView, Cost, Gate, ModelInterface, param
from exitbench.methods.gated import SoftmaxGated
from exitbench.methods.gates import margin, softmax_cost
from exitbench.methods.registry import register

SCORES = ("plain", "lcd", "dcd")


@dataclass(frozen=True)
class Contrast(Gate):
    """Gate whose score is the margin s_(1) - s_(2) of a vector s over the vocabulary, which contrasts two blocks.

    p is the token distribution of this block l, and q that of an earlier block, the amateur. The plausible set is
    V_head = {v : p(v) >= alpha max p}. The vector s has three kinds. ``plain`` is p. Within V_head, ``lcd`` and ``dcd``
    are the softmax over V_head of log p - log q; outside, ``lcd`` is 0 and ``dcd`` is p. If no block can be the
    amateur, s is p.

    Attributes:
        alpha: Bound of the plausible set.
        alpha_decay: None for a constant bound; else the bound is alpha / (1 + alpha_decay l) (1 - c), where c is the
            score at the previous gate block, 0 at the first.
        amateur: How the amateur is selected. ``half``: block floor(l/2). ``jsd``: the block a of 2..l-1 with the
            largest Jensen-Shannon divergence (JSD) divided by l - a; distributions are restricted to V_head and not
            normalized again. ``dola-low`` and ``dola-high``: the block with the largest JSD among every second block
            of the decoder's lower or upper half (DoLa's selection).
        gate_score: Kind of the vector whose margin is the score.
        emit_score: Kind of the vector whose largest entry is the emitted token.
        mass: Sum of s over V_head: 1 (``one``), or the probability of V_head (``head``).
    """

    needs_history: ClassVar[bool] = True

    alpha: float
    alpha_decay: float | None
    amateur: str
    gate_score: str
    emit_score: str
    mass: str

    def score(self, view: BlockView) -> Tensor:
        """Return the margin s_(1) - s_(2) of the vector `gate_score` for each active row, [A]."""
        return margin(self._vector(view, self.gate_score))

    def choose(self, view: BlockView) -> Tensor:
        """Return the token with the largest entry of vector `emit_score`, [A]; at the last block, the most probable."""
        if self.emit_score == "plain" or view.is_last:
            return super().choose(view)
        return view.best(self._vector(view, self.emit_score))

    def log_p(self, view: BlockView) -> Tensor:
        """Return logarithms of the vector `emit_score`, [A, V]; at the last block, the model's log-probabilities."""
        if self.emit_score == "plain" or view.is_last:
            return super().log_p(view)
        return self._vector(view, self.emit_score).log()

    @property
    def why_no_log_p(self) -> str | None:
        """Reason why the vector `emit_score` is not a distribution over the vocabulary; None if it is one."""
        if self.emit_score == "lcd":
            return "emit_score = 'lcd' gives tokens outside the plausible set no probability"
        if self.emit_score == "dcd" and self.mass == "one":
            return "emit_score = 'dcd' with mass = 'one' sums to more than 1; mass = 'head' is a distribution"
        return None

    def cost(self, model: ModelInterface, gate_blocks: Sequence[int]) -> Cost:
        """Return the cost of softmaxes at gate blocks and candidate amateurs, and of one divergence per candidate."""
        return softmax_cost(model, sum(3 + 3 * len(self._candidates(block, model.n_blocks)) for block in gate_blocks))

    def _vector(self, view: BlockView, kind: str) -> Tensor:
        log_p_AK = torch.log_softmax(view.logits_AK.float(), dim=-1)
        p_AK = log_p_AK.exp()
        candidates = self._candidates(view.block, view.model.n_blocks)
        if kind == "plain" or not candidates:
            return p_AK
        inside_AK = (p_AK >= self._alpha(view) * p_AK.amax(-1, keepdim=True)) & (p_AK > 0)
        log_q_AK = self._amateur(view, candidates, log_p_AK, inside_AK)
        lcd_AK = torch.softmax((log_p_AK - log_q_AK).masked_fill(~inside_AK, float("-inf")), dim=-1)
        if self.mass == "head":
            lcd_AK = lcd_AK * (p_AK * inside_AK).sum(-1, keepdim=True)
        return torch.where(inside_AK, lcd_AK, p_AK if kind == "dcd" else 0.0)

    def _alpha(self, view: BlockView) -> float | Tensor:
        if self.alpha_decay is None:
            return self.alpha
        bound = self.alpha / (1 + self.alpha_decay * view.block)
        return bound if view.previous_score_A is None else bound * (1 - view.previous_score_A)[:, None]

    def _candidates(self, block: int, n_blocks: int) -> list[int]:
        if self.amateur == "half":
            return [block // 2] if block >= 2 else []
        if self.amateur == "jsd":
            return list(range(2, block))
        half = n_blocks // 2
        bucket = range(0, half, 2) if self.amateur == "dola-low" else range(half, n_blocks, 2)
        return [candidate for candidate in bucket if candidate < block]

    def _amateur(self, view: BlockView, candidates: list[int], log_p_AK: Tensor, inside_AK: Tensor) -> Tensor:
        """Return the log-probabilities [A, K] of the amateur, which is selected per row among candidate blocks."""
        log_q_CAK = torch.stack([torch.log_softmax(view.earlier_logits(at).float(), dim=-1) for at in candidates])
        if len(candidates) == 1:
            return log_q_CAK[0]
        if self.amateur == "jsd":
            distance_C = torch.tensor([view.block - at for at in candidates], device=log_q_CAK.device)
            gain_CA = _divergence(log_p_AK, log_q_CAK, inside_AK) / distance_C[:, None]
        else:
            gain_CA = _divergence(log_p_AK, log_q_CAK, torch.ones_like(inside_AK))
        best_A = gain_CA.argmax(0)
        return log_q_CAK.gather(0, best_A[None, :, None].expand(1, *log_p_AK.shape))[0]


def _divergence(log_p_AK: Tensor, log_q_CAK: Tensor, inside_AK: Tensor) -> Tensor:
    """Return the JSD between p and each of C candidate blocks' q, summed over ids in ``inside_AK`` only, [C, A].

    It is half of KL(p||m) + KL(q||m), where m = (p + q)/2.
    """
    log_m_CAK = torch.logaddexp(log_p_AK, log_q_CAK) - math.log(2.0)
    total_CA = torch.zeros(log_q_CAK.shape[:2], device=log_p_AK.device)
    for log_x in (log_p_AK, log_q_CAK):
        term = log_x.exp() * (log_x - log_m_CAK)
        # A term with probability 0 is 0, although -inf - -inf is NaN.
        total_CA += torch.where(inside_AK & (log_x > float("-inf")), term, 0.0).sum(-1)
    return total_CA / 2


@dataclass(frozen=True)
class ContrastiveBase(SoftmaxGated):
    """Base class of the three contrastive methods of PRUNE, which differ in the defaults of these parameters.

    `contrastive` has the defaults of this class. `contrastive-reweighted` has another ``gate_score`` and ``mass``, and
    `contrastive-jsd` another ``amateur``, the earlier block that is contrasted.
    """

    alpha: float = param(0.1, "bound of the plausible set, as a share of the best probability", low=0.0, high=1.0)
    alpha_schedule: str = param(
        "constant",
        "constant (the code), or hyperbolic (the text): alpha / (1 + alpha_decay l) (1 - confidence before)",
        choices=("constant", "hyperbolic"),
    )
    alpha_decay: float = param(1.0, "decay of the hyperbolic schedule; no value was published", low=0.0)
    amateur: str = param(
        "half",
        "contrasted block: half (of l); jsd: largest discounted divergence; dola-low, dola-high: selection of DoLa",
        choices=("half", "jsd", "dola-low", "dola-high"),
    )
    gate_score: str = param("dcd", "vector whose margin is the score", choices=SCORES)
    emit_score: str = param("plain", "vector whose best token is emitted", choices=SCORES)
    mass: str = param("one", "sum of the contrastive part: one, or p of the plausible set", choices=("one", "head"))

    def gate(self, fitted: Mapping[str, Tensor]) -> Contrast:
        """Return the gate that contrasts a block's distribution with its amateur's."""
        decay = self.alpha_decay if self.alpha_schedule == "hyperbolic" else None
        return Contrast(self.alpha, decay, self.amateur, self.gate_score, self.emit_score, self.mass)


@register
@dataclass(frozen=True)
class Contrastive(ContrastiveBase):
    """Exit on the contrast with the block at half the current depth; tokens outside the plausible set keep p.

    p is the block's token distribution. The plausible set has the tokens with at least alpha times the largest
    probability. The values of all tokens sum to more than 1.
    """

    name: ClassVar[str] = "contrastive"
    source: ClassVar[str] = "PRUNE, contrastive decoding"


@register
@dataclass(frozen=True)
class ContrastiveReweighted(ContrastiveBase):
    """Exit on the contrast with the block at half the current depth; tokens outside the plausible set get 0.

    The plausible set has the tokens with at least alpha times the largest probability. Within the set, the values sum
    to the set's probability.
    """

    name: ClassVar[str] = "contrastive-reweighted"
    source: ClassVar[str] = "PRUNE, reweighted contrastive decoding"

    gate_score: str = param("lcd", "vector whose margin is the score", choices=SCORES)
    mass: str = param("head", "sum of the contrastive part: one, or p of the plausible set", choices=("one", "head"))


@register
@dataclass(frozen=True)
class ContrastiveJsd(ContrastiveBase):
    """Exit on the contrast with the earlier block whose Jensen-Shannon divergence, divided by its distance, is largest.

    Tokens outside the plausible set (less than alpha times the largest probability) keep their probability p.
    """

    name: ClassVar[str] = "contrastive-jsd"
    source: ClassVar[str] = "PRUNE, JSD contrastive confidence"

    amateur: str = param(
        "jsd",
        "contrasted block: half (of l); jsd: largest discounted divergence; dola-low, dola-high: selection of DoLa",
        choices=("half", "jsd", "dola-low", "dola-high"),
    )
