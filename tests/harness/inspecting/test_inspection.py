"""Inspection of a checkpoint, compared with numbers computed from its files' bytes and by hand."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import re
import shlex
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from exitbench.errors import UserError
from exitbench.harness.inspecting import inspection
from exitbench.harness.inspecting.gate_costs import GateCost, SkipCost
from exitbench.harness.inspecting.inspection import Inspection, inspect_folder
from exitbench.harness.training.store import SHIPPED

CONTEXT = 40
GEMMA2 = dict(
    vocab_size=100,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=64,
    sliding_window=6,
    pad_token_id=0,
    bos_token_id=2,
    eos_token_id=1,
)
T5 = dict(vocab_size=90, d_model=16, d_kv=4, d_ff=24, num_heads=4, num_layers=2, num_decoder_layers=3)


def tensors_of(path: Path) -> dict[str, Any]:
    """Return the header of a safetensors file, without its metadata."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header: dict[str, Any] = json.loads(content[8 : 8 + length])
    header.pop("__metadata__", None)
    return header


def numel_of(path: Path, pattern: str = ".*") -> int:
    """Return the number of elements in all tensors whose name matches the pattern."""
    sizes = (torch.Size(t["shape"]).numel() for n, t in tensors_of(path).items() if re.fullmatch(pattern, n))
    return sum(sizes)


def method_of(found: Inspection, name: str) -> GateCost:
    assert found.work is not None
    return next(gate for gate in found.work.methods if gate.method == name)


def policy_of(found: Inspection, name: str) -> SkipCost:
    assert found.work is not None
    return next(policy for policy in found.work.kv_policies if policy.policy == name)


@pytest.fixture(scope="module")
def gemma2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a checkpoint of a family of the hosted engine with a soft cap on its logits, without a tokenizer."""
    folder, draw = tmp_path_factory.mktemp("gemma2"), torch.Generator().manual_seed(1)
    reference = transformers.Gemma2ForCausalLM(transformers.Gemma2Config(**GEMMA2))
    for parameter in reference.parameters():
        parameter.data = torch.randn(parameter.shape, generator=draw) * (1 if parameter.dim() == 1 else 0.4)
    reference.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def counted(gemma2: Path) -> Inspection:
    return inspect_folder(gemma2, context=CONTEXT)


# ------------------------------------------------------------------------------------------------ the lean engine


@pytest.fixture(scope="module")
def shipped_folder() -> Path:
    (folder,) = SHIPPED.glob("builtin-exit-heads-*")
    return folder


@pytest.fixture(scope="module")
def shipped(shipped_folder: Path) -> Inspection:
    return inspect_folder(shipped_folder, context=CONTEXT)


def test_sizes_equal_those_of_the_weight_files(shipped: Inspection, shipped_folder: Path) -> None:
    weights, heads = (shipped_folder / name for name in ("model.safetensors", "exit_heads.safetensors"))
    assert shipped.stored is not None and shipped.shape is not None and shipped.exit_heads is not None
    assert shipped.stored.files == ("model.safetensors",)
    assert shipped.stored.size_bytes == weights.stat().st_size
    assert shipped.stored.n_tensors == len(tensors_of(weights))
    assert shipped.stored.numel_by_format == {"BF16": numel_of(weights)}
    parts = shipped.shape.parameters
    assert parts.total == numel_of(weights)
    assert (parts.embedding, parts.head) == (numel_of(weights, "model.embed_tokens.weight"), 0)
    assert (parts.blocks, parts.other) == (numel_of(weights, r"model\.layers\..*"), numel_of(weights, "model.norm.*"))
    assert shipped.exit_heads.numel == numel_of(heads)
    assert (shipped.exit_heads.kind, shipped.exit_heads.blocks) == ("linear", (2, 4, 6))


def test_complete_model_runs_on_both_engines_with_every_method(shipped: Inspection, shipped_folder: Path) -> None:
    config = json.loads((shipped_folder / "config.json").read_text())
    assert (shipped.family, shipped.lacks, shipped.convert) == (config["model_type"], (), None)
    assert [(tried.engine, tried.why_not, tried.is_proved) for tried in shipped.engines] == [
        ("lean", None, True),
        ("hosted", None, False),
    ]
    assert shipped.tokens.end_ids == (config["eos_token_id"],)
    assert (shipped.tokens.start_id, shipped.tokens.has_chat_template) == (None, False)
    assert shipped.tokens.n_tokens == config["vocab_size"]
    assert all(gate.why_not is None for gate in (shipped.work.methods if shipped.work else ()))


def test_work_equals_hand_computed_bytes_and_flops(shipped: Inspection, shipped_folder: Path) -> None:
    config = json.loads((shipped_folder / "config.json").read_text())
    d, inner, v = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    matrices = r"model\.layers\.0\..*proj\.weight"
    weights = numel_of(shipped_folder / "model.safetensors", matrices)
    assert weights == 4 * d * d + 3 * d * inner  # as many heads of keys as of queries
    assert shipped.work is not None
    assert shipped.work.is_counted
    assert shipped.work.block_weights == weights
    assert shipped.work.head_weights == v * d
    assert shipped.work.kv_per_token == 2 * d * config["num_hidden_layers"]
    read, flops = weights + 2 * CONTEXT * d, 2 * weights + 4 * CONTEXT * d
    margin = method_of(shipped, "calm-softmax")
    assert margin.bytes_share == pytest.approx(v * d / read)
    assert margin.flops_share == pytest.approx((2 * v * d + 7 * v) / flops)
    heads = method_of(shipped, "heads")
    assert heads.n_evaluations == 3
    assert heads.bytes_share == pytest.approx(v * d / read)  # a linear head multiplies what the model's own does
    classifier = method_of(shipped, "calm-classifier")
    assert classifier.bytes_share == pytest.approx(2 * d / read)
    copied = policy_of(shipped, "state-copy")
    assert copied.bytes_share == pytest.approx(2 * d * d / read)
    assert copied.flops_share == pytest.approx(4 * d * d / flops)
    assert policy_of(shipped, "exact").bytes_share == 1
    rerun = policy_of(shipped, "recompute-backlog")
    assert (rerun.bytes_share, rerun.flops_share) == (0, config["num_hidden_layers"])


def test_gate_inputs_and_fits_are_detected(shipped: Inspection) -> None:
    def told(name: str) -> tuple[str, bool]:
        gate = method_of(shipped, name)
        return gate.reads, gate.is_fitted

    assert told("calm-softmax") == ("logits", False)
    assert told("heads") == ("logits of exit heads", False)
    assert told("calm-classifier") == ("states", True)
    assert told("mee-lstm") == ("earlier states", True)
    assert told("contrastive") == ("logits, earlier states", False)
    assert told("oracle") == ("all blocks first", False)
    assert told("static") == ("nothing", False)
    twice = method_of(shipped, "contrastive").bytes_share
    once = method_of(shipped, "calm-softmax").bytes_share
    assert twice is not None and once is not None
    assert twice > once  # reads an earlier block's logits again


def test_encoder_decoder_sizes_and_work_are_reported(checkpoint: Path) -> None:
    result = inspect_folder(checkpoint, context=CONTEXT)
    weights = checkpoint / "model.safetensors"
    shape, work = result.shape, result.work
    assert shape is not None and work is not None
    assert (shape.encoder_blocks, shape.decoder_blocks, shape.positions) == (2, 2, None)
    assert shape.parameters.total == numel_of(weights)
    assert shape.parameters.blocks == numel_of(weights, r"decoder\.block\..*")
    assert shape.parameters.encoder == numel_of(weights, r"encoder\.(block|final).*")
    assert (result.tokens.start_id, result.tokens.end_ids, result.lacks) == (0, (1,), ())
    d, inner, ff = 16, 16, 32
    assert work.block_weights == 6 * d * inner + 2 * d * ff  # keys and values of the source are made once
    assert (work.context, work.source) == (CONTEXT, CONTEXT)
    read = work.block_weights + 2 * 2 * CONTEXT * inner
    assert policy_of(result, "state-copy").bytes_share == pytest.approx(2 * d * inner / read)
    assert method_of(result, "heads").why_not is not None
    assert "trained exit heads" in str(method_of(result, "heads").why_not)


def test_context_is_limited_by_the_models_positions(causal_model: Path) -> None:
    result = inspect_folder(causal_model)
    assert result.shape is not None and result.work is not None
    assert (result.shape.encoder_blocks, result.shape.decoder_blocks, result.shape.positions) == (0, 3, 58)
    assert result.work.context == 58
    assert result.shape.parameters.total == numel_of(causal_model / "model.safetensors")
    late = method_of(result, "mee-lstm")
    assert "mee-lstm.min_exit = 4 is above the depth" in str(late.why_not)
    with pytest.raises(UserError, match="--context is 59; allowed: at most 58"):
        inspect_folder(causal_model, context=59)


def test_untied_lm_head_is_counted(tmp_path: Path) -> None:
    reference = transformers.T5ForConditionalGeneration(transformers.T5Config(**T5, tie_word_embeddings=False))
    reference.config.tie_word_embeddings = False  # the constructor only stops scaling
    reference.lm_head.weight = torch.nn.Parameter(torch.randn_like(reference.shared.weight))
    reference.save_pretrained(tmp_path)
    result = inspect_folder(tmp_path)
    assert result.shape is not None
    assert result.shape.parameters.head == numel_of(tmp_path / "model.safetensors", r"lm_head\.weight") == 90 * 16
    assert result.shape.parameters.total == numel_of(tmp_path / "model.safetensors")


# ---------------------------------------------------------------------------------------------- the hosted engine


def test_model_of_an_unknown_family_is_verified_on_the_hosted_engine(counted: Inspection, gemma2: Path) -> None:
    hosted, lean = counted.engines
    assert (hosted.engine, hosted.why_not, hosted.is_proved) == ("hosted", None, True)
    assert lean.why_not is not None
    assert "the lean engine does not know model_type 'gemma2'" in lean.why_not
    weights = gemma2 / "model.safetensors"
    assert counted.shape is not None and counted.work is not None
    assert counted.shape.parameters.total == numel_of(weights)
    assert counted.work.is_counted
    assert counted.work.block_weights == numel_of(weights, r"model\.layers\.0\..*proj\.weight")
    assert counted.work.kv_per_token == 2 * (2 * 8) * 4


def test_choices_the_engine_refuses_are_listed_by_reason(counted: Inspection) -> None:
    """A soft cap rules out pruned heads, which read single rows of the head. The model's masks rule out eviction."""
    assert counted.work is not None
    by_reason = counted.work.refused_choices
    (rows,) = (choices for reason, choices in by_reason.items() if "single rows of the LM head" in reason)
    (masks,) = (choices for reason, choices in by_reason.items() if "masks positions block by block" in reason)
    assert {choice.split("-")[0] for choice in rows} == {"head = pruned"}
    assert masks == ("kv_policy = evict",) and len(by_reason) == 2


def test_model_that_exceeds_memory_is_inspected_by_its_configuration(
    counted: Inspection, gemma2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspection, "available_bytes", lambda device: 4 * numel_of(gemma2 / "model.safetensors"))
    result = inspect_folder(gemma2, context=CONTEXT)
    assert (result.engines[0].why_not, result.engines[0].is_proved) == (None, False)
    assert result.work is not None and counted.work is not None
    assert not result.work.is_counted
    assert result.work.refused_choices == {}
    for name in ("block_weights", "head_weights", "kv_per_token"):
        assert getattr(result.work, name) == getattr(counted.work, name)
    assert result.shape == counted.shape
    assert method_of(result, "calm-softmax").bytes_share == method_of(counted, "calm-softmax").bytes_share


def test_unsupported_architecture_is_inspected_by_its_configuration(tmp_path: Path) -> None:
    config = transformers.MambaConfig(vocab_size=100, hidden_size=16, num_hidden_layers=3, state_size=4)
    transformers.MambaForCausalLM(config).save_pretrained(tmp_path)
    result = inspect_folder(tmp_path)
    assert "model_type 'mamba' cannot be run block by block" in result.lacks[0]
    assert result.engines[0].why_not == result.lacks[0]
    assert result.shape is not None
    assert (result.shape.decoder_blocks, result.shape.width, result.shape.vocabulary) == (3, 16, 100)


# ------------------------------------------------------------------------------------------------ what is missing


class Trap:
    """An object that creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_pickled_weights_are_not_opened(causal_model: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(causal_model, tmp_path / "model")
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Trap(tmp_path / "sprung")))
    result = inspect_folder(folder)
    assert not (tmp_path / "sprung").exists()
    assert (result.engines, result.stored) == ((), None)
    assert "Only safetensors weights of these names are read, never pickles" in result.lacks[0]
    assert result.shape is not None and result.work is not None
    whole = inspect_folder(causal_model)
    assert result.shape == whole.shape
    assert not result.work.is_counted
    assert whole.work is not None
    assert result.work.block_weights == whole.work.block_weights


@pytest.mark.parametrize("has_tokenizer", [True, False])
def test_printed_command_converts_pickled_weights(causal_model: Path, tmp_path: Path, has_tokenizer: bool) -> None:
    folder = tmp_path / 'it\'s "mine"'
    folder.mkdir()
    reference = transformers.GPT2LMHeadModel.from_pretrained(causal_model)
    reference.config.save_pretrained(folder)
    reference.generation_config.save_pretrained(folder)
    torch.save(reference.state_dict(), folder / "pytorch_model.bin")
    for path in causal_model.glob("token*") if has_tokenizer else ():
        shutil.copy(path, folder)
    command = inspect_folder(folder).convert
    assert command is not None
    python, option, source = shlex.split(command)
    assert (python, option) == ("python", "-c")
    exec(source, {"__name__": "__main__"})
    result = inspect_folder(Path(f"{folder}-safetensors"))
    assert [tried.why_not for tried in result.engines] == [None, None]
    assert bool(result.lacks) is not has_tokenizer
    assert result.shape == inspect_folder(causal_model).shape


def test_missing_tokenizer_is_the_only_problem_reported(causal_model: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(causal_model, tmp_path / "model")
    for path in folder.glob("*token*"):
        path.unlink()
    result = inspect_folder(folder)
    assert [message for message in result.lacks if "no tokenizer files" not in message] == []
    assert len(result.lacks) == 1
    assert result.tokens == dataclasses.replace(result.tokens, tokenizer=None, n_tokens=None, has_chat_template=None)
    assert result.engines[0].why_not is None


def test_tokenizer_with_ids_beyond_the_embedding_is_reported(causal_model: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(causal_model, tmp_path / "model")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    last = max(tokenizer["model"]["vocab"].values())
    tokenizer["model"]["vocab"]["<new>"] = last + 1
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (message,) = inspect_folder(folder).lacks
    assert f"the tokenizer has ids up to {last + 1}" in message


def test_quantised_weights_are_reported_and_the_shape_comes_from_the_config(causal_model: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(causal_model, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "gptq"}}))
    result = inspect_folder(folder)
    (message,) = result.lacks
    assert "quantization_config ('gptq'): quantised weights are not supported" in message
    assert result.shape == inspect_folder(causal_model).shape
    assert result.stored is not None


def test_weights_that_contradict_the_configuration_are_reported(causal_model: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(causal_model, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "n_layer": 7}))
    result = inspect_folder(folder)
    assert "n_layer is 7, but the weights (model.safetensors) hold 3 blocks" in result.lacks[0]
    assert result.stored is not None
    assert result.stored.numel == numel_of(causal_model / "model.safetensors")


def test_unknown_model_type_is_reported(causal_model: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(causal_model, tmp_path / "model")
    (folder / "config.json").write_text('{"model_type": "nobody"}')
    result = inspect_folder(folder)
    assert (result.family, result.shape, result.work, result.engines) == ("nobody", None, None, ())
    assert "model_type 'nobody' is not supported" in result.lacks[0]
    assert result.stored is not None


def test_folder_without_a_valid_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a Hugging Face checkpoint folder"):
        inspect_folder(tmp_path)
    (tmp_path / "config.json").write_text("[")
    with pytest.raises(UserError, match="not valid JSON"):
        inspect_folder(tmp_path)
