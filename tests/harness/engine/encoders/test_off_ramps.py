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


@pytest.mark.parametrize("kind", RAMP_KINDS)
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


@pytest.mark.parametrize(("kind", "numel"), [("linear", C * D), ("pooler-linear", C * D + D * D)])
def test_off_ramp_numel_counts_the_weights_of_its_linear_maps(kind: RampKind, numel: int) -> None:
    assert OffRamps(kind, (1, 2, 4), ramps(kind)).numel(2) == numel


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
