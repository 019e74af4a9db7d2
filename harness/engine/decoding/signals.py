"""Confidence signals of every token and block (entropy, margin, agreement, ...), from states alone.

They are bound by memory bandwidth: the vocabulary's probabilities are read and written many times. So the LM head is
multiplied for many tokens at once. Everything after it is computed for few at a time, to stay in the CPU's cache.

Shape suffixes: N tokens, L blocks, D model width, V vocabulary, C stretches of the vocabulary, K tokens searched.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from exitbench.harness.engine.model.engine import Engine

PIECE_NUMEL = 2**18
"""Number of logits processed at once."""
STRETCH = 128
"""Length of a vocabulary stretch; only the largest logit of each is compared first."""


def signals(model: Engine, states_LND: Tensor, target_N: Tensor | None = None) -> dict[str, Tensor]:
    """Return the confidence signals of tokens at every block, computed from their states.

    Args:
        model: The model.
        states_LND: States after the embedding and after every block, [L+1, N, D].
        target_N: Given tokens whose log-probabilities are returned too.

    Returns:
        ``full_token_id``, ``first_match`` and ``stable_from`` [N]; the other columns of the spool's probe table [N, L],
        and ``logprob`` [N, L] if tokens are given.
    """
    logits_LNV = model.logits(states_LND).float()
    # Before the chunks are processed, which overwrites the logits.
    logit_LN1 = None if target_N is None else logits_LNV[1:].gather(-1, target_N.expand(model.n_blocks, -1)[..., None])
    few = max(1, PIECE_NUMEL // logits_LNV[:, 0].numel())
    pieces = [_logit_columns(piece_LNV) for piece_LNV in torch.split(logits_LNV, few, dim=1)]
    columns = {name: torch.cat([piece[name] for piece in pieces]) for name in pieces[0]}
    agrees_NL = columns["top1_id"] == columns["top1_id"][:, -1:]
    stable_NL = agrees_NL.flip(1).cummin(1).values.flip(1)
    given_columns = {} if logit_LN1 is None else {"logprob": logit_LN1[..., 0].T - columns["logsumexp"]}
    return {
        **given_columns,
        "full_token_id": columns["top1_id"][:, -1],
        "first_match": agrees_NL.int().argmax(1) + 1,
        "stable_from": stable_NL.int().argmax(1) + 1,
        **columns,
        **_state_columns(model, states_LND),
    }


def _state_columns(model: Engine, states_LND: Tensor) -> dict[str, Tensor]:
    normed_LND, raw_LND = model.final_normed(states_LND).float(), states_LND.float()
    return {
        "cosine_previous": F.cosine_similarity(raw_LND[:-1], raw_LND[1:], dim=-1).T,
        "cosine_previous_normed": F.cosine_similarity(normed_LND[:-1], normed_LND[1:], dim=-1).T,
        "cosine_last": F.cosine_similarity(normed_LND[1:], normed_LND[-1:], dim=-1).T,
    }


def _logit_columns(logits_LNV: Tensor) -> dict[str, Tensor]:
    largest_LN3, ids_LN3 = _three_largest(logits_LNV[1:])
    final_N1 = ids_LN3[-1, :, :1]
    final_logit_LN1 = logits_LNV[1:].gather(-1, final_N1.expand(len(ids_LN3), -1, -1))
    rank_LN = 1 + (logits_LNV[1:] > final_logit_LN1).view(torch.uint8).sum(-1, dtype=torch.int32)
    best_LN1 = logits_LNV.amax(-1, keepdim=True)
    p_LNV = torch.softmax(logits_LNV, dim=-1)
    # The largest probability is exp(0) over the sum that softmax divides by.
    log_p1_LN = p_LNV.amax(-1).log()
    logsumexp_LN = best_LN1[..., 0] - log_p1_LN
    # -sum p log p without a logarithm per token: log p is log p1 plus the distance to the largest logit.
    entropy_LN = -log_p1_LN - torch.linalg.vecdot(p_LNV, logits_LNV.sub_(best_LN1))
    p_LN3 = torch.exp(largest_LN3 - logsumexp_LN[1:, :, None])
    return {
        "top1_id": ids_LN3[..., 0].T,
        "top2_id": ids_LN3[..., 1].T,
        "top3_id": ids_LN3[..., 2].T,
        "p1": p_LN3[..., 0].T,
        "p2": p_LN3[..., 1].T,
        "p3": p_LN3[..., 2].T,
        "p_final": torch.exp(final_logit_LN1[..., 0] - logsumexp_LN[1:]).T,
        "rank_final": rank_LN.T,
        "entropy": entropy_LN[1:].T,
        "logsumexp": logsumexp_LN[1:].T,
        "jsd_previous": jensen_shannon(p_LNV[:-1], p_LNV[1:], entropy_LN[:-1], entropy_LN[1:]).T,
        "jsd_last": jensen_shannon(p_LNV[1:], p_LNV[-1:], entropy_LN[1:], entropy_LN[-1:]).T,
    }


def _three_largest(logits_LNV: Tensor) -> tuple[Tensor, Tensor]:
    """Return the three largest logits, [L, N, 3], and their ids; among equals the lowest id is first, as in decoding.

    Of the vocabulary's stretches (equal ranges of ids), only the three with the largest maxima are searched, and the
    ids after the last stretch.
    """
    n_stretches = logits_LNV.shape[-1] // STRETCH
    if n_stretches < 3:
        largest, ids = logits_LNV.topk(3)
    else:
        divisible_LNV = logits_LNV[..., : n_stretches * STRETCH]
        best_LNC = divisible_LNV.view(*divisible_LNV.shape[:-1], n_stretches, STRETCH).amax(-1)
        stretches_LN3 = best_LNC.topk(3).indices
        offsets = torch.arange(STRETCH, device=logits_LNV.device)
        ids_LNK = (stretches_LN3[..., None] * STRETCH + offsets).flatten(-2)
        tail_ids = torch.arange(divisible_LNV.shape[-1], logits_LNV.shape[-1], device=logits_LNV.device)
        ids_LNK = torch.cat((ids_LNK, tail_ids.expand(*ids_LNK.shape[:-1], -1)), dim=-1)
        largest, places = logits_LNV.gather(-1, ids_LNK).topk(3)
        ids = ids_LNK.gather(-1, places)
    if bool((largest[..., 0] == largest[..., 1]).any()):
        first = logits_LNV.argmax(-1)
        second = torch.where(ids[..., 0] == first, ids[..., 1], ids[..., 0])
        third = torch.where((ids[..., 0] == first) | (ids[..., 1] == first), ids[..., 2], ids[..., 1])
        ids = torch.stack((first, second, third), dim=-1)
    return largest, ids


def jensen_shannon(p: Tensor, q: Tensor, entropy_p: Tensor, entropy_q: Tensor) -> Tensor:
    """Return the Jensen-Shannon divergence in nats over the last dimension, between 0 and ln 2, given both entropies.

    JSD = H((p + q) / 2) - (H(p) + H(q)) / 2; only the first term is computed here, and p + q sums to 2. In fp32,
    divergences below about 1e-6 are indistinguishable from 0.
    """
    both = p + q
    # Clamped, since 0 log 0 would be NaN; such terms are multiplied by 0.
    terms = both.clamp_min(torch.finfo(both.dtype).tiny).log_().mul_(both)
    return torch.clamp(math.log(2.0) - (terms.sum(-1) + entropy_p + entropy_q) / 2, min=0, max=math.log(2.0))
