"""Hidden states of every decoder block of a transformers model, teacher-forced, at the positions of the labels.

Models are recognized by their modules (one list of blocks, an LM head), not by their family. transformers returns
hidden states of the embedding and of blocks 1 to L. Only the last of them has passed the decoder's *ending*, the
modules after its last block. The ending is a final norm in most families, dropout in some, and empty if blocks end in
their own norms.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from exitbench.errors import UserError
from exitbench.harness.engine.hosted.read_out import noted_ending
from exitbench.harness.training.losses import IGNORED


@dataclass(frozen=True, kw_only=True)
class DecoderReadOut:
    """A decoder's own read-out, which turns hidden states of any of its blocks into logits.

    Attributes:
        head: Weights of the LM head, [V vocabulary, D hidden size].
        head_bias: Bias of the LM head, [V]; None if it has no bias.
        scale: Factor on normed states before the LM head: D ** -0.5 in T5 with tied embeddings, else 1.
        ending: Modules that the decoder runs after its last block, such as the final norm.
    """

    head: Tensor
    head_bias: Tensor | None
    scale: float
    ending: tuple[nn.Module, ...]

    def final_normed(self, hidden_ND: Tensor) -> Tensor:
        """Apply the decoder's ending, in most models the final norm, to hidden states (residual streams) [N, D]."""
        return apply_ending(self.ending, hidden_ND)

    def logits_of_normed(self, normed_ND: Tensor) -> Tensor:
        """Return the logits [N, V] of hidden states [N, D] that have already passed the decoder's ending."""
        return F.linear(normed_ND * self.scale, self.head, self.head_bias)

    def logits(self, hidden_ND: Tensor) -> Tensor:
        """Return the logits [N, V] of hidden states (residual streams) [N, D]: final norm and LM head."""
        return self.logits_of_normed(self.final_normed(hidden_ND))


@dataclass(frozen=True, kw_only=True)
class States(DecoderReadOut):
    """Hidden states of the N tokens that have a label, after every block, with the model's read-out.

    Block l is at index l - 1 of the lists.

    Attributes:
        raw: Residual streams after blocks 1..L-1, before the final norm, each [N, D].
        normed: States of blocks 1..L after the decoder's ending, each [N, D].
        gold: Labels (ids of the next tokens), [N].
    """

    raw: list[Tensor]
    normed: list[Tensor]
    gold: Tensor

    def head_input(self, block: int) -> Tensor:
        """Return the input of the LM head at a block (1..L): normed and scaled states, [N, D]."""
        return self.normed[block - 1] * self.scale

    def logits_NV(self, block: int) -> Tensor:
        """Return the logits of the model's own LM head at a block (1..L), [N, V]."""
        return self.logits_of_normed(self.normed[block - 1])


def decoder_states(model: Any, batch_inputs: Mapping[str, Tensor]) -> States:
    """Run a model teacher-forced, and return the hidden states of the labelled tokens after every block.

    Args:
        model: An encoder-decoder or decoder-only model of transformers; dropout applies if it is in training mode.
        batch_inputs: `input_ids` [B, S], `labels` [B, T] with `IGNORED` for padding and, if inputs are padded,
            `attention_mask` [B, S]. For a decoder-only model T = S and labels are aligned with the input: the label at
            position t is predicted from the state at t - 1, and the first label is not predicted.

    Raises:
        UserError: The model's decoder does not have exactly one list of blocks.
    """
    labels, mask = batch_inputs["labels"], batch_inputs.get("attention_mask")
    stack = model.get_decoder()
    if model.config.is_encoder_decoder:
        encoded = model.get_encoder()(input_ids=batch_inputs["input_ids"], attention_mask=mask).last_hidden_state
        inputs = {
            "input_ids": model.prepare_decoder_input_ids_from_labels(labels),
            "encoder_hidden_states": encoded,
            "encoder_attention_mask": mask,
        }
        predicted = labels
    else:
        inputs = {"input_ids": batch_inputs["input_ids"], "attention_mask": mask}
        predicted = F.pad(labels[:, 1:], (0, 1), value=IGNORED)
    with noted_ending(stack, tuple(decoder_blocks(model))) as noted:
        decoded = stack(**inputs, output_hidden_states=True, use_cache=False)
    ending = tuple(noted)

    positions = (predicted != IGNORED).flatten().nonzero().squeeze(1)
    # index_select: the gradient of boolean indexing is several times slower.
    *raw, last = (
        h.flatten(0, 1).index_select(0, positions) for h in [*decoded.hidden_states[1:-1], decoded.last_hidden_state]
    )
    head = model.get_output_embeddings()
    return States(
        raw=raw,
        normed=[*(apply_ending(ending, h) for h in raw), last],
        gold=predicted.flatten().index_select(0, positions),
        head=head.weight,
        head_bias=head_bias(model),
        scale=head_scale(model),
        ending=ending,
    )


def apply_ending(ending: tuple[nn.Module, ...], hidden_ND: Tensor) -> Tensor:
    """Apply to hidden states, one after the other, the modules that a decoder runs after its last block (`ending`)."""
    for module in ending:
        hidden_ND = module(hidden_ND)
    return hidden_ND


def head_bias(model: Any) -> Tensor | None:
    """Return the bias of the LM head, [V]: the model's `final_logits_bias`, else the module's own; None without one."""
    module_bias: Tensor | None = model.get_output_embeddings().bias
    model_bias: Tensor | None = getattr(model, "final_logits_bias", None)
    return module_bias if model_bias is None else model_bias.flatten()


def decoder_blocks(model: Any) -> nn.ModuleList:
    """Return the modules of blocks 1..L of a transformers model's decoder.

    Raises:
        UserError: The decoder does not have exactly one list of blocks.
    """
    lists = [child for child in model.get_decoder().children() if isinstance(child, nn.ModuleList)]
    if len(lists) != 1:
        raise UserError(f"{type(model).__name__}: its decoder has {len(lists)} lists of blocks. Allowed: one.")
    return lists[0]


def head_scale(model: Any) -> float:
    """Return the factor on normed states before the LM head: D ** -0.5 in T5 with tied embeddings, else 1."""
    scaled = getattr(model.config, "scale_decoder_outputs", False)
    return float(model.config.hidden_size**-0.5) if scaled else 1.0


@torch.no_grad()
def own_read_out(model: Any) -> DecoderReadOut:
    """Return a model's own read-out; a forward pass of one token shows which modules follow the last block."""
    training = model.training
    token = torch.zeros(1, 1, dtype=torch.long, device=model.device)
    with noted_ending(model.get_decoder(), tuple(decoder_blocks(model))) as noted:
        model.eval()(input_ids=token, **({"decoder_input_ids": token} if model.config.is_encoder_decoder else {}))
    model.train(training)
    head = model.get_output_embeddings().weight
    return DecoderReadOut(head=head, head_bias=head_bias(model), scale=head_scale(model), ending=tuple(noted))


def final_norm(model: Any) -> nn.Module:
    """Return the norm module between a decoder's last block and its LM head.

    Raises:
        UserError: The decoder has no final norm.
    """
    for module in own_read_out(model).ending:
        if getattr(module, "weight", None) is not None:
            return module
    raise UserError(f"{type(model).__name__}: its decoder has no final norm; its blocks end in norms of their own.")


def block_mlp(model: Any, block: int) -> dict[str, Tensor]:
    """Return the norm, gate and up-projection weights of a block's gated MLP, to initialize an exit head.

    `block` is counted from 1. Keys are `norm.weight`, `gate.weight` and `up.weight`, as in an exit head of kind
    `residual-mlp`.

    Raises:
        UserError: The block's MLP is not like that of Llama: an RMS norm, silu, and matrices without bias.
    """
    module = decoder_blocks(model)[block - 1]
    places = {"norm": "post_attention_layernorm", "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj"}
    parts = dict(module.named_modules())
    found = {name: parts[place] for name, place in places.items() if place in parts}
    has_bias = any(getattr(part, "bias", None) is not None for part in found.values())
    if len(found) < len(places) or has_bias or getattr(model.config, "hidden_act", None) != "silu":
        raise UserError(
            f"model_type {model.config.model_type!r}: its blocks have no gated silu MLP after an RMS norm, as Llama's "
            'have, so that heads of kind residual-mlp cannot be copied. Allowed: init = "scratch".'
        )
    return {f"{name}.weight": cast(Tensor, part.weight) for name, part in found.items() if name != "down"}


@torch.no_grad()
def check_read_out(model: Any) -> None:
    """Check that final norm and LM head, applied to the last block's states, reproduce the model's own logits.

    Raises:
        UserError: The logits differ, because the model applies another operation, such as a scale or a soft cap.
    """
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, model.get_output_embeddings().weight.shape[0], (2, 5), generator=generator)
    training, tokens = model.training, tokens.to(model.device)
    batch = {"input_ids": tokens, "labels": tokens}
    model_logits = model.eval()(**batch).logits
    states = decoder_states(model, batch)
    model.train(training)
    # A causal model's last token predicts no label.
    wanted = (model_logits if model.config.is_encoder_decoder else model_logits[:, :-1]).flatten(0, 1)
    difference = float((states.logits_NV(len(states.normed)) - wanted).abs().max())
    if not difference <= 1e-3 * float(wanted.abs().max()):
        family = model.config.model_type
        raise UserError(
            f"model_type {family!r}: its logits are not those of its decoder's ending and LM head (off by "
            f"{difference:.3g}: a scale or a soft cap comes after them), so its blocks cannot be trained."
        )
