"""Tiny random checkpoints of every class in transformers that generates text, built from its configuration class alone.

The list of families is transformers' own mapping. Configurations are made small by setting values by name, because
families use the same names. `SPECIAL` contains the exceptions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from transformers.models.auto import modeling_auto

VOCABULARY, PAD, START, WIDTH, HEADS, DEPTH = 96, 0, 2, 32, 4, 4
WINDOW = 6

SMALL: dict[str, Any] = {
    **dict.fromkeys(("vocab_size", "text_vocab_size", "src_vocab_size", "tgt_vocab_size"), VOCABULARY),
    **dict.fromkeys(
        ("hidden_size", "d_model", "n_embd", "dim", "emb_dim", "embedding_size", "word_embed_proj_dim"), WIDTH
    ),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "n_inner", "encoder_ffn_dim", "decoder_ffn_dim"), 48),
    **dict.fromkeys(("d_inner", "ffn_hidden_size", "ffn_config_hidden_size", "mlp_hidden_size", "dense_ffn_size"), 48),
    **dict.fromkeys(
        ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers"), DEPTH
    ),
    **dict.fromkeys(("num_decoder_layers", "num_encoder_layers"), DEPTH),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), HEADS),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), HEADS),
    **dict.fromkeys(("num_encoder_attention_heads", "num_decoder_attention_heads"), HEADS),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "multi_query_group_num"), 2),
    **dict.fromkeys(("head_dim", "d_kv", "attention_head_dim", "qk_rope_head_dim", "v_head_dim", "global_head_dim"), 8),
    **dict.fromkeys(("qk_nope_head_dim", "rotary_dim", "kv_channels"), 8),
    **dict.fromkeys(("qk_head_dim", "kv_lora_rank", "q_lora_rank"), 16),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk", "top_k_experts"), 2),
    **dict.fromkeys(("n_group", "topk_group", "n_shared_experts", "num_shared_experts", "first_k_dense_replace"), 1),
    **dict.fromkeys(("moe_num_shared_experts", "moe_layer_start_index"), 1),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size"), 16),
    **dict.fromkeys(("shared_intermediate_size", "intermediate_size_mlp", "moe_shared_expert_intermediate_size"), 16),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "max_sequence_length"), 64),
    **dict.fromkeys(("max_source_positions", "max_target_positions", "max_encoder_position_embeddings"), 64),
    **dict.fromkeys(("max_decoder_position_embeddings", "attention_chunk_size", "block_size"), 64),
    **dict.fromkeys(("sliding_window", "window_size", "sliding_window_size"), WINDOW),
    "attention_window": 8,
    "max_window_layers": 2,
    "expert_capacity": 512,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 12,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": VOCABULARY,
    "use_cache": True,
    "pad_token_id": PAD,
    "bos_token_id": START,
    "eos_token_id": 1,
    "sep_token_id": None,
    "decoder_start_token_id": START,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
}
SPECIAL: dict[str, dict[str, Any]] = {
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "mpt": {"attn_config": {"attn_type": "multihead_attention", "alibi": True}},
    "phi3": {"rope_parameters": None},
    "bigbird_pegasus": {"attention_type": "original_full"},
    "big_bird": {"attention_type": "original_full"},
    "longt5": {"encoder_attention_type": "local", "local_radius": 4},
    "switch_transformers": {"num_sparse_encoder_layers": 2, "num_sparse_decoder_layers": 2},
    "nllb-moe": {"encoder_sparse_step": 2, "decoder_sparse_step": 2},
    "modernbert-decoder": {"sep_token_id": 3},
    "zaya": {"num_experts_per_tok": 1},
    "gemma4_assistant": {"hidden_size_per_layer_input": 0},
    "gptj": {"rotary_dim": 4},
    "codegen": {"rotary_dim": 4},
}


@dataclass(frozen=True)
class Family:
    """A family and the class of transformers that generates text with it."""

    name: str
    kind: str
    cls: str


def families() -> list[Family]:
    """Return every decoder and encoder-decoder of transformers by name; families that are both appear twice."""
    mappings = {
        "causal": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        "seq2seq": modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    }
    return sorted(
        (
            Family(name, kind, cls if isinstance(cls, str) else cls[0])
            for kind, mapping in mappings.items()
            for name, cls in mapping.items()
        ),
        key=lambda family: (family.name, family.kind),
    )


def tiny_model(family: Family, seed: int = 1) -> Any:
    """Return a small model of the family with random weights, all of which affect the logits."""
    cls = getattr(transformers, family.cls)
    config = tiny_config(cls.config_class, SPECIAL.get(family.name, {}), is_decoder=family.kind == "causal")
    attention = "sdpa" if getattr(cls, "_supports_sdpa", False) else "eager"
    torch.manual_seed(0)
    model = cls._from_config(config, attn_implementation=attention).eval()
    randomise(model, seed)
    model.requires_grad_(False)
    starts = dict(bos_token_id=START, decoder_start_token_id=START) if config.is_encoder_decoder else {}
    model.generation_config = transformers.GenerationConfig(pad_token_id=PAD, **starts)
    return model


def tiny_config(config_class: Any, special: Mapping[str, Any], *, is_decoder: bool) -> Any:
    usual = config_class()
    known = {**usual.to_dict(), **{name: getattr(usual, name, None) for name in usual.attribute_map}}
    known |= {name: getattr(usual, name) for name in ("is_decoder",) if hasattr(usual, name)}
    small = {name: value for name, value in SMALL.items() if name in known and known[name] is not False}
    if "kv_lora_rank" in known:  # latent attention has as many key heads as query heads
        small["num_key_value_heads"] = HEADS
    for name in ("rope_parameters", "rope_scaling"):
        if isinstance(known.get(name), dict) and "factor" in str(known[name]):
            small[name] = None
    if is_decoder and known.get("is_decoder") is False:
        small["is_decoder"] = True
    if isinstance(types := known.get("layer_types"), list):
        distinct = list(dict.fromkeys(types))
        small["layer_types"] = [distinct[index % len(distinct)] for index in range(DEPTH)]
    if isinstance(types := known.get("mlp_layer_types"), list):
        small["mlp_layer_types"] = types[:DEPTH]
    for name, sub_class in getattr(usual, "sub_configs", {}).items():
        if hasattr(sub_class, "model_type") or name in known:
            sub = getattr(usual, name, None)
            if sub is not None:
                small[name] = tiny_config(type(sub), {}, is_decoder=is_decoder).to_dict()
    return config_class(**{**small, **special})


def randomise(model: Any, seed: int) -> None:
    """Give every parameter a random value that affects the logits.

    From seed 6 on, values are smaller: large values before a block's last norm would make all prompts alike.
    """
    draw = torch.Generator().manual_seed(seed)
    gain, crossing_gain, bias = (2.0, 4.0, 0.3) if seed <= 5 else (1.0, 1.0, 0.02)
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:  # sinusoidal positions, which no file holds
            continue
        noise = torch.randn(parameter.shape, generator=draw)
        if parameter.dim() == 1:  # norms and biases
            parameter.data = 1.0 + 0.3 * noise if name.endswith("weight") else bias * noise
        elif any(word in name for word in ("embed", "shared", "wte")):
            parameter.data = 0.3 * noise  # or a tied head says the token it was fed, whatever blocks do
        else:
            crosses = any(word in name.lower() for word in ("encoder_attn", "encdec", "cross"))
            parameter.data = (crossing_gain if crosses else gain) * noise * parameter.shape[-1] ** -0.5
    for name, buffer in model.named_buffers():
        if name.endswith("logits_bias"):
            buffer.copy_(0.1 * torch.randn(buffer.shape, generator=draw))
    model.tie_weights()
