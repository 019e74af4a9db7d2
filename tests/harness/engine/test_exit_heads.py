"""Trained exit heads: read-out of each kind, their file, and their place in a checkpoint's identity."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from exitbench.errors import UserError
from exitbench.harness.engine.checkpoints.digest import describe_checkpoint
from exitbench.harness.engine.checkpoints.exit_head_files import (
    load_exit_heads,
    new_exit_heads,
    read_exit_blocks,
    save_exit_heads,
)
from exitbench.harness.engine.checkpoints.files import EXIT_HEADS_FILE
from exitbench.harness.engine.checkpoints.loading import load_checkpoint
from exitbench.harness.engine.model.exit_heads import KINDS, WITH_LM_HEAD, exit_logits

Twins = Callable[[str], Any]
D, V, H, L = 8, 11, 5, 6


def heads(
    kind: Any,
    norm: Any = "layer",
    blocks: tuple[int, ...] = (2, 4),
    noise: float = 0.5,
    final_bias: Tensor | None = None,
) -> dict[str, Tensor]:
    """Return exit heads of width 8 for 11 tokens, with every tensor moved away from its initial value."""
    generator = torch.Generator().manual_seed(1)
    result = new_exit_heads(
        kind, blocks, D, V, norm, "scratch", torch.ones(D), final_bias, torch.ones(V, D), H, generator=generator
    )
    return {name: tensor + noise * torch.randn(tensor.shape, generator=generator) for name, tensor in result.items()}


@pytest.fixture
def hidden() -> Tensor:
    return torch.randn(3, 7, D, generator=torch.Generator().manual_seed(2))


class ReadOut(nn.Module):
    """A model's own read-out: an RMS norm and an LM head."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(9)
        self.norm_D, self.head_VD = torch.rand(D, generator=generator), torch.randn(V, D, generator=generator)

    def final_normed(self, hidden: Tensor) -> Tensor:
        return hidden / hidden.square().mean(-1, keepdim=True).sqrt() * self.norm_D

    def logits_of_normed(self, normed: Tensor) -> Tensor:
        return normed @ self.head_VD.T

    def logits(self, hidden: Tensor) -> Tensor:
        return self.logits_of_normed(self.final_normed(hidden))


NONE: Any = None  # heads with a read-out of their own ask for nothing of the model


# ------------------------------------------------------------------------------------------ reading out


def torch_head(tensors: dict[str, Tensor], block: int, norm: nn.Module) -> nn.Module:
    """Return the exit head of a block, built from PyTorch modules."""
    own = {name.removeprefix(f"{block}."): tensor for name, tensor in tensors.items() if name.startswith(f"{block}.")}
    parts: dict[str, nn.Module] = {"norm": norm}
    if "up.weight" in own:
        parts |= {"up": nn.Linear(D, H), "gelu": nn.GELU()}
    parts["out"] = nn.Linear(H if "up" in parts else D, V, bias="out.bias" in own)
    sequential = nn.Sequential()
    for name, part in parts.items():
        sequential.add_module(name, part)
    sequential.load_state_dict(own)
    return sequential


@pytest.mark.parametrize("kind", ["linear", "mlp"])
@pytest.mark.parametrize(("norm", "reference"), [("layer", nn.LayerNorm(D, 1e-5)), ("rms", nn.RMSNorm(D, 1e-6))])
def test_head_logits_equal_those_of_torch_norm_and_linear_layers(
    kind: Any, norm: str, reference: nn.Module, hidden: Tensor
) -> None:
    tensors = heads(kind, norm)
    for block in (2, 4):
        expected = torch_head(tensors, block, reference)(hidden)
        assert torch.allclose(exit_logits(tensors, kind, block, hidden, NONE), expected, atol=1e-6)
    assert not torch.allclose(*(exit_logits(tensors, kind, block, hidden, NONE) for block in (2, 4)), atol=0.1)


def test_lens_adds_a_linear_map_to_the_state_before_the_models_read_out(hidden: Tensor) -> None:
    tensors, lens, read_out = heads("lens"), nn.Linear(D, D), ReadOut()
    lens.load_state_dict({"weight": tensors["4.lens.weight"], "bias": tensors["4.lens.bias"]})
    expected = read_out.logits(hidden + lens(hidden))
    assert torch.allclose(exit_logits(tensors, "lens", 4, hidden, read_out), expected, atol=1e-6)


@pytest.mark.parametrize("has_bias", [False, True])
def test_gain_scales_and_shifts_the_output_of_the_final_norm(hidden: Tensor, has_bias: bool) -> None:
    """Compare with arithmetic per state: divide by its root mean square, then scale, and shift if there is a bias."""
    tensors, read_out = heads("norm", final_bias=torch.ones(D) if has_bias else None), ReadOut()
    assert ("4.gain.bias" in tensors) == has_bias
    weights = (read_out.norm_D * tensors["4.gain.weight"]).tolist()
    shift = tensors["4.gain.bias"].tolist() if has_bias else [0.0] * D
    results = exit_logits(tensors, "norm", 4, hidden, read_out).flatten(0, 1)
    for state, result in zip(hidden.flatten(0, 1).tolist(), results, strict=True):
        length = math.sqrt(sum(x * x for x in state) / D)
        normed = [x / length * weight + c for x, weight, c in zip(state, weights, shift, strict=True)]
        assert torch.allclose(result, read_out.head_VD @ torch.tensor(normed), atol=1e-5)


@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_residual_mlp_is_added_before_the_final_norm(hidden: Tensor, norm: str) -> None:
    tensors, read_out = heads("residual-mlp", norm), ReadOut()
    own = {name.removeprefix("4."): tensor for name, tensor in tensors.items() if name.startswith("4.")}
    assert ("norm.bias" in own) == (norm == "layer")
    results = exit_logits(tensors, "residual-mlp", 4, hidden, read_out).flatten(0, 1)
    for state, result in zip(hidden.flatten(0, 1), results, strict=True):
        centred = state - (state.mean() if norm == "layer" else 0)
        x = centred / (centred.square().mean() + (1e-5 if norm == "layer" else 1e-6)).sqrt() * own["norm.weight"]
        x = x + own.get("norm.bias", torch.zeros(D))
        gate = own["gate.weight"] @ x
        state = state + own["down.weight"] @ (gate / (1 + (-gate).exp()) * (own["up.weight"] @ x))
        expected = read_out.head_VD @ (read_out.final_normed(state) * own["gain.weight"])
        assert torch.allclose(result, expected, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_every_tensor_of_a_head_gets_a_gradient(kind: Any, hidden: Tensor) -> None:
    with torch.enable_grad():
        tensors = {name: tensor.requires_grad_() for name, tensor in heads(kind).items()}
        exit_logits(tensors, kind, 2, hidden, ReadOut()).square().sum().backward()
    moved = {name for name, tensor in tensors.items() if tensor.grad is not None and tensor.grad.abs().max() > 0}
    assert moved == {name for name in tensors if name.startswith("2.")}


# ------------------------------------------------------------------------------------------ new heads


def new_heads(twin: Any, kind: Any, init: Any, hidden_width: int = 32) -> dict[str, Tensor]:
    """Return new exit heads for blocks 1 and 3 of a checkpoint."""
    model = twin.checkpoint.model
    weights = model.weights
    return new_exit_heads(
        kind,
        (1, 3),
        model.d_model,
        model.vocab_size,
        model.arch.norm,
        init,
        weights.final_norm.weight,
        weights.final_norm.bias,
        weights.lm_head.weight,
        hidden_width,
        torch.Generator().manual_seed(0),
        logit_scale=model.arch.logit_scale,
        block_mlps={block: MLP for block in (1, 3)},
    )


MLP = {
    name: torch.ones(shape) for name, shape in {"norm.weight": 32, "gate.weight": (9, 32), "up.weight": (9, 32)}.items()
}


@pytest.mark.parametrize("init", ["scratch", "copy"])
@pytest.mark.parametrize("kind", sorted(WITH_LM_HEAD))
def test_new_heads_that_end_in_the_lm_head_equal_the_logit_lens_bit_for_bit(family: Any, kind: Any, init: Any) -> None:
    model, tensors = family.checkpoint.model, new_heads(family, kind, init)
    states = torch.randn(6, 32, generator=torch.Generator().manual_seed(3))
    assert torch.equal(exit_logits(tensors, kind, 3, states, model), model.logits(states))
    assert {
        name: tensor for name, tensor in tensors.items() if tensor.data_ptr() in {t.data_ptr() for t in MLP.values()}
    } == {}


def test_copied_head_gives_the_models_logits(family: Any) -> None:
    model, tensors = family.checkpoint.model, new_heads(family, "linear", "copy")
    states = torch.randn(6, 32, generator=torch.Generator().manual_seed(3))
    expected = model.logits(states)
    assert torch.allclose(exit_logits(tensors, "linear", 3, states, model), expected, atol=1e-4, rtol=1e-4)
    copied = {tensor.data_ptr() for tensor in tensors.values()}
    assert model.weights.final_norm.weight.data_ptr() not in copied, "training must not move the model"


def test_heads_from_scratch_differ_by_block_and_are_drawn_from_the_generator(twin: Twins) -> None:
    first, again = new_heads(twin("gpt2"), "linear", "scratch"), new_heads(twin("gpt2"), "linear", "scratch")
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["1.out.weight"], first["3.out.weight"])
    bound = 32**-0.5
    assert bound * 0.99 < first["1.out.weight"].abs().max() <= bound
    assert set(first) == {
        f"{b}.{name}" for b in (1, 3) for name in ("norm.weight", "norm.bias", "out.weight", "out.bias")
    }
    assert {"1.norm.bias", "1.out.bias"}.isdisjoint(new_heads(twin("llama"), "linear", "scratch"))


def test_copying_the_lm_head_into_an_mlp_head_needs_the_models_width(twin: Twins) -> None:
    copied = new_heads(twin("llama"), "mlp", "copy", hidden_width=32)
    assert torch.equal(copied["1.out.weight"], twin("llama").checkpoint.model.weights.lm_head.weight)
    with pytest.raises(UserError, match="need hidden_width = 32, the model's width, not 5"):
        new_heads(twin("llama"), "mlp", "copy", hidden_width=5)


# ------------------------------------------------------------------------------------------ the file


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_saved_heads_load_unchanged(tmp_path: Path, kind: Any, norm: str, hidden: Tensor) -> None:
    tensors = heads(kind, norm, blocks=(4, 2))
    save_exit_heads(tmp_path / EXIT_HEADS_FILE, kind, tensors)
    loaded = load_exit_heads(tmp_path, L, D, V)
    assert loaded is not None
    assert (loaded.kind, loaded.blocks, read_exit_blocks(tmp_path)) == (kind, (2, 4), (2, 4))
    read_out = ReadOut()
    expected = exit_logits(tensors, kind, 4, hidden, read_out)
    assert torch.equal(loaded.logits(4, hidden, read_out), expected)
    assert loaded.numel(2) == {
        "linear": V * D, "mlp": H * D + V * H, "lens": D * D, "norm": 0, "residual-mlp": 3 * H * D,
    }[kind]  # fmt: skip


def test_folder_without_a_heads_file_has_no_exit_heads(tmp_path: Path) -> None:
    assert load_exit_heads(tmp_path, L, D, V) is None
    assert read_exit_blocks(tmp_path) == ()


def test_saving_equal_heads_gives_identical_bytes(tmp_path: Path) -> None:
    files = [tmp_path / str(n) for n in range(8)]
    for path in files:
        save_exit_heads(path, "mlp", heads("mlp"))
    assert len({path.read_bytes() for path in files}) == 1


def spoiled(tmp_path: Path, edit: Callable[[dict[str, Tensor]], object], kind: Any = "mlp", **metadata: str) -> str:
    """Return the error message for a file of heads at blocks 2 and 4 after an edit of its tensors or metadata."""
    tensors = heads(kind)
    edit(tensors)
    told = {"kind": kind, "blocks": "2,4", **metadata}
    save_file(
        tensors,
        tmp_path / EXIT_HEADS_FILE,
        metadata={"exit_heads": json.dumps({name: text for name, text in told.items() if text})},
    )
    with pytest.raises(UserError) as caught:
        load_exit_heads(tmp_path, L, D, V)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / EXIT_HEADS_FILE}: ")
    return message.removeprefix(f"{tmp_path / EXIT_HEADS_FILE}: ")


def test_tensors_that_do_not_fit_are_refused_with_name_and_shapes(tmp_path: Path) -> None:
    def put(name: str, *shape: int) -> Callable[[dict[str, Tensor]], object]:
        return lambda tensors: tensors.update({name: torch.zeros(shape)})

    asked = "has shape [11, 4], the model requires [11, 5]."
    assert spoiled(tmp_path, put("4.out.weight", V, 4)) == f"tensor '4.out.weight' {asked}"
    assert "'2.norm.bias' has shape [9], the model requires [8]" in spoiled(tmp_path, put("2.norm.bias", 9))
    assert "'2.up.weight' has shape [5, 7], the model requires [5, 8]" in spoiled(tmp_path, put("2.up.weight", H, 7))
    assert "'2.up.bias' has shape [4], the model requires [5]" in spoiled(tmp_path, put("2.up.bias", 4))
    missing = spoiled(tmp_path, lambda tensors: tensors.pop("2.out.weight"))
    assert missing == "tensor '2.out.weight' is missing; kind 'mlp' needs it, [11, 5]."
    unknown = spoiled(tmp_path, put("3.out.weight", V, D))
    assert unknown.startswith("tensor '3.out.weight' is not part of heads of kind 'mlp' at blocks 2, 4")
    assert "'2.up.bias' is not part of heads of kind 'linear'" in spoiled(tmp_path, put("2.up.bias", H), kind="linear")


@pytest.mark.parametrize(
    ("metadata", "says"),
    [
        ({"kind": "liner"}, "metadata 'kind' is 'liner'. Did you mean 'linear'?"),
        ({"kind": ""}, "metadata 'kind' is None."),
        *(
            ({"blocks": blocks}, f"metadata 'blocks' is {blocks or None!r}; allowed: ascending block numbers")
            for blocks in ("", "0,2", "4,2", "2,2", "2,x", "2,", "-1")
        ),
        ({"blocks": "2,6"}, "exit block 6 is not before the last; the model has 6 decoder blocks, allowed: between"),
    ],
)
def test_invalid_metadata_values_are_refused(tmp_path: Path, metadata: dict[str, str], says: str) -> None:
    assert spoiled(tmp_path, lambda tensors: None, **metadata).startswith(says)


@pytest.mark.parametrize(
    ("metadata", "says"),
    [("[]", "metadata 'kind' is None"), ('{"kind": "linear", "blocks": 2}', "metadata 'blocks' is 2;")],
)
def test_metadata_of_wrong_type_is_refused(tmp_path: Path, metadata: str, says: str) -> None:
    save_file(heads("linear"), tmp_path / EXIT_HEADS_FILE, metadata={"exit_heads": metadata})
    with pytest.raises(UserError, match=says):
        load_exit_heads(tmp_path, L, D, V)


def test_truncated_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / EXIT_HEADS_FILE
    save_exit_heads(path, "linear", heads("linear"))
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(UserError, match="not a complete safetensors file"):
        load_exit_heads(tmp_path, L, D, V)


# ------------------------------------------------------------------------------------------ in a checkpoint


@pytest.fixture(params=["t5", "llama"])
def folder(request: pytest.FixtureRequest, twin: Twins, tmp_path: Path) -> Path:
    """Return a checkpoint with exit heads at blocks 1 and 3, and a tokenizer."""
    copied = Path(shutil.copytree(twin(request.param).folder, tmp_path / "model"))
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"a": 0}, "a"))).save_pretrained(copied)
    save_exit_heads(copied / EXIT_HEADS_FILE, "linear", new_heads(twin(request.param), "linear", "scratch"))
    return copied


def test_loaded_heads_have_the_models_number_format(folder: Path) -> None:
    model = load_checkpoint(folder, dtype=torch.bfloat16).model
    assert model.exit_heads is not None
    assert {tensor.dtype for tensor in model.exit_heads.tensors.values()} == {torch.bfloat16}
    assert model.exit_blocks == (1, 3)
    states = torch.randn(4, 32, dtype=torch.bfloat16)
    assert model.exit_logits(3, states).shape == (4, model.vocab_size)
    assert model.exit_head_numel(3) == model.vocab_size * 32
    (folder / EXIT_HEADS_FILE).unlink()
    assert load_checkpoint(folder).model.exit_blocks == ()


def test_heads_that_end_in_the_lm_head_use_and_count_its_weights(folder: Path) -> None:
    zeros = {"2.lens.weight": torch.zeros(32, 32), "2.lens.bias": torch.zeros(32)}
    save_exit_heads(folder / EXIT_HEADS_FILE, "lens", zeros)
    model, states = load_checkpoint(folder).model, torch.randn(4, 32)
    assert torch.equal(model.exit_logits(2, states), model.logits(states))
    assert model.exit_head_numel(2) == 32 * 32 + model.vocab_size * 32
    save_exit_heads(folder / EXIT_HEADS_FILE, "norm", {"2.gain.weight": torch.full((32,), 2.0)})
    model = load_checkpoint(folder).model
    assert torch.equal(model.exit_logits(2, states), 2 * model.logits(states))
    assert model.exit_head_numel(2) == model.vocab_size * 32


def test_transformers_loads_a_folder_with_exit_heads(folder: Path, twin: Twins) -> None:
    is_t5 = "t5" in (folder / "config.json").read_text()
    auto = transformers.AutoModelForSeq2SeqLM if is_t5 else transformers.AutoModelForCausalLM
    loaded, told = auto.from_pretrained(folder, output_loading_info=True)
    assert not told["missing_keys"] and not told["unexpected_keys"]
    reference = twin("t5" if is_t5 else "llama").reference.state_dict()
    assert all(torch.equal(tensor, reference[name]) for name, tensor in loaded.state_dict().items())


def test_exit_heads_do_not_replace_missing_model_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"no model\.safetensors and no"):
        load_checkpoint(folder)


def test_exit_heads_are_part_of_the_checkpoint_identity(folder: Path) -> None:
    described = describe_checkpoint("model", folder)
    heads_path = folder / EXIT_HEADS_FILE
    tensors = load_checkpoint(folder).model.exit_heads.tensors  # type: ignore[union-attr]
    heads_path.unlink()
    bare = describe_checkpoint("model", folder)
    assert described.parameters - bare.parameters == sum(tensor.numel() for tensor in tensors.values())
    save_exit_heads(heads_path, "linear", {name: tensor + 1 for name, tensor in tensors.items()})
    other = describe_checkpoint("model", folder)
    assert len({m.weights_sha256 for m in (described, bare, other)}) == 3
