"""Cross-entropy of every decoder block, and the joint loss that makes early exits mean something.

Each block's output is read out exactly as the last block's is: shared final norm, T5's tied scaling
d_model ** -0.5, shared head. CALM's weights are w_l = l / sum_j j (Schuster et al., 2022).
"""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import T5ForConditionalGeneration

IGNORED = -100
SLICE_TOKENS = 512


def block_weights(blocks: int, loss: Literal["last", "weighted"]) -> Tensor:
    """Weight of each block's cross-entropy, [L], summing to 1."""
    if loss == "last":
        return F.one_hot(torch.tensor(blocks - 1), blocks).float()
    depths = torch.arange(1, blocks + 1, dtype=torch.float32)
    return depths / depths.sum()


def readable_states(
    model: T5ForConditionalGeneration, source: Tensor, source_mask: Tensor, target: Tensor
) -> list[Tensor]:
    """Run the model teacher-forced and return what the head reads at every block.

    Args:
        model: The model; dropout follows its mode.
        source: Source ids, [B, S].
        source_mask: 1 where `source` is a token, [B, S].
        target: Target ids with `IGNORED` for padding, [B, T].

    Returns:
        L tensors of final-normed, scaled states of the target's tokens only, each [N, d_model].
    """
    encoded = model.encoder(input_ids=source, attention_mask=source_mask).last_hidden_state
    decoded = model.decoder(
        input_ids=model.prepare_decoder_input_ids_from_labels(target),
        encoder_hidden_states=encoded,
        encoder_attention_mask=source_mask,
        output_hidden_states=True,
        use_cache=False,
    )
    stack = model.decoder
    # transformers returns (embedding, block 1, .., block L), and only the last of them is final-normed already.
    inner = [stack.dropout(stack.final_layer_norm(h)) for h in decoded.hidden_states[1:-1]]
    tokens = (target != IGNORED).flatten().nonzero().squeeze(1)
    scale = model.model_dim**-0.5 if model.config.scale_decoder_outputs else 1.0
    # index_select: the gradient of boolean indexing is several times slower.
    return [h.flatten(0, 1).index_select(0, tokens) * scale for h in [*inner, decoded.last_hidden_state]]


def head_loss(states: Tensor, head: Tensor, target: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Mean cross-entropy in nats of one block; equals `F.cross_entropy(states @ head.T, target)`.

    Args:
        states: What the head reads, [N, d_model].
        head: The shared head, [V, d_model].
        target: Gold ids, [N].
        label_smoothing: Share of the gold token's mass that is spread over the vocabulary.

    Returns:
        A scalar, fp32.
    """
    loss: Tensor = _HeadLoss.apply(states, head, target, label_smoothing)  # type: ignore[no-untyped-call]
    return loss


class _HeadLoss(torch.autograd.Function):
    """Head and cross-entropy in one, with gradients computed in the forward pass.

    With a head on every block, logits are most of a step's memory traffic. Here they are visited three
    times (product, softmax, product), a slice of tokens that stays in the processor's cache at a time.
    Smoothing is linear in the logits, so its share needs no [N, V] array at all.
    """

    @staticmethod
    def forward(ctx: Any, states: Tensor, head: Tensor, target: Tensor, smoothing: float) -> Tensor:
        n, vocabulary = len(states), len(head)
        head_mean = head.float().mean(0)
        loss = torch.zeros(())
        d_states, d_head = torch.empty_like(states), torch.zeros(head.shape)
        for h, gold, d_h in zip(*(torch.split(x, SLICE_TOKENS) for x in (states, target, d_states)), strict=True):
            logits = F.linear(h, head)
            gold_logit = logits.gather(1, gold[:, None]).squeeze(1).float()
            p = logits.softmax(-1)
            p_gold = p.gather(1, gold[:, None]).squeeze(1).float().clamp_min(torch.finfo(torch.float32).tiny)
            mean_logit = h.float() @ head_mean
            loss += (smoothing * (gold_logit - mean_logit)).sum() - p_gold.log().sum()
            p[torch.arange(len(gold)), gold] = (p_gold - (1 - smoothing)).to(p.dtype)
            torch.mm(p, head, out=d_h)
            d_head += p.T @ h
        d_states -= (smoothing * head_mean).to(states.dtype)
        d_head -= smoothing / vocabulary * states.float().sum(0)
        ctx.save_for_backward(d_states / n, (d_head / n).to(head.dtype))
        return loss / n

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        d_states, d_head = ctx.saved_tensors
        return d_states * gradients[0], d_head * gradients[0], None, None
