"""Tiny models with random weights, of the families that training supports."""

from collections.abc import Callable
from typing import Any

import transformers
from transformers import GPT2Config, GPT2LMHeadModel, MT5Config, T5Config

BLOCKS, WIDTH, VOCABULARY = 4, 16, 50
SPECIAL = {"bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0}
ROPE = {
    "vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": 32, "num_hidden_layers": BLOCKS,
    "num_attention_heads": 4, "num_key_value_heads": 2, **SPECIAL,
}  # fmt: skip
PARALLEL = {key: value for key, value in ROPE.items() if key != "num_key_value_heads"} | {"num_attention_heads": 2}
"""Heads of 8, of which a part is turned."""
T5_SIZES = {
    "vocab_size": VOCABULARY, "d_model": WIDTH, "d_kv": 4, "d_ff": 32, "num_heads": 4, "num_layers": 2,
    "num_decoder_layers": BLOCKS,
}  # fmt: skip


def t5(tied: bool = True, dropout: float = 0.0) -> Any:
    config = T5Config(**T5_SIZES, dropout_rate=dropout, tie_word_embeddings=tied, decoder_start_token_id=0)
    return transformers.T5ForConditionalGeneration(config)


def causal(family: str, **options: Any) -> Any:
    return getattr(transformers, f"{family}ForCausalLM")(getattr(transformers, f"{family}Config")(**options))


def gpt2() -> Any:
    sizes = {"vocab_size": VOCABULARY, "n_embd": WIDTH, "n_layer": BLOCKS, "n_head": 4, "n_positions": 32}
    return GPT2LMHeadModel(GPT2Config(**sizes, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **SPECIAL))


def encoder_decoder(config: Any, cls: Any) -> Any:
    stacks = {
        f"{stack}_{part}": n
        for stack in ("encoder", "decoder")
        for part, n in (("ffn_dim", 32), ("attention_heads", 4))
    }
    result = cls(
        config(
            vocab_size=VOCABULARY, d_model=WIDTH, encoder_layers=2, decoder_layers=BLOCKS, decoder_start_token_id=0,
            max_position_embeddings=16, dropout=0.0, scale_embedding=True, pad_token_id=0, eos_token_id=1, **stacks,
        )
    )  # fmt: skip
    result.final_logits_bias.normal_()  # published translators have one
    return result


FAMILIES: dict[str, Callable[[], Any]] = {
    "t5": t5,
    "t5-untied": lambda: t5(tied=False),
    "llama": lambda: causal("Llama", **ROPE),
    "llama-tied": lambda: causal("Llama", **ROPE, tie_word_embeddings=True),
    "qwen2": lambda: causal("Qwen2", **ROPE),
    "gpt2": gpt2,
    "marian": lambda: encoder_decoder(transformers.MarianConfig, transformers.MarianMTModel),
    "pegasus": lambda: encoder_decoder(transformers.PegasusConfig, transformers.PegasusForConditionalGeneration),
    "gpt_neox": lambda: causal("GPTNeoX", **PARALLEL),
    "phi": lambda: causal("Phi", **PARALLEL),
    "mistral": lambda: causal("Mistral", **ROPE),
    "qwen3": lambda: causal("Qwen3", **ROPE),
    "phi3": lambda: causal("Phi3", **ROPE),
    "smollm3": lambda: causal("SmolLM3", **ROPE),
    "olmo2": lambda: causal("Olmo2", **ROPE),
    "mt5": lambda: transformers.MT5ForConditionalGeneration(MT5Config(**T5_SIZES, dropout_rate=0.0)),
}
