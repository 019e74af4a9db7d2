"""Models that a training starts from, with their tokenizers: randomly initialized, or loaded from a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedTokenizerFast
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from exitbench.harness.engine.checkpoints.loading import read_config
from exitbench.harness.engine.checkpoints.tokenizer_files import load_tokenizer
from exitbench.harness.training.block_states import check_read_out
from exitbench.harness.training.recipe import ArchitectureRecipe


def new_model(architecture: ArchitectureRecipe, tokenizer: PreTrainedTokenizerFast) -> transformers.PreTrainedModel:
    """Return a randomly initialized decoder or encoder-decoder of an architecture, for the tokenizer's vocabulary.

    Some attention heads are set to attend a few tokens back if the architecture has `neighbour_heads`.
    """
    pad_id = tokenizer.pad_token_id
    shared_settings: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "pad_token_id": pad_id,
        "eos_token_id": tokenizer.eos_token_id,
    }
    # At these lengths, eager attention trains faster on a CPU than the fused kernel, whose backward pass is slow.
    if architecture.family == "t5":
        config = transformers.T5Config(
            decoder_start_token_id=pad_id,
            d_model=architecture.d_model,
            d_kv=architecture.d_kv,
            d_ff=architecture.d_ff,
            num_heads=architecture.num_heads,
            num_layers=architecture.num_layers,
            num_decoder_layers=architecture.num_decoder_layers,
            # `generate` sizes the decoder's cache by this; without it, the cache is as deep as the encoder.
            decoder_layers=architecture.num_decoder_layers,
            feed_forward_proj=architecture.feed_forward_proj,
            dropout_rate=architecture.dropout_rate,
            relative_attention_num_buckets=architecture.relative_attention_num_buckets,
            relative_attention_max_distance=architecture.relative_attention_max_distance,
            **shared_settings,
        )
        t5 = transformers.T5ForConditionalGeneration._from_config(config, attn_implementation="eager")
        for stack in (t5.encoder, t5.decoder):
            table = stack.block[0].layer[0].SelfAttention.relative_attention_bias.weight
            look_back_by_table(table, architecture.neighbour_heads)
        return t5
    if architecture.family != "llama":
        other = _configuration(architecture, len(tokenizer), pad_id, tokenizer.eos_token_id)
        initialized: transformers.PreTrainedModel = _auto(other).from_config(other, attn_implementation="eager")
        return initialized
    llama = transformers.LlamaConfig(
        bos_token_id=pad_id,
        hidden_size=architecture.d_model,
        head_dim=architecture.d_kv,
        intermediate_size=architecture.d_ff,
        num_attention_heads=architecture.num_heads,
        num_hidden_layers=architecture.num_decoder_layers,
        max_position_embeddings=architecture.max_positions,
        attention_dropout=architecture.dropout_rate,
        tie_word_embeddings=True,
        attention_bias=architecture.neighbour_heads > 0,
        **shared_settings,
    )
    causal = transformers.LlamaForCausalLM._from_config(llama, attn_implementation="eager")
    if architecture.neighbour_heads:
        look_back_by_biases(causal, architecture.neighbour_heads)
        init_induction_heads(causal, architecture.neighbour_heads)
    return causal


_NAMES: Mapping[str, tuple[str, ...]] = {
    "d_model": ("d_model", "hidden_size"),
    "d_ff": ("encoder_ffn_dim", "decoder_ffn_dim", "intermediate_size"),
    "num_heads": ("encoder_attention_heads", "decoder_attention_heads", "num_attention_heads"),
    "num_layers": ("encoder_layers",),
    "num_decoder_layers": ("decoder_layers", "num_hidden_layers"),
    "dropout_rate": ("dropout", "hidden_dropout", "resid_pdrop"),
    "max_positions": ("max_position_embeddings",),
}
"""Names of a recipe's settings in configurations; every name that a family has is set."""


def _configuration(architecture: ArchitectureRecipe, vocab_size: int, pad_id: int, end_id: int) -> PreTrainedConfig:
    """Return the transformers configuration of an architecture; settings not in the recipe have the family's defaults.

    Answers begin with the padding token (`pad_id`) and end with the end-of-sequence token (`end_id`); no token is
    forced. Families that support scaled embeddings use them, like their published models.
    """
    of_family = CONFIG_MAPPING[architecture.family]
    field_names = {field.name for field in fields(of_family)}
    values: dict[str, Any] = {
        "vocab_size": vocab_size,
        "pad_token_id": pad_id,
        "bos_token_id": pad_id,
        "eos_token_id": end_id,
        "decoder_start_token_id": pad_id,
        "forced_eos_token_id": None,
        "scale_embedding": True,
    }
    values |= {name: getattr(architecture, setting) for setting, names in _NAMES.items() for name in names}
    return of_family(**{name: value for name, value in values.items() if name in field_names})


_LOGIT = 6.0
"""Attention logit advantage of a neighbor token, in nats: it gets nearly all of a head's attention."""
_FREQUENCIES = 4
"""Number of the fastest rotary frequencies to use: they distinguish neighbors best."""
_FAR_TOKENS = 60
"""Distance over which dimension pairs that match content must rotate by less than 1 radian."""
_WRITTEN, _MATCHED = 0.06, 2.3
"""Gains: of head outputs, about the size of a new embedding; of queries and keys, for matches a few nats ahead."""


@torch.no_grad()
def look_back_by_table(table_KH: Tensor, n_heads: int) -> None:
    """Initialize attention head h to attend h tokens back, by T5's relative position table (row k means k tokens back).

    Args:
        table_KH: The position table, [K distances, H heads].
        n_heads: Number of heads to initialize; head h, counted from 1, attends h tokens back.
    """
    if n_heads:
        table_KH.zero_()
    for head in range(n_heads):
        table_KH[head + 1, head] = _LOGIT


@torch.no_grad()
def look_back_by_biases(model: transformers.PreTrainedModel, n_heads: int) -> None:
    """Initialize attention head h of the first block to attend h tokens back, by the biases of queries and keys.

    Heads are counted from 1 to `n_heads`; the model is a Llama with attention biases. A key bias b and a query bias
    R(-h) b, rotated (R) by query position m and key position n, score b' R(n - m + h) b: a sum of cosines that is
    largest at n - m = -h.
    """
    attention, size = model.model.layers[0].self_attn, model.config.head_dim
    inverse = model.model.rotary_emb.inv_freq[:_FREQUENCIES]
    # Score lost at the token next to the target, per squared length of a dimension pair.
    loss = float((1 - inverse.cos()).sum()) / size**0.5
    length = (_LOGIT / loss) ** 0.5
    for head in range(n_heads):
        angle = inverse * -(head + 1)
        query = attention.q_proj.bias[head * size : (head + 1) * size]
        key = attention.k_proj.bias[head * size : (head + 1) * size]
        key[:_FREQUENCIES] = length
        query[:_FREQUENCIES] = length * angle.cos()
        query[size // 2 : size // 2 + _FREQUENCIES] = length * angle.sin()


@torch.no_grad()
def init_induction_heads(model: transformers.PreTrainedModel, n_heads: int) -> None:
    """Initialize head h of a Llama's second block as an induction head that works with head h of the first block.

    It copies the token that stands h tokens after an earlier occurrence of the current token; h is 1 to `n_heads`.
    P and Q are random matrices with orthonormal rows. Head h of the first block attends h tokens back, and writes
    Q' P x for the attended state x. In the second block, queries P x match keys Q x. Only the slowly rotating
    dimensions of the rotary embedding are used, so that distance hardly matters.
    """
    size, n_dims = model.config.head_dim, model.config.hidden_size
    slow = (model.model.rotary_emb.inv_freq * _FAR_TOKENS < 1).nonzero().flatten()
    matching = torch.cat([slow, slow + size // 2])
    first, second = (model.model.layers[i].self_attn for i in (0, 1))
    for head in range(n_heads):
        rows = slice(head * size, (head + 1) * size)
        passed, marked, written = (
            torch.linalg.qr(torch.randn(n_dims, size))[0].T for _ in ("passed on", "mark of it", "written")
        )
        first.v_proj.weight[rows], first.o_proj.weight[:, rows] = passed, _WRITTEN * marked.T
        second.v_proj.weight[rows], second.o_proj.weight[:, rows] = written, _WRITTEN * written.T
        for projection, directions in ((second.q_proj, passed), (second.k_proj, marked)):
            projection.weight[rows] = 0
            projection.weight[rows][matching] = _MATCHED * directions[: len(matching)]


def read_model(folder: Path) -> tuple[transformers.PreTrainedModel, PreTrainedTokenizerFast]:
    """Load a decoder or encoder-decoder (as fp32) and its tokenizer from a checkpoint folder, to train it further.

    Raises:
        UserError: The model family is not supported, or blocks cannot be read out in the same way as the last block.
    """
    read_config(folder)  # raises for unsupported families
    config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    model = _auto(config).from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", local_files_only=True, use_safetensors=True
    )
    check_read_out(model)
    return model, load_tokenizer(folder)


def _auto(config: PreTrainedConfig) -> Any:
    return transformers.AutoModelForSeq2SeqLM if config.is_encoder_decoder else transformers.AutoModelForCausalLM


def is_causal(model: transformers.PreTrainedModel) -> bool:
    """Return whether a model is decoder-only (not encoder-decoder), so that it reads prompt and answer as one text."""
    return not model.config.is_encoder_decoder
