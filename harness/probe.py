"""The probe: one full-depth teacher-forced pass that records what every block says about every token.

The model reads its own greedy output, so one pass over all positions gives the states that step-by-step decoding at
full depth would have seen. Columns are those of papers.md 4 ("union of columns").

Shape suffixes: N tokens (all rows and positions), L blocks, D model width, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from exitbench.harness.cache import Cache
from exitbench.harness.checkpoint import Checkpoint
from exitbench.harness.model import Transformer
from exitbench.harness.positions import padded
from exitbench.results.settling import settling

LOGITS_BUDGET_BYTES = 256 * 2**20
"""Most memory for the logits of all blocks at once; tokens are read out in chunks that fit."""


@torch.inference_mode()
def probe(checkpoint: Checkpoint, prompts: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Record the signals of every generated token.

    Args:
        checkpoint: The model.
        prompts: Token ids of each row's prompt.
        outputs: What the model generated for each, at full depth.

    Returns:
        Arrays over the N tokens in row order: ``full_token_id``, ``first_match``, ``stable_from`` and what
        `results.settling` adds [N]; per block [N, L] the columns of the spool's probe table.
    """
    states_LND = states_of(checkpoint, prompts, outputs)
    model = checkpoint.model
    per_token = states_LND.shape[0] * model.vocab_size * 4 * 4  # logits, probabilities and two mixtures, fp32
    chunk = max(1, LOGITS_BUDGET_BYTES // per_token)
    parts = [_signals(model, piece) for piece in torch.split(states_LND, chunk, dim=1)]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def states_of(checkpoint: Checkpoint, prompts: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]]) -> Tensor:
    """States after the embedding and after every block, at the positions that predict outputs: [L+1, N, D]."""
    fed = teacher_forced(checkpoint, prompts, outputs)
    return torch.stack([hidden[fed.predicts_BT] for hidden in _forward(checkpoint.model, fed)])


@dataclass(frozen=True)
class Fed:
    """What the decoder is given to see all of its own output at once.

    Attributes:
        tokens_BT: Tokens fed.
        cache: Of the batch, with what the encoder says; no position is filled.
        predicts_BT: Where an output token is predicted; N of them.
    """

    tokens_BT: Tensor
    cache: Cache
    predicts_BT: Tensor


def teacher_forced(checkpoint: Checkpoint, prompts: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]]) -> Fed:
    """Prepare one pass over prompts and the outputs that follow them."""
    model = checkpoint.model
    if checkpoint.start_id is not None:
        fed = [[checkpoint.start_id, *output[:-1]] for output in outputs]
        tokens, mask = padded(fed, model.device, side="right")
        cache, _ = model.start(prompts, tokens.shape[1])
        predicts = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask
    else:
        fed = [[*prompt, *output[:-1]] for prompt, output in zip(prompts, outputs, strict=True)]
        tokens, mask = padded(fed, model.device, side="left")
        cache = Cache(model, len(fed), tokens.shape[1])
        cache.padding_B = None if mask is None else (~mask).sum(1)
        lengths_B = torch.tensor([len(output) for output in outputs], device=model.device)
        places = torch.arange(tokens.shape[1], device=model.device)
        predicts = places[None, :] >= tokens.shape[1] - lengths_B[:, None]
    return Fed(tokens, cache, predicts)


def _forward(model: Transformer, fed: Fed) -> Iterator[Tensor]:
    hidden = model.embed(fed.tokens_BT, fed.cache)
    yield hidden
    for block in range(1, model.n_blocks + 1):
        hidden = model.block(block, hidden, fed.cache)
        yield hidden


def _signals(model: Transformer, states_LND: Tensor) -> dict[str, np.ndarray]:
    logits_LNV = model.logits(states_LND).float()
    normed_LND = model.final_normed(states_LND).float()
    raw_LND = states_LND.float()
    log_p_LNV = torch.log_softmax(logits_LNV, dim=-1)
    p_LNV = log_p_LNV.exp()
    top = p_LNV[1:].topk(3, dim=-1)
    # topk promises no order among ties; argmax takes the lowest id, as the decode loop does.
    top1_LN = logits_LNV[1:].argmax(dim=-1)
    final_N = top1_LN[-1]
    final_logit_LN1 = logits_LNV[1:].gather(-1, final_N.expand(top1_LN.shape)[..., None])
    agrees_LN = top1_LN == final_N
    stable_LN = agrees_LN.flip(0).cummin(0).values.flip(0)
    columns = {
        "full_token_id": final_N,
        "first_match": agrees_LN.int().argmax(0) + 1,
        "stable_from": stable_LN.int().argmax(0) + 1,
        "top1_id": top1_LN.T,
        "top2_id": _second(top.indices, top1_LN).T,
        "top3_id": top.indices[..., 2].T,
        "p1": top.values[..., 0].T,
        "p2": top.values[..., 1].T,
        "p3": top.values[..., 2].T,
        "p_final": p_LNV[1:].gather(-1, final_N.expand(top1_LN.shape)[..., None])[..., 0].T,
        "rank_final": (1 + (logits_LNV[1:] > final_logit_LN1).sum(-1)).T,
        "entropy": -(p_LNV[1:] * log_p_LNV[1:]).sum(-1).T,
        "logsumexp": logits_LNV[1:].logsumexp(-1).T,
        "cosine_previous": F.cosine_similarity(raw_LND[:-1], raw_LND[1:], dim=-1).T,
        "cosine_previous_normed": F.cosine_similarity(normed_LND[:-1], normed_LND[1:], dim=-1).T,
        "cosine_last": F.cosine_similarity(normed_LND[1:], normed_LND[-1:], dim=-1).T,
        "jsd_previous": jensen_shannon(log_p_LNV[:-1], log_p_LNV[1:]).T,
        "jsd_last": jensen_shannon(log_p_LNV[1:], log_p_LNV[-1:]).T,
    }
    arrays = {name: value.cpu().numpy() for name, value in columns.items()}
    return {**arrays, **settling(arrays["p_final"], arrays["cosine_last"])}


def _second(top_LN3: Tensor, first_LN: Tensor) -> Tensor:
    """The id that stands second once ``first`` is first (they can only differ where the two are tied)."""
    return torch.where(top_LN3[..., 0] == first_LN, top_LN3[..., 1], top_LN3[..., 0])


def jensen_shannon(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Jensen-Shannon divergence in nats over the last dimension, between 0 and ln 2."""
    log_m = torch.logaddexp(log_p, log_q.expand_as(log_p)) - math.log(2.0)
    to_m = (log_p.exp() * (log_p - log_m)).sum(-1) + (log_q.exp() * (log_q - log_m)).sum(-1)
    return torch.clamp(to_m / 2, min=0)
