"""Read and write files of trained exit heads and off-ramps; create new heads and off-ramps to train.

The files are next to the model's weights. `exit_heads.safetensors` (`harness/engine/model/exit_heads.py`) holds
read-outs for a decoder's blocks. `off_ramps.safetensors` (`harness/engine/encoders/model.py`) holds those of an
encoder's blocks; without it, the model's own classifier reads every block.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, cast

import torch
from torch import Tensor

from exitbench.errors import UserError
from exitbench.harness.engine.checkpoints.files import EXIT_HEADS_FILE, OFF_RAMPS_FILE
from exitbench.harness.engine.checkpoints.tensor_files import (
    Shapes,
    check_heads,
    heads_header,
    heads_tensors,
    save_heads,
)
from exitbench.harness.engine.encoders.model import ATTENTION_WIDTH, RAMP_KINDS, OffRamps, RampKind
from exitbench.harness.engine.model.exit_heads import KINDS, WITH_LM_HEAD, ExitHeads, HeadKind
from exitbench.harness.reading.regular_files import is_file

EXIT_HEADS = "exit_heads"
OFF_RAMPS = "off_ramps"


def save_exit_heads(path: Path, kind: HeadKind, tensors: Mapping[str, Tensor]) -> None:
    """Write exit heads to a safetensors file; their blocks are parsed from the tensor names, ``{block}.NAME``."""
    save_heads(path, EXIT_HEADS, kind, tensors)


def read_exit_blocks(folder: Path) -> tuple[int, ...]:
    """Return the blocks with a trained exit head or off-ramp in a checkpoint folder, from the file header; () if none.

    Raises:
        UserError: The header is not that of a file of exit heads or off-ramps.
    """
    for name, part, kinds in ((EXIT_HEADS_FILE, EXIT_HEADS, KINDS), (OFF_RAMPS_FILE, OFF_RAMPS, RAMP_KINDS)):
        if is_file(folder / name):
            return heads_header(folder / name, part, kinds)[1]
    return ()


def load_exit_heads(
    folder: Path,
    n_blocks: int,
    d_model: int,
    vocab_size: int,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
) -> ExitHeads | None:
    """Return the exit heads in a checkpoint folder; None if there is no file of exit heads.

    Args:
        folder: Folder of the checkpoint.
        n_blocks: Number of decoder blocks, L.
        d_model: Hidden size, D.
        vocab_size: Number of rows of the LM head, V.
        dtype: Number format of the tensors returned.
        device: Device of the tensors returned.

    Raises:
        UserError: The file does not match the model or its own metadata; the message names tensor and shapes.
    """
    path = folder / EXIT_HEADS_FILE
    if not is_file(path):
        return None
    stored_kind, blocks = heads_header(path, EXIT_HEADS, KINDS)
    if blocks[-1] >= n_blocks:
        raise UserError(
            f"{path}: exit block {blocks[-1]} is not before the last; the model has {n_blocks} decoder blocks, "
            f"allowed: between 1 and {n_blocks - 1}."
        )
    kind, tensors = cast(HeadKind, stored_kind), heads_tensors(path)
    needed, optional = _shapes(tensors, kind, blocks, d_model, vocab_size)
    check_heads(path, kind, blocks, tensors, needed, optional)
    return ExitHeads(kind, blocks, {name: tensor.to(device, dtype) for name, tensor in tensors.items()})


def _shapes(
    tensors: Mapping[str, Tensor], kind: HeadKind, blocks: Sequence[int], d_model: int, vocab_size: int
) -> tuple[Shapes, Shapes]:
    """Return two mappings of tensor names to shapes: tensors that exit heads of a kind must have, and may have.

    The widths of hidden layers are taken from the stored ``tensors``.
    """
    needed: dict[str, tuple[int, ...]] = {}
    optional: dict[str, tuple[int, ...]] = {}
    for block in blocks:
        if kind == "lens":
            needed |= {f"{block}.lens.weight": (d_model, d_model), f"{block}.lens.bias": (d_model,)}
            continue
        if kind in WITH_LM_HEAD:
            needed[f"{block}.gain.weight"] = optional[f"{block}.gain.bias"] = (d_model,)
            if kind == "residual-mlp":
                width = _hidden_width(tensors, block, d_model)
                needed |= {f"{block}.norm.weight": (d_model,), f"{block}.down.weight": (d_model, width)}
                needed |= {f"{block}.{name}.weight": (width, d_model) for name in ("gate", "up")}
                optional[f"{block}.norm.bias"] = (d_model,)
            continue
        width = d_model
        if kind == "mlp":
            width = _hidden_width(tensors, block, d_model)
            needed |= {f"{block}.up.weight": (width, d_model), f"{block}.up.bias": (width,)}
        needed |= {f"{block}.norm.weight": (d_model,), f"{block}.out.weight": (vocab_size, width)}
        optional |= {f"{block}.norm.bias": (d_model,), f"{block}.out.bias": (vocab_size,)}
    return needed, optional


def _hidden_width(tensors: Mapping[str, Tensor], block: int, d_model: int) -> int:
    """Return the hidden width of a block's exit head, from its ``up`` tensor; D if that is missing or a scalar."""
    up = tensors.get(f"{block}.up.weight")
    return up.shape[0] if up is not None and up.dim() else d_model


# ------------------------------------------------------------------------------------------- new heads


def new_exit_heads(
    kind: HeadKind,
    blocks: Sequence[int],
    d_model: int,
    vocab_size: int,
    norm: Literal["rms", "layer"],
    init: Literal["scratch", "copy"],
    final_norm_weight: Tensor | None,
    final_norm_bias: Tensor | None,
    lm_head_weight: Tensor,
    hidden_width: int,
    generator: torch.Generator,
    logit_scale: float = 1.0,
    lm_head_bias: Tensor | None = None,
    block_mlps: Mapping[int, Mapping[str, Tensor]] | None = None,
) -> dict[str, Tensor]:
    """Return the initial tensors of exit heads to train, by name, in float32.

    Heads that end in the model's own LM head first give the logits of the model's own read-out, whatever ``init`` is.
    For this, the added matrix of a lens and the last matrix of a residual MLP start as 0, and gains as 1. With
    ``init = "copy"``, norm and other matrices of a residual MLP are those of the exit block's own MLP.

    Other heads end in their own last layer. With ``init = "scratch"``, norms start as the identity, and matrices like
    PyTorch's linear layers. The last layer has a bias with a layer norm, and none with an RMS norm (as in the two
    published implementations of HEADS). With ``init = "copy"``, a head starts with copies of the model's final norm
    and LM head. So a linear head first gives the logits of the model's own read-out.

    Args:
        kind: Kind of the heads.
        blocks: Exit blocks.
        d_model: Hidden size, D.
        vocab_size: Number of rows of the LM head, V.
        norm: Norm of heads that are initialized from scratch.
        init: Whether to initialize heads from scratch or to copy them from the model, as described above.
        final_norm_weight: Weight of the model's final norm, [D]; only needed for a copy.
        final_norm_bias: Bias of the model's final norm, [D]; None for an RMS norm. With it, gains have a bias too.
        lm_head_weight: Weight of the model's LM head, [V, D].
        hidden_width: Hidden width of heads of kind ``mlp``, and of ``residual-mlp`` from scratch.
        generator: Generator of the random initial values.
        logit_scale: Factor of the normed states before the model's LM head; folded into the copied weight.
        lm_head_bias: Bias of the model's LM head, [V]; None if it has none.
        block_mlps: Norm and first matrices of the exit blocks' own MLPs, by their names in a head of kind
            ``residual-mlp``; only needed to copy them.

    Raises:
        UserError: The LM head cannot be copied behind a hidden layer of another width.
    """
    if kind == "mlp" and init == "copy" and hidden_width != d_model:
        raise UserError(
            f"exit heads of kind 'mlp' with init 'copy' need hidden_width = {d_model}, the model's width, not "
            f"{hidden_width}: the model's LM head is copied behind the hidden layer."
        )
    tensors: dict[str, Tensor] = {}

    def uniform(*shape: int, width: int) -> Tensor:
        return (2 * torch.rand(shape, generator=generator) - 1) / math.sqrt(width)

    for block in blocks:
        if kind == "lens":
            tensors[f"{block}.lens.weight"] = torch.zeros(d_model, d_model)
            tensors[f"{block}.lens.bias"] = torch.zeros(d_model)
            continue
        if kind in WITH_LM_HEAD:
            tensors[f"{block}.gain.weight"] = torch.ones(d_model)
            if final_norm_bias is not None:
                tensors[f"{block}.gain.bias"] = torch.zeros(d_model)
            if kind == "residual-mlp":
                if init == "copy":
                    assert block_mlps is not None, "what is copied"
                    mlp = {name: _copied(tensor) for name, tensor in block_mlps[block].items()}
                else:
                    mlp = {"norm.weight": torch.ones(d_model)}
                    mlp |= {f"{name}.weight": uniform(hidden_width, d_model, width=d_model) for name in ("gate", "up")}
                    if norm == "layer":
                        mlp["norm.bias"] = torch.zeros(d_model)
                tensors |= {f"{block}.{name}": tensor for name, tensor in mlp.items()}
                tensors[f"{block}.down.weight"] = torch.zeros(d_model, len(mlp["up.weight"]))
            continue
        inner = d_model
        if kind == "mlp":
            inner = hidden_width
            tensors[f"{block}.up.weight"] = uniform(inner, d_model, width=d_model)
            tensors[f"{block}.up.bias"] = uniform(inner, width=d_model)
        if init == "copy":
            assert final_norm_weight is not None, "what is copied"
            tensors[f"{block}.norm.weight"] = _copied(final_norm_weight)
            if final_norm_bias is not None:
                tensors[f"{block}.norm.bias"] = _copied(final_norm_bias)
            tensors[f"{block}.out.weight"] = _copied(lm_head_weight) * logit_scale
            if lm_head_bias is not None:
                tensors[f"{block}.out.bias"] = _copied(lm_head_bias)
            continue
        tensors[f"{block}.norm.weight"] = torch.ones(d_model)
        tensors[f"{block}.out.weight"] = uniform(vocab_size, inner, width=inner)
        if norm == "layer":
            tensors[f"{block}.norm.bias"] = torch.zeros(d_model)
            tensors[f"{block}.out.bias"] = uniform(vocab_size, width=inner)
    return tensors


def _copied(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", torch.float32, copy=True)


# ------------------------------------------------------------------------------------------- off-ramps


def save_off_ramps(path: Path, kind: RampKind, tensors: Mapping[str, Tensor]) -> None:
    """Write off-ramps to a safetensors file; their blocks are parsed from the tensor names, ``{block}.NAME``."""
    save_heads(path, OFF_RAMPS, kind, tensors)


def load_off_ramps(
    folder: Path,
    n_blocks: int,
    d_model: int,
    n_labels: int,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
) -> OffRamps | None:
    """Return the off-ramps in a checkpoint folder; None if there is no file of off-ramps.

    Args:
        folder: Folder of the checkpoint.
        n_blocks: Number of blocks of the encoder, L.
        d_model: Hidden size, D.
        n_labels: Number of labels of the classifier, C.
        dtype: Number format of the tensors returned.
        device: Device of the tensors returned.

    Raises:
        UserError: The file does not match the model or its own metadata; the message names tensor and shapes.
    """
    path = folder / OFF_RAMPS_FILE
    if not is_file(path):
        return None
    stored_kind, blocks = heads_header(path, OFF_RAMPS, RAMP_KINDS)
    if blocks[-1] >= n_blocks:
        raise UserError(
            f"{path}: block {blocks[-1]} is not before the last; the model has {n_blocks} blocks, whose last one its "
            f"own classifier reads. Allowed: between 1 and {n_blocks - 1}."
        )
    kind, tensors = cast(RampKind, stored_kind), heads_tensors(path)
    check_heads(path, kind, blocks, tensors, _off_ramp_shapes(kind, blocks, d_model, n_labels), {})
    return OffRamps(kind, blocks, {name: tensor.to(device, dtype) for name, tensor in tensors.items()})


def _off_ramp_shapes(kind: RampKind, blocks: Sequence[int], d_model: int, n_labels: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor of the off-ramps of some blocks, by tensor name."""
    width = ATTENTION_WIDTH if kind == "attention" else d_model
    matrices = {"out": (n_labels, width)}
    if kind != "linear":
        matrices["pool"] = (width, width)
    if kind == "attention":
        matrices |= {"down": (width, d_model), **dict.fromkeys(("query", "key", "value", "proj"), (width, width))}
    shapes: dict[str, tuple[int, ...]] = {}
    for block in blocks:
        for name, shape in matrices.items():
            shapes |= {f"{block}.{name}.weight": shape, f"{block}.{name}.bias": shape[:1]}
    return shapes


def new_off_ramps(
    kind: RampKind, blocks: Sequence[int], d_model: int, n_labels: int, generator: torch.Generator
) -> dict[str, Tensor]:
    """Return the tensors of off-ramps to train, by name, in float32, initialized like PyTorch's linear layers."""
    shapes = _off_ramp_shapes(kind, blocks, d_model, n_labels)
    tensors = {}
    for name, shape in shapes.items():
        width = shapes[f"{name.rpartition('.')[0]}.weight"][1]
        tensors[name] = (2 * torch.rand(shape, generator=generator) - 1) / math.sqrt(width)
    return tensors
