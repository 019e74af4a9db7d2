"""Off-ramps: their read-out, their file, and the files that are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from exitbench.errors import UserError
from exitbench.harness.engine.checkpoints.exit_head_files import load_off_ramps, new_off_ramps, save_off_ramps
from exitbench.harness.engine.checkpoints.files import OFF_RAMPS_FILE
from exitbench.harness.engine.encoders.model import RAMP_KINDS, OffRamps, RampKind

D, C, L = 8, 3, 5


def ramps(kind: RampKind = "linear", blocks: tuple[int, ...] = (1, 2, 4)) -> dict[str, Tensor]:
    return new_off_ramps(kind, blocks, D, C, torch.Generator().manual_seed(1))


def loaded(folder: Path, tensors: dict[str, Tensor], metadata: Any) -> OffRamps | None:
    save_file(tensors, folder / OFF_RAMPS_FILE, metadata={"off_ramps": json.dumps(metadata)})
    return load_off_ramps(folder, L, D, C)


@pytest.mark.parametrize("kind", ["linear", "pooler-linear"])
def test_off_ramp_logits_equal_those_of_torch_linear_layers(kind: RampKind) -> None:
    tensors = ramps(kind)
    state_AD = torch.randn(6, D)
    expected = state_AD
    for part in ("pool", "out") if kind == "pooler-linear" else ("out",):
        linear = nn.Linear(D, D if part == "pool" else C)
        linear.load_state_dict({name: tensors[f"2.{part}.{name}"] for name in ("weight", "bias")})
        expected = linear(expected)
        expected = expected.tanh() if part == "pool" else expected
    assert torch.allclose(OffRamps(kind, (1, 2, 4), tensors).logits(2, state_AD), expected)


def test_attention_off_ramp_equals_torch_multi_head_attention_and_ignores_padding() -> None:
    """FastBERT's branch: the first token attends to all tokens; what is after a text's end changes nothing."""
    tensors = ramps("attention")
    part = {name.removeprefix("2."): tensor for name, tensor in tensors.items() if name.startswith("2.")}
    attention = nn.MultiheadAttention(128, 2, batch_first=True)
    with torch.no_grad():
        attention.in_proj_weight.copy_(torch.cat([part[f"{name}.weight"] for name in ("query", "key", "value")]))
        attention.in_proj_bias.copy_(torch.cat([part[f"{name}.bias"] for name in ("query", "key", "value")]))
        attention.out_proj.weight.copy_(part["proj.weight"])
        attention.out_proj.bias.copy_(part["proj.bias"])
    hidden_ATD, mask_AT = torch.randn(3, 7, D), torch.tensor([[1] * 7, [1] * 4 + [0] * 3, [1] + [0] * 6])
    down = (hidden_ATD @ part["down.weight"].T + part["down.bias"]).tanh()
    attended = attention(down, down, down, key_padding_mask=mask_AT == 0)[0][:, 0]
    expected = (attended @ part["pool.weight"].T + part["pool.bias"]).tanh() @ part["out.weight"].T + part["out.bias"]
    off_ramps = OffRamps("attention", (1, 2, 4), tensors)
    state = torch.cat([hidden_ATD[:, 0], off_ramps.attention_output(2, hidden_ATD, mask_AT)], dim=-1)
    assert torch.allclose(off_ramps.logits(2, state), expected, atol=1e-6)
    longer = torch.where(mask_AT[..., None] == 1, hidden_ATD, 100.0)
    outputs = [off_ramps.attention_output(2, states_ATD, mask_AT) for states_ATD in (longer, hidden_ATD)]
    assert torch.allclose(*outputs, atol=1e-6)


@pytest.mark.parametrize(("kind", "numel"), [("linear", C * D), ("pooler-linear", C * D + D * D)])
def test_off_ramp_numel_counts_the_weights_of_its_linear_maps(kind: RampKind, numel: int) -> None:
    off_ramps = OffRamps(kind, (1, 2, 4), ramps(kind))
    assert off_ramps.numel(2) == numel
    assert off_ramps.attention_cost(2, n_tokens=9).flops == 0


@pytest.mark.parametrize("kind", RAMP_KINDS)
def test_saved_off_ramps_load_unchanged(kind: RampKind, tmp_path: Path) -> None:
    save_off_ramps(tmp_path / OFF_RAMPS_FILE, kind, ramps(kind))
    result = load_off_ramps(tmp_path, L, D, C)
    assert result is not None
    assert (result.kind, result.blocks) == (kind, (1, 2, 4))
    assert all(torch.equal(result.tensors[name], tensor) for name, tensor in ramps(kind).items())


def test_folder_without_a_file_has_no_off_ramps(tmp_path: Path) -> None:
    assert load_off_ramps(tmp_path, L, D, C) is None


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"kind": "liner", "blocks": "1,2,4"}, "Did you mean 'linear'"),
        ({"kind": "linear", "blocks": "2,1"}, "ascending block numbers"),
        ({"kind": "linear", "blocks": "0,1"}, "ascending block numbers"),
        ({"kind": "linear", "blocks": 3}, "ascending block numbers"),
        ({"kind": "linear", "blocks": "1,2,5"}, "block 5 is not before the last; the model has 5 blocks"),
        ({"kind": "linear", "blocks": "1,2,3,4"}, "'3.out.weight' is missing"),
        ({"kind": "linear", "blocks": "1,2"}, "'4.out.bias' is not part"),
        ([], "metadata 'kind' is None"),
    ],
)
def test_invalid_metadata_is_refused(metadata: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        loaded(tmp_path, ramps(), metadata)


def test_off_ramps_with_another_number_of_labels_are_refused(tmp_path: Path) -> None:
    save_off_ramps(tmp_path / OFF_RAMPS_FILE, "linear", ramps())
    with pytest.raises(UserError, match=r"'1.out.weight' has shape \[3, 8\], the model requires \[2, 8\]"):
        load_off_ramps(tmp_path, L, D, 2)


def test_file_that_is_not_safetensors_is_refused(tmp_path: Path) -> None:
    (tmp_path / OFF_RAMPS_FILE).write_bytes(b"no tensors")
    with pytest.raises(UserError, match="not a complete safetensors file"):
        load_off_ramps(tmp_path, L, D, C)


def test_integer_weights_are_refused(tmp_path: Path) -> None:
    tensors = {name: tensor.long() for name, tensor in ramps(blocks=(1,)).items()}
    with pytest.raises(UserError, match="holds I64"):
        loaded(tmp_path, tensors, {"kind": "linear", "blocks": "1"})
