"""Initialise or load the model that a training starts from, and its tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedTokenizerFast

from exitbench.harness.engine.checkpoints.files import CONFIG
from exitbench.harness.engine.checkpoints.loading import engine_for, read_config
from exitbench.harness.engine.checkpoints.tokenizer_files import load_tokenizer
from exitbench.harness.training.recipe import ArchitectureRecipe


def new_model(architecture: ArchitectureRecipe, tokenizer: PreTrainedTokenizerFast) -> transformers.PreTrainedModel:
    """A freshly drawn model of the tokenizer's vocabulary."""
    pad_id = tokenizer.pad_token_id
    known: dict[str, Any] = {
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
            feed_forward_proj=architecture.feed_forward_proj,
            dropout_rate=architecture.dropout_rate,
            relative_attention_num_buckets=architecture.relative_attention_num_buckets,
            relative_attention_max_distance=architecture.relative_attention_max_distance,
            **known,
        )
        return transformers.T5ForConditionalGeneration._from_config(config, attn_implementation="eager")
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
        **known,
    )
    return transformers.LlamaForCausalLM._from_config(llama, attn_implementation="eager")


def read_model(folder: Path) -> tuple[transformers.PreTrainedModel, PreTrainedTokenizerFast]:
    """Model and tokenizer of a checkpoint folder; the weights are read as fp32.

    Raises:
        UserError: Not a checkpoint of a supported family.
    """
    engine_for(folder / CONFIG, read_config(folder), "lean")  # says what is supported
    config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    auto = transformers.AutoModelForSeq2SeqLM if config.is_encoder_decoder else transformers.AutoModelForCausalLM
    model = auto.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", local_files_only=True, use_safetensors=True
    )
    return model, load_tokenizer(folder)


def is_causal(model: transformers.PreTrainedModel) -> bool:
    """Whether the model reads prompt and answer as one text."""
    return not model.config.is_encoder_decoder
