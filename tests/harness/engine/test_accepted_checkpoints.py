"""Accepted checkpoints are read completely: greedy tokens equal those of transformers on the same folder."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from checkpoint_edits import edit_config, edit_tensors
from prompt_decoding import full_depth_tokens
from safetensors.torch import load_file, save_file
from torch import Tensor

from exitbench.harness.cells.cell import EngineChoice
from exitbench.harness.engine.checkpoints.files import checkpoint_remarks
from exitbench.harness.engine.checkpoints.loading import load_checkpoint

V, NEW_TOKENS = 100, 3
PROMPTS = sorted(([first, (7 * first) % V, (11 * first) % V][: 1 + first % 3] for first in range(3, 27, 2)), key=len)
ENDS = {"eos_token_id": 99, "pad_token_id": 0, "bos_token_id": 2}
T5 = dict(vocab_size=V, d_model=32, d_kv=8, d_ff=48, num_heads=4, num_layers=3, decoder_start_token_id=0, **ENDS)
LLAMA = dict(
    vocab_size=V,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    **ENDS,
)
GPT2 = dict(vocab_size=V, n_embd=32, n_head=4, n_layer=3, n_positions=64, **ENDS)
ENGINES: tuple[EngineChoice, ...] = ("lean", "hosted")
DEFAULT = {"rope_type": "default", "rope_theta": 10000.0}
SCALED = {"rope_theta": 10000.0, "factor": 4.0}
LLAMA3 = {**SCALED, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}

Model = Callable[[], Any]


def t5(**options: Any) -> Model:
    return lambda: transformers.T5ForConditionalGeneration(transformers.T5Config(**{**T5, **options}))


def llama(**options: Any) -> Model:
    return lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**LLAMA, **options}))


def qwen2(**options: Any) -> Model:
    return lambda: transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**{**LLAMA, **options}))


def like_llama(family: str, **options: Any) -> Model:
    config, cls = getattr(transformers, f"{family}Config"), getattr(transformers, f"{family}ForCausalLM")
    return lambda: cls(config(**{**LLAMA, **options}))


def gpt2(**options: Any) -> Model:
    return lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(**{**GPT2, **options}))


MODELS: dict[str, Model] = {
    "t5 v1.0": t5(),
    "t5 v1.1": t5(feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    "t5 gated-silu": t5(feed_forward_proj="gated-silu"),
    "t5 deeper decoder": t5(num_layers=2, num_decoder_layers=4),
    "llama": llama(),
    "llama tied": llama(tie_word_embeddings=True),
    "llama biases": llama(attention_bias=True, mlp_bias=True),
    "llama head_dim": llama(head_dim=16),
    "llama linear": llama(rope_parameters={"rope_type": "linear", **SCALED}),
    "llama llama3": llama(rope_parameters={"rope_type": "llama3", **LLAMA3}),
    "llama yarn": llama(rope_parameters={"rope_type": "yarn", **SCALED, "original_max_position_embeddings": 16}),
    "qwen2": qwen2(),
    "qwen2 tied": qwen2(tie_word_embeddings=True),
    "mistral": like_llama("Mistral", sliding_window=None, head_dim=16),
    "mistral llama3": like_llama(
        "Mistral", sliding_window=None, rope_parameters={"rope_type": "llama3", **LLAMA3}, tie_word_embeddings=True
    ),
    "qwen3": like_llama("Qwen3", head_dim=16, tie_word_embeddings=True),
    "qwen3 biases": like_llama("Qwen3", head_dim=8, attention_bias=True),
    "qwen3 yarn": like_llama(
        "Qwen3",
        head_dim=16,
        rope_parameters={"rope_type": "yarn", **SCALED, "original_max_position_embeddings": 16},
    ),
    "mt5": lambda: transformers.MT5ForConditionalGeneration(transformers.MT5Config(**T5)),
    "mt5 relu": lambda: transformers.MT5ForConditionalGeneration(
        transformers.MT5Config(**T5, num_decoder_layers=2, feed_forward_proj="relu")
    ),
    "umt5": lambda: transformers.UMT5ForConditionalGeneration(transformers.UMT5Config(**T5, num_decoder_layers=2)),
    "phi3": like_llama("Phi3"),
    "phi3 three quarters rotated": like_llama("Phi3", rope_parameters={**DEFAULT, "partial_rotary_factor": 0.75}),
    "smollm3": like_llama("SmolLM3", no_rope_layer_interval=2),
    "smollm3 untied, biases": like_llama(
        "SmolLM3", no_rope_layers=[0, 1, 1], tie_word_embeddings=False, attention_bias=True, mlp_bias=True
    ),
    "olmo2": like_llama("Olmo2"),
    "olmo2 tied, biases": like_llama("Olmo2", tie_word_embeddings=True, attention_bias=True),
    "gpt2": gpt2(),
    "gpt2 untied": gpt2(tie_word_embeddings=False),
}


def saved(model: Model, folder: Path, dtype: torch.dtype = torch.float32, **options: Any) -> None:
    """Save a model with random weights, all of which affect its answers."""
    generator = torch.Generator().manual_seed(4)
    result = model()
    for name, parameter in result.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        embeds = any(part in name for part in ("shared", "embed_tokens", "wte"))
        centre = float(parameter.dim() == 1 and name.endswith("weight"))  # of norms
        parameter.data = noise if embeds else centre + 0.25 * noise
    result.to(dtype).save_pretrained(folder, **options)


def answers(folder: Path, engine: EngineChoice = "lean") -> list[list[int]]:
    """Return an engine's answers with the checkpoint in a folder, in float32."""
    return full_depth_tokens(load_checkpoint(folder, engine=engine), PROMPTS, NEW_TOKENS)


def reference_answers(folder: Path) -> list[list[int]]:
    """Return transformers' answers with the same checkpoint."""
    is_t5 = json.loads((folder / "config.json").read_text())["model_type"] in ("t5", "mt5", "umt5")
    auto = transformers.AutoModelForSeq2SeqLM if is_t5 else transformers.AutoModelForCausalLM
    model = auto.from_pretrained(folder, dtype=torch.float32).eval()
    rows, end = [], ENDS["eos_token_id"]
    for length, prompts in itertools.groupby(PROMPTS, len):
        # Without a cache: that of transformers fails where encoder and decoder differ in depth.
        ids = model.generate(
            torch.tensor([*prompts]), max_new_tokens=NEW_TOKENS, do_sample=False, use_cache=False, pad_token_id=0
        )
        rows += ids[:, 1 if is_t5 else length :].tolist()
    return [row[: row.index(end) + 1] if end in row else row for row in rows]


def agree(folder: Path, engine: EngineChoice = "lean") -> None:
    wanted = reference_answers(folder)
    assert len({token for row in wanted for token in row}) > 3
    assert answers(folder, engine) == wanted


@pytest.mark.parametrize("name", MODELS)
def test_every_family_and_option_equals_transformers(name: str, tmp_path: Path) -> None:
    saved(MODELS[name], tmp_path)
    agree(tmp_path)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_weights_in_other_number_formats_equal_transformers(
    dtype: torch.dtype, engine: EngineChoice, tmp_path: Path
) -> None:
    saved(llama(), tmp_path, dtype)
    agree(tmp_path, engine)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["t5 v1.1", "llama tied", "gpt2"])
def test_sharded_weights_equal_transformers(name: str, engine: EngineChoice, tmp_path: Path) -> None:
    saved(MODELS[name], tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    agree(tmp_path, engine)
    assert checkpoint_remarks(tmp_path) == ()


@pytest.mark.parametrize("engine", ENGINES)
def test_answers_stop_at_any_of_several_end_tokens(engine: EngineChoice, tmp_path: Path) -> None:
    saved(llama(), tmp_path)
    whole = answers(tmp_path, engine)
    path = tmp_path / "generation_config.json"
    ends = [99, whole[0][1], whole[1][0]]
    path.write_text(json.dumps({**json.loads(path.read_text()), "eos_token_id": ends}))
    cut = answers(tmp_path, engine)
    assert (len(cut[0]), len(cut[1])) == (1 + (whole[0][0] not in ends), 1)
    assert cut == [row[: next((place for place, token in enumerate(row, 1) if token in ends), None)] for row in whole]


# LayerSkip's checkpoints are Llama's, trained on: the keys of config.json that Llama 3.2 has in transformers 4.
LAYER_SKIP = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "head_dim": 8,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "mlp_bias": False,
    "model_type": "llama",
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 16,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.45.2",
    "use_cache": True,
}


@pytest.mark.parametrize("engine", ENGINES)
def test_checkpoints_trained_with_layer_dropout_equal_transformers(engine: EngineChoice, tmp_path: Path) -> None:
    saved(llama(tie_word_embeddings=True), tmp_path, torch.bfloat16, max_shard_size="20KB")
    edit_config(tmp_path, "rope_parameters", "dtype", **LAYER_SKIP)
    agree(tmp_path, engine)


def test_config_of_older_transformers_versions_equals_transformers(tmp_path: Path) -> None:
    saved(llama(rope_parameters={"rope_type": "llama3", **LLAMA3}), tmp_path)
    scaling = {"rope_type": "llama3", **{key: value for key, value in LLAMA3.items() if key != "rope_theta"}}
    edit_config(tmp_path, "rope_parameters", "dtype", rope_theta=10000.0, rope_scaling=scaling, torch_dtype="float32")
    agree(tmp_path)


def test_config_keys_without_effect_are_accepted(tmp_path: Path) -> None:
    saved(qwen2(), tmp_path)
    edit_config(
        tmp_path,
        quantization_config=None,
        compression_config={},
        sliding_window=None,
        use_sliding_window=False,
        max_window_layers=28,
        auto_map={"AutoModelForCausalLM": "evil.Model"},
        task_specific_params={"summarization": {"max_length": 200}},
        pad_token_id=-1,  # of a causal model, in which nothing is padded; some files say so
        n_positions=512,
    )
    agree(tmp_path)


def test_checkpoint_without_generation_config_equals_transformers(tmp_path: Path) -> None:
    saved(llama(), tmp_path)
    (tmp_path / "generation_config.json").unlink()
    agree(tmp_path)


def test_symlinks_into_a_cache_are_followed(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "0123"
    saved(llama(), blobs)
    snapshot.mkdir(parents=True)
    for blob in blobs.iterdir():
        (snapshot / blob.name).symlink_to(Path("../../blobs") / blob.name)
    agree(snapshot)


EXTRA: dict[str, tuple[str, Callable[[dict[str, Tensor]], object]]] = {
    "frequencies": ("llama", lambda own: own.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)})),
    "causal mask": (
        "gpt2",
        lambda own: own.update(
            {
                "transformer.h.1.attn.bias": torch.ones(1, 1, 64, 64, dtype=torch.uint8).tril(),
                "transformer.h.1.attn.masked_bias": torch.tensor(-1e4),
            }
        ),
    ),
    "embeddings twice": (
        "t5 v1.0",
        lambda own: own.update({f"{stack}.embed_tokens.weight": own["shared.weight"] + 0 for stack in STACKS}),
    ),
    "positions of the source": (
        "t5 v1.0",
        lambda own: own.update(
            {"decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": torch.ones(32, 4)}
        ),
    ),
    "tied head twice": (
        "llama tied",
        lambda own: own.update({"lm_head.weight": own["model.embed_tokens.weight"] + 0}),
    ),
    # transformers then takes the head of its own, whatever config.json says.
    "tied head that differs": (
        "llama tied",
        lambda own: own.update({"lm_head.weight": own["model.embed_tokens.weight"].flip(0)}),
    ),
    "tied head of gpt2 that differs": (
        "gpt2",
        lambda own: own.update({"lm_head.weight": own["transformer.wte.weight"].flip(0)}),
    ),
}
STACKS = ("encoder", "decoder")


@pytest.mark.parametrize("what", EXTRA)
def test_extra_tensors_are_handled_as_in_transformers(what: str, tmp_path: Path) -> None:
    name, edit = EXTRA[what]
    saved(MODELS[name], tmp_path)
    edit_tensors(tmp_path, edit)
    agree(tmp_path)


def test_stray_weight_files_are_named_and_not_read(tmp_path: Path) -> None:
    saved(llama(), tmp_path)
    before = answers(tmp_path)
    tensors = {name: torch.randn_like(tensor) for name, tensor in load_file(tmp_path / "model.safetensors").items()}
    save_file(tensors, tmp_path / "old_run.safetensors")
    save_file(tensors, tmp_path / "consolidated.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": {}}))
    (tmp_path / "pytorch_model.bin").write_bytes(b"not even a pickle")
    assert answers(tmp_path) == before == reference_answers(tmp_path)
    assert checkpoint_remarks(tmp_path) == (
        "not read: consolidated.safetensors, model.safetensors.index.json, old_run.safetensors (the weights are those "
        "of model.safetensors)",
    )
