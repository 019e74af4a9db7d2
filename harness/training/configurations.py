"""Configurations of transformers by the words of a recipe, for families without a model of their own in `models`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from transformers import PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from exitbench.harness.training.recipe import ArchitectureRecipe

_NAMES: Mapping[str, tuple[str, ...]] = {
    "d_model": ("d_model", "hidden_size"),
    "d_ff": ("encoder_ffn_dim", "decoder_ffn_dim", "intermediate_size"),
    "num_heads": ("encoder_attention_heads", "decoder_attention_heads", "num_attention_heads"),
    "num_layers": ("encoder_layers",),
    "num_decoder_layers": ("decoder_layers", "num_hidden_layers"),
    "dropout_rate": ("dropout", "hidden_dropout", "resid_pdrop"),
    "max_positions": ("max_position_embeddings",),
}
"""What configurations call a setting of a recipe; each name that a family has is set."""


def configuration(architecture: ArchitectureRecipe, vocab_size: int, pad_id: int, end_id: int) -> PreTrainedConfig:
    """The configuration of an architecture; what a recipe does not say is the family's default.

    Answers begin with padding and end with the end token; no token is forced. Embeddings of families that may scale
    them are scaled, as those of their published models are.
    """
    of_family = CONFIG_MAPPING[architecture.family]
    known = {field.name for field in fields(of_family)}
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
    return of_family(**{name: value for name, value in values.items() if name in known})
