"""Logit lens on sub-layers, and similarity of every pair of blocks (figures 6 and 10 of the paper NATCAP).

The model reads its own output in one teacher-forced pass (`engine.decoding.probe`). Both take each token's state at the
position that predicts it. They are recorded only if a suite requests them, since both are expensive.

Shape suffixes: B rows, T positions, N tokens (positions that predict), L blocks, D model width, V vocabulary,
K tokens kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from exitbench.harness.engine.checkpoints.loading import Checkpoint
from exitbench.harness.engine.decoding.probe import LOGITS_BUDGET_BYTES, states_of, teacher_forced
from exitbench.harness.engine.decoding.signals import jensen_shannon
from exitbench.harness.engine.model.cache import Cache
from exitbench.harness.engine.model.engine import Engine
from exitbench.harness.engine.model.model import Transformer
from exitbench.harness.engine.model.step_context import StepContext

KEPT = 10
"""Number of most probable tokens kept per read-out (NATCAP Table 12)."""


@dataclass(frozen=True)
class SublayerReadOut:
    """Read-out of one part (sub-layer) of one block by final norm and LM head, for each token.

    Attributes:
        block: The block, 1..L.
        part: Name of the part, such as ``self-attention`` (see `sublayer_states`).
        top_ids_NK: Most probable tokens, best first; among equals the lower id first.
        top_p_NK: Probabilities of these tokens.
        entropy_N: Entropy of the distribution over the whole vocabulary, in nats.
    """

    block: int
    part: str
    top_ids_NK: np.ndarray
    top_p_NK: np.ndarray
    entropy_N: np.ndarray


@torch.inference_mode()
def sublayer_read_outs(
    checkpoint: Checkpoint, prompt: Sequence[int], output: Sequence[int]
) -> Iterator[SublayerReadOut]:
    """Yield the read-out of every part (sub-layer) of every block, in the order in which they run.

    Args:
        checkpoint: The model.
        prompt: Token ids of the prompt.
        output: Token ids that the model generated at full depth; N tokens.
    """
    model = checkpoint.model
    assert isinstance(model, Transformer), "only the lean engine knows the parts of its blocks"
    fed = teacher_forced(checkpoint, [prompt], [output])
    assert isinstance(fed.cache, Cache), "as is its cache"
    hidden_BTD, context = model.embed(fed.tokens_BT, fed.cache)
    for block in range(1, model.n_blocks + 1):
        parts = sublayer_states(model, block, hidden_BTD, context)
        for part, state_BTD in parts.items():
            yield _read_out(model, block, part, state_BTD[fed.predicts_BT])
        hidden_BTD = parts["block"]


def sublayer_states(model: Transformer, block: int, hidden_BTD: Tensor, context: StepContext) -> dict[str, Tensor]:
    """Run a block; return what each part (sub-layer) adds to the residual stream, and the stream after each of them.

    Args:
        model: The model.
        block: Number of the block, 1..L.
        hidden_BTD: The stream before the block.
        context: Cache, masks and positions of the pass, from `embed`; the block's keys and values are written.

    Returns:
        By part [B, T, D]: contributions 'self-attention', 'cross-attention' (encoder-decoder only) and 'feed-forward';
        the stream 'after-self-attention' (encoder-decoder only), 'after-attention' (after all attention of the block)
        and after the whole 'block'.
    """
    weights, stream_ND = model.weights.blocks[block - 1], hidden_BTD.flatten(0, 1)
    added_ND = weights.attention_out(model.self_attention(block, stream_ND, context))
    parts = {"self-attention": added_ND}
    stream_ND = stream_ND + added_ND
    if weights.cross_out is not None:
        parts["after-self-attention"] = stream_ND
        parts["cross-attention"] = weights.cross_out(model.cross_attention(block, stream_ND, context))
        stream_ND = stream_ND + parts["cross-attention"]
    parts["after-attention"] = stream_ND
    parts["feed-forward"] = weights.down(model.feed_forward(weights, stream_ND).to(weights.down.weight.dtype))
    parts["block"] = stream_ND + parts["feed-forward"]
    return {part: state_ND.view(hidden_BTD.shape) for part, state_ND in parts.items()}


def _read_out(model: Engine, block: int, part: str, states_ND: Tensor) -> SublayerReadOut:
    log_p_NV = torch.log_softmax(model.logits(states_ND).float(), dim=-1)
    # topk does not order ties.
    ranked = log_p_NV.sort(dim=-1, descending=True, stable=True)
    top_ids, top_log_p = ranked.indices[:, :KEPT], ranked.values[:, :KEPT]
    entropy_N = -(log_p_NV.exp() * log_p_NV).sum(-1)
    return SublayerReadOut(block, part, top_ids.cpu().numpy(), top_log_p.exp().cpu().numpy(), entropy_N.cpu().numpy())


@torch.inference_mode()
def layer_pairs(checkpoint: Checkpoint, prompt: Sequence[int], output: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the similarity of every pair of blocks, as means over the tokens of one output.

    Args:
        checkpoint: The model.
        prompt: Token ids of the prompt.
        output: Token ids that the model generated at full depth; N tokens.

    Returns:
        Two arrays [L, L], means over the tokens: cosine of the states after the final norm, and Jensen-Shannon
        divergence of the read-outs in nats.
    """
    model = checkpoint.model
    states_LND = states_of(checkpoint, [prompt], [output])[1:]
    normed_LND = torch.nn.functional.normalize(model.final_normed(states_LND).double(), dim=-1)
    cosine_LL = torch.einsum("and,bnd->ab", normed_LND, normed_LND) / len(output)
    jsd_LL = torch.zeros_like(cosine_LL)
    per_token = len(states_LND) * model.vocab_size * 4 * 4  # log-probabilities and mixtures, fp32
    for piece_LND in torch.split(states_LND, max(1, LOGITS_BUDGET_BYTES // per_token), dim=1):
        log_p_LNV = torch.log_softmax(model.logits(piece_LND).float(), dim=-1)
        p_LNV = log_p_LNV.exp()
        entropy_LN = -torch.linalg.vecdot(p_LNV, log_p_LNV)
        for a in range(len(states_LND) - 1):
            jsd_LN = jensen_shannon(p_LNV[a + 1 :], p_LNV[a], entropy_LN[a + 1 :], entropy_LN[a])
            later = jsd_LN.double().sum(-1) / len(output)
            jsd_LL[a, a + 1 :] += later
            jsd_LL[a + 1 :, a] += later
    return cosine_LL.cpu().numpy(), jsd_LL.cpu().numpy()
