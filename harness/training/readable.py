"""Hidden states of every decoder block of a transformers model, teacher-forced, at the positions of the labels.

Models are recognised by their parts (one list of blocks, one final norm), not by their family. transformers returns
(embedding, block 1, .., block L), and only the last of these is final-normed already.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from exitbench.errors import UserError
from exitbench.harness.training.losses import IGNORED

FINAL_NORMS = ("final_layer_norm", "norm", "ln_f")


@dataclass(frozen=True)
class States:
    """States of the N positions that predict a label; block l is at index l - 1.

    Attributes:
        raw: Residual streams after blocks 1..L-1, un-normed, each [N, D].
        normed: Final-normed states of blocks 1..L, each [N, D].
        gold: Labels, [N].
        head: The shared head, [V, D].
        head_bias: Its bias, [V].
        scale: Factor on normed states before the head: D ** -0.5 in T5 with tied embeddings, else 1.
    """

    raw: list[Tensor]
    normed: list[Tensor]
    gold: Tensor
    head: Tensor
    head_bias: Tensor | None
    scale: float

    def readable(self, block: int) -> Tensor:
        """What the head reads at a block (1..L), [N, D]."""
        return self.normed[block - 1] * self.scale

    def logits_NV(self, block: int) -> Tensor:
        """Logits of a block (1..L), [N, V]."""
        return F.linear(self.readable(block), self.head, self.head_bias)


def decoder_states(model: Any, batch_inputs: Mapping[str, Tensor]) -> States:
    """Run a model teacher-forced and return what its head reads at every block.

    Args:
        model: An encoder-decoder or decoder-only model of transformers; dropout follows its mode.
        batch_inputs: `input_ids` [B, S], `labels` [B, T] with `IGNORED` for padding and, unless every id is a token,
            `attention_mask` [B, S]. For a decoder-only model T = S and labels are aligned with the input: the label at
            position t is predicted from the state at t - 1, the first label by none.

    Raises:
        UserError: The model's decoder has parts that are not known.
    """
    labels, mask = batch_inputs["labels"], batch_inputs.get("attention_mask")
    stack = model.get_decoder()
    norm, dropout = final_norm(model), getattr(stack, "dropout", nn.Identity())
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
    decoded = stack(**inputs, output_hidden_states=True, use_cache=False)

    positions = (predicted != IGNORED).flatten().nonzero().squeeze(1)
    # index_select: the gradient of boolean indexing is several times slower.
    *raw, last = (
        h.flatten(0, 1).index_select(0, positions) for h in [*decoded.hidden_states[1:-1], decoded.last_hidden_state]
    )
    head = model.get_output_embeddings()
    return States(
        raw=raw,
        normed=[*(dropout(norm(h)) for h in raw), last],
        gold=predicted.flatten().index_select(0, positions),
        head=head.weight,
        head_bias=head.bias,
        scale=head_scale(model),
    )


def decoder_blocks(model: Any) -> nn.ModuleList:
    """Blocks 1..L of a model's decoder.

    Raises:
        UserError: There is not exactly one list of blocks.
    """
    lists = [child for child in model.get_decoder().children() if isinstance(child, nn.ModuleList)]
    if len(lists) != 1:
        raise UserError(f"{type(model).__name__}: its decoder has {len(lists)} lists of blocks. Allowed: one.")
    return lists[0]


def head_scale(model: Any) -> float:
    """Factor on normed states before the head: D ** -0.5 in T5 with tied embeddings, else 1."""
    scaled = getattr(model.config, "scale_decoder_outputs", False)
    return float(model.config.hidden_size**-0.5) if scaled else 1.0


def final_norm(model: Any) -> nn.Module:
    """The norm between a decoder's last block and its head.

    Raises:
        UserError: There is none of a known name.
    """
    children: dict[str, nn.Module] = dict(model.get_decoder().named_children())
    for name in FINAL_NORMS:
        if name in children:
            return children[name]
    raise UserError(f"{type(model).__name__}: its decoder has no final norm. Allowed names: {', '.join(FINAL_NORMS)}.")
