"""Files of off-ramps, `off_ramps.safetensors` beside a classifier's weights, and new off-ramps to train.

What is in them: `harness/engine/encoders/model.py`. A classifier without the file is read out after every block by
its own classifier, the shared head.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from exitbench.errors import UserError
from exitbench.harness.engine.checkpoints.files import OFF_RAMPS_FILE
from exitbench.harness.engine.checkpoints.tensor_files import check_heads, heads_header, heads_tensors, save_heads
from exitbench.harness.engine.encoders.model import KINDS, OffRamps, RampKind
from exitbench.harness.reading.regular_files import is_file

METADATA = "off_ramps"


def save_off_ramps(path: Path, kind: RampKind, tensors: Mapping[str, Tensor]) -> None:
    """Write the off-ramps of the blocks that the names of the tensors tell; ``path`` is the file."""
    save_heads(path, METADATA, kind, tensors)


def load_off_ramps(
    folder: Path,
    n_blocks: int,
    d_model: int,
    n_labels: int,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
) -> OffRamps | None:
    """Read the off-ramps of a checkpoint folder; None if it has none.

    Args:
        folder: The checkpoint.
        n_blocks: Blocks of the encoder, L.
        d_model: Width of its states, D.
        n_labels: Labels of its classifier, C.
        dtype: Number format of the tensors returned.
        device: Where they are put.

    Raises:
        UserError: The file is not what the model and its own metadata ask for; names tensor and shapes.
    """
    path = folder / OFF_RAMPS_FILE
    if not is_file(path):
        return None
    said, blocks = heads_header(path, METADATA, KINDS)
    if blocks[-1] >= n_blocks:
        raise UserError(
            f"{path}: block {blocks[-1]} is not before the last; the model has {n_blocks} blocks, whose last one its "
            f"own classifier reads. Allowed: between 1 and {n_blocks - 1}."
        )
    kind, tensors = cast(RampKind, said), heads_tensors(path)
    check_heads(path, kind, blocks, tensors, shapes(kind, blocks, d_model, n_labels), {})
    return OffRamps(kind, blocks, {name: tensor.to(device, dtype) for name, tensor in tensors.items()})


def shapes(kind: RampKind, blocks: Sequence[int], d_model: int, n_labels: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor of off-ramps, by name."""
    own: dict[str, tuple[int, ...]] = {"out.weight": (n_labels, d_model), "out.bias": (n_labels,)}
    if kind == "pooler-linear":
        own |= {"pool.weight": (d_model, d_model), "pool.bias": (d_model,)}
    return {f"{block}.{name}": shape for block in blocks for name, shape in own.items()}


def new_off_ramps(
    kind: RampKind, blocks: Sequence[int], d_model: int, n_labels: int, generator: torch.Generator
) -> dict[str, Tensor]:
    """Return off-ramps to be trained, in float32, drawn as PyTorch draws linear maps."""
    tensors = {}
    for name, shape in shapes(kind, blocks, d_model, n_labels).items():
        tensors[name] = (2 * torch.rand(shape, generator=generator) - 1) / math.sqrt(d_model)
    return tensors
