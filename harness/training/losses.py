"""Cross-entropy of every decoder block, and the joint loss that makes early exits mean something.

Each block's output is read out exactly as the last block's is: shared final norm, T5's tied scaling
d_model ** -0.5, shared head. CALM's weights are w_l = l / sum_j j (Schuster et al., 2022).
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import T5ForConditionalGeneration

IGNORED = -100


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
    tokens = target != IGNORED
    stack = model.decoder
    # transformers returns (embedding, block 1, .., block L), and only the last of them is final-normed already.
    inner = [stack.dropout(stack.final_layer_norm(h[tokens])) for h in decoded.hidden_states[1:-1]]
    scale = model.model_dim**-0.5 if model.config.scale_decoder_outputs else 1.0
    return [h * scale for h in [*inner, decoded.last_hidden_state[tokens]]]


def block_losses(states: list[Tensor], head: Tensor, target: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Mean cross-entropy in nats of each block.

    Args:
        states: What the head reads at each of K blocks, [N, d_model] each.
        head: The shared head, [V, d_model].
        target: Gold ids, [N].
        label_smoothing: Share of the gold token's mass that is spread over the vocabulary.

    Returns:
        Losses, [K].
    """
    # One block at a time: K stacked logits of [N, V] would not stay in the processor's cache.
    return torch.stack([F.cross_entropy(F.linear(h, head), target, label_smoothing=label_smoothing) for h in states])
