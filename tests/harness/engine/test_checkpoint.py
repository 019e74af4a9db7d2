"""Reading checkpoints: which files are read, and that each bad checkpoint is refused with its file and a remedy."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from checkpoint_edits import edit_config, edit_tensors

from exitbench.errors import UserError
from exitbench.harness.cells.cell import EngineChoice
from exitbench.harness.engine.checkpoints.loading import engine_for, load_checkpoint

Twins = Callable[[str], Any]


@pytest.fixture
def folder(twin: Twins, tmp_path: Path) -> Path:
    """Return a copy of a sound checkpoint, for tests that damage it."""
    return Path(shutil.copytree(twin("llama").folder, tmp_path / "llama"))


def complaint(folder: Path, engine: EngineChoice = "auto") -> str:
    with pytest.raises(UserError) as caught:
        load_checkpoint(folder, engine=engine)
    return str(caught.value)


def test_kind_and_special_tokens_come_from_the_files(twin: Twins) -> None:
    seq2seq, causal = twin("t5"), twin("llama")
    assert (seq2seq.checkpoint.kind, seq2seq.checkpoint.start_id) == ("seq2seq", 0)
    assert (causal.checkpoint.kind, causal.checkpoint.start_id) == ("causal", None)
    assert seq2seq.checkpoint.eos_ids == set(seq2seq.reference.config.eos_token_id)


def test_folder_without_config_is_refused(tmp_path: Path) -> None:
    missing = tmp_path / "nowhere"
    assert complaint(missing) == f"{missing}: not a Hugging Face checkpoint folder (no config.json)."


def test_config_that_is_not_json_is_refused(folder: Path) -> None:
    (folder / "config.json").write_text('{\n  "model_type": llama\n}')
    assert complaint(folder).startswith(f"{folder / 'config.json'}, line 2: not valid JSON")


@pytest.mark.parametrize("text", ["[1, 2]", "{}"])
def test_config_without_a_family_is_refused(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    message = complaint(folder)
    assert message.startswith(f"{folder / 'config.json'}: ")
    assert "not a JSON object" in message or "model_type None is not supported. Allowed: gpt2, " in message


@pytest.mark.parametrize("family", ["nonesuch", 7, ["llama"], None])
def test_unsupported_family_is_refused_without_a_suggestion(folder: Path, family: Any) -> None:
    edit_config(folder, model_type=family)
    message = complaint(folder)
    assert message.startswith(f"{folder / 'config.json'}: model_type {family!r} is not supported.")
    known = "gpt2, llama, mistral, mt5, olmo2, phi3, qwen2, qwen3, smollm3, t5, umt5"
    assert f"Allowed: {known}, and every family with which the installed transformers" in message
    assert "Did you mean" not in message
    assert complaint(folder, "hosted") == message


@pytest.mark.parametrize("family", ["starcoder2", "mamba", "gpt_neox"])
def test_weights_under_another_familys_name_are_refused(folder: Path, family: str) -> None:
    edit_config(folder, model_type=family)
    assert re.match(rf"{re.escape(str(folder))}: \d+ tensors are missing from the checkpoint: ", complaint(folder))


def test_folder_without_weights_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    message = complaint(folder)
    assert message.startswith(
        f"{folder}: no model.safetensors and no model.safetensors.index.json (found no weight files)."
    )


def test_folder_with_only_pickled_weights_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"not even a pickle")
    message = complaint(folder)
    assert "found pytorch_model.bin" in message
    assert "Only safetensors weights of these names are read, never pickles" in message
    assert "save_pretrained" in message


@pytest.mark.parametrize("kept", [0, 4, 200, 30_000])
def test_truncated_weights_are_refused(folder: Path, kept: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    assert complaint(folder).startswith(f"{path}: not a complete safetensors file (")


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("llama", "model.layers.3.mlp.up_proj.weight"),
        ("llama", "model.norm.weight"),
        ("llama", "lm_head.weight"),
        ("t5", "decoder.block.4.layer.1.EncDecAttention.k.weight"),
        ("t5", "shared.weight"),
        ("qwen2-tied", "model.layers.0.self_attn.q_proj.bias"),
        ("qwen3", "model.layers.2.self_attn.k_norm.weight"),
        ("phi3-partly-rotated", "model.layers.4.mlp.gate_up_proj.weight"),
        ("olmo2", "model.layers.1.post_feedforward_layernorm.weight"),
        ("mt5", "encoder.final_layer_norm.weight"),
        ("gpt2", "transformer.h.0.attn.c_attn.weight"),
        ("gpt2", "transformer.h.0.attn.c_attn.bias"),
    ],
)
def test_missing_tensor_is_reported(twin: Twins, tmp_path: Path, family: str, name: str) -> None:
    folder = Path(shutil.copytree(twin(family).folder, tmp_path / family))
    edit_tensors(folder, lambda tensors: tensors.pop(name))
    assert re.search(rf"^{re.escape(str(folder))}: tensor '[^']+' is missing from the checkpoint", complaint(folder))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("model.layers.1.self_attn.k_proj.weight", "has shape [16, 31], config.json requires [16, 32]"),
        ("model.embed_tokens.weight", "has shape [100, 31], config.json requires [100, 32]"),
    ],
)
def test_tensor_of_wrong_shape_is_refused(folder: Path, name: str, says: str) -> None:
    edit_tensors(folder, lambda tensors: tensors.update({name: tensors[name][:, :-1].contiguous()}))
    assert complaint(folder) == f"{folder}: tensor {name!r} {says}."


def test_embedding_of_another_width_is_refused(twin: Twins, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(twin("t5").folder, tmp_path / "t5"))
    edit_tensors(folder, lambda tensors: tensors.update({"shared.weight": tensors["shared.weight"][:, :-1].clone()}))
    assert complaint(folder) == f"{folder}: tensor 'shared.weight' has shape [100, 31], config.json requires [100, 32]."


@pytest.mark.parametrize(
    ("family", "key", "asked", "prefix", "found"),
    [
        ("llama", "num_hidden_layers", 6, "model.layers", 5),
        ("llama", "num_hidden_layers", 4, "model.layers", 5),
        ("qwen2-tied", "num_hidden_layers", 4, "model.layers", 5),
        ("gpt2", "n_layer", 4, "transformer.h", 5),
        ("mistral", "num_hidden_layers", 4, "model.layers", 5),
        ("qwen3", "num_hidden_layers", 6, "model.layers", 5),
        ("phi3-partly-rotated", "num_hidden_layers", 6, "model.layers", 5),
        ("smollm3", "num_hidden_layers", 4, "model.layers", 5),
        ("olmo2", "num_hidden_layers", 4, "model.layers", 5),
        ("mt5", "num_decoder_layers", 4, "decoder.block", 5),
        ("t5", "num_layers", 2, "encoder.block", 3),
        ("t5", "num_decoder_layers", 6, "decoder.block", 5),
    ],
)
def test_depth_mismatch_between_config_and_weights_is_refused(
    twin: Twins, tmp_path: Path, family: str, key: str, asked: int, prefix: str, found: int
) -> None:
    folder = Path(shutil.copytree(twin(family).folder, tmp_path / family))
    edit_config(folder, **{key: asked})
    assert complaint(folder) == (
        f"{folder / 'config.json'}: {key} is {asked}, but the weights (model.safetensors) hold {found} blocks, "
        f"{prefix}.0 to {prefix}.{found - 1}."
    )


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"hidden_act": "silly"}, "activation 'silly' is not supported. Did you mean 'silu'?"),
        ({"rope_parameters": {"rope_type": "linaer", "rope_theta": 1e4, "factor": 2.0}}, "Did you mean 'linear'?"),
    ],
)
def test_unknown_option_values_are_refused_with_the_allowed_ones(
    folder: Path, values: dict[str, Any], says: str
) -> None:
    edit_config(folder, **values)
    message = complaint(folder)
    assert message.startswith(f"{folder}/config.json: ")
    assert says in message
    assert "Allowed: " in message


SLIDES = {"layer_types": ["full_attention"] * 3 + ["sliding_attention"] * 2}
LONG_ROPE = {"rope_type": "longrope", "rope_theta": 1e4, "partial_rotary_factor": 0.5, "factor": 2.0}
UNSUPPORTED = {  # family, what its config.json says, and the refusal
    "qwen2": ("qwen2-tied", {**SLIDES, "use_sliding_window": True, "sliding_window": 4}, "use_sliding_window is True"),
    "qwen3": ("qwen3", {**SLIDES, "use_sliding_window": True, "sliding_window": 4}, "use_sliding_window is True"),
    "smollm3": ("smollm3", {**SLIDES, "use_sliding_window": True, "sliding_window": 4}, "use_sliding_window is True"),
    "window": ("mistral", {"sliding_window": 4}, "sliding_window is 4"),
    "fused window": ("phi3-partly-rotated", {"sliding_window": 4}, "sliding_window is 4"),
    "longrope": (
        "phi3-partly-rotated",
        {"rope_parameters": {**LONG_ROPE, "short_factor": [1.0, 1.1], "long_factor": [2.0, 3.0]}},
        "rope_type is 'longrope'",
    ),
    "dynamic": (
        "llama",
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
        "rope_type is 'dynamic'",
    ),
    "activation": ("olmo2", {"hidden_act": "tanh"}, "activation is 'tanh'"),
    "gated activation": ("mt5", {"dense_act_fn": "tanh"}, "activation is 'tanh'"),
    "scaled by block": (
        "gpt2",
        {"scale_attn_by_inverse_layer_idx": True},
        "scale_attn_by_inverse_layer_idx is True",
    ),
}


@pytest.fixture(params=UNSUPPORTED)
def unsupported(request: pytest.FixtureRequest, twin: Twins, tmp_path: Path) -> tuple[Path, str]:
    """Return a checkpoint with an option that the lean engine does not support, and the expected message."""
    family, values, says = UNSUPPORTED[request.param]
    folder = Path(shutil.copytree(twin(family).folder, tmp_path / family))
    edit_config(folder, **values)
    return folder, says


def test_options_that_the_lean_engine_lacks_run_on_the_hosted_engine(
    unsupported: tuple[Path, str], prompts: list[list[int]]
) -> None:
    folder, says = unsupported
    path = folder / "config.json"
    message = complaint(folder, "lean")
    assert message.startswith(f'{path}: {says}; allowed with engine = "lean": ')
    assert message.endswith('; "hosted" or "auto" runs others.')
    checkpoint = load_checkpoint(folder)
    assert checkpoint.engine == "hosted" == engine_for(path, json.loads(path.read_text()))
    if checkpoint.kind == "causal":
        prompt = next(prompt for prompt in prompts if len(prompt) > 12)
        _, state = checkpoint.model.start([prompt], room=1)
        own = transformers.AutoModelForCausalLM.from_pretrained(folder)
        expected = own(input_ids=torch.tensor([prompt])).logits[0, -1]
        torch.testing.assert_close(checkpoint.model.logits(state)[0], expected, atol=1e-4, rtol=0)


def test_engine_is_chosen_without_reading_weights(unsupported: tuple[Path, str]) -> None:
    path = unsupported[0] / "config.json"
    (unsupported[0] / "model.safetensors").unlink()
    assert engine_for(path, json.loads(path.read_text())) == "hosted"


def test_sliding_layers_without_a_window_size_are_refused(twin: Twins, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(twin("qwen2-tied").folder, tmp_path / "qwen2"))
    edit_config(folder, **SLIDES)
    assert complaint(folder) == f'{folder}/config.json: layer_types: allowed: "full_attention" for every block.'


def test_missing_sliding_window_takes_the_family_default(twin: Twins, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(twin("mistral").folder, tmp_path / "mistral"))
    edit_config(folder, "sliding_window")
    assert "sliding_window is 4096; allowed" in complaint(folder, "lean")


@pytest.mark.parametrize("part", [0.4, 1.5, 9e30, "1", True])
def test_invalid_partial_rotary_factor_is_refused(twin: Twins, tmp_path: Path, part: Any) -> None:
    folder = Path(shutil.copytree(twin("phi3-partly-rotated").folder, tmp_path / "phi3"))
    edit_config(folder, rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": part})
    assert re.search(r"partial_rotary_factor is .*; allowed: (a number|one that makes an even part)", complaint(folder))


@pytest.mark.parametrize("said", [[1, 0], [1] * 4])
def test_no_rope_layers_of_wrong_length_are_refused(twin: Twins, tmp_path: Path, said: list[int]) -> None:
    folder = Path(shutil.copytree(twin("smollm3").folder, tmp_path / "smollm3"))
    edit_config(folder, no_rope_layers=said)
    assert f"no_rope_layers has {len(said)} entries; allowed: one for each block." in complaint(folder)


def test_code_in_a_checkpoint_is_never_run(folder: Path, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    (folder / "custom.py").write_text(f"open({str(ran)!r}, 'w').close()\nclass C: pass\n")
    edit_config(folder, auto_map={"AutoConfig": "custom.C", "AutoModelForCausalLM": "custom.C"})
    load_checkpoint(folder)
    assert not ran.exists()
