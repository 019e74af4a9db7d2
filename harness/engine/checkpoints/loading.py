"""Load Hugging Face checkpoints (config.json and safetensors) into the lean or the hosted engine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from exitbench.errors import UserError
from exitbench.harness.cells.cell import DeviceMap, EngineChoice, EngineName
from exitbench.harness.cells.number_formats import check_format
from exitbench.harness.engine.checkpoints.exit_head_files import load_exit_heads
from exitbench.harness.engine.checkpoints.families import FAMILIES, Family
from exitbench.harness.engine.checkpoints.files import (
    CONFIG,
    check_plain,
    join_names,
    not_a_checkpoint,
    transformers_config,
)
from exitbench.harness.engine.checkpoints.sizes import require_room
from exitbench.harness.engine.checkpoints.tensor_files import OtherTensors, Tensors
from exitbench.harness.engine.encoders.families import FAMILIES as ENCODERS
from exitbench.harness.engine.model.engine import Engine
from exitbench.harness.engine.model.model import Transformer
from exitbench.harness.engine.products.forms import quantise
from exitbench.harness.engine.products.int8 import computes_in
from exitbench.harness.reading.config_values import check_in_vocabulary, check_token_ids, checked, shortened
from exitbench.harness.reading.regular_files import is_file, read_json
from exitbench.tasks.base import ModelKind

GENERATION_CONFIG = "generation_config.json"


@dataclass(frozen=True)
class Checkpoint:
    """A loaded model with the ids of the special tokens that start (`start_id`) and end (`eos_ids`) an answer."""

    model: Engine
    eos_ids: frozenset[int]
    start_id: int | None
    """First decoder token of encoder-decoder models; None for decoder-only ones."""
    fallback: str | None = None
    """Reason why the hosted engine runs a family of the lean one; None if it does not, or if it was requested."""

    @property
    def engine(self) -> EngineName:
        """Name of the engine that runs the model."""
        return self.model.engine

    @property
    def kind(self) -> ModelKind:
        """Kind of the model: ``seq2seq`` (encoder-decoder) or ``causal`` (decoder-only)."""
        return "causal" if self.start_id is None else "seq2seq"


TOKEN_IDS = ("eos_token_id", "decoder_start_token_id", "pad_token_id", "bos_token_id")
GENERATION_KEYS = TOKEN_IDS[:3]
"""Keys of generation_config.json that override config.json: where decoding starts and ends."""

_OTHER_USES = {"EncoderModel": "an encoder only", "Classification": "a classifier", "QuestionAnswering": "a classifier"}
"""Endings of architecture names that cannot generate text."""

_MOST_LABELS = 1_000_000
"""Most labels allowed. They are not used, but transformers creates an entry for each when reading a configuration."""


def read_config(folder: Path) -> dict[str, Any]:
    """Return the content of a checkpoint's config.json, after checking that it describes a supported generating model.

    Raises:
        UserError: The folder or file is missing, or the file is not JSON. Or the model is of a family that neither
            engine supports, does not generate text, or has quantised or incomplete weights.
    """
    path = folder / CONFIG
    if not is_file(path):
        raise UserError(not_a_checkpoint(folder))
    config = read_json(path)
    family = config.get("model_type")
    if not isinstance(family, str) or not (family in FAMILIES or family in ENCODERS or _is_hosted(family)):
        raise UserError(
            f"{path}: model_type {shortened(family)} is not supported. Allowed: {', '.join(sorted(FAMILIES))}, and "
            "every family with which the installed transformers generates text (docs/families.md). A family's "
            "weights mean what its own program does with them: another name in config.json does not make them readable."
        )
    named = config.get("architectures")
    for name in named if isinstance(named, list) else ():
        for end, what in _OTHER_USES.items():
            if isinstance(name, str) and name.endswith(end):
                raise UserError(f"{path}: {shortened(name)} is {what}; allowed: models that generate text.")
    if family in ENCODERS:
        from exitbench.harness.engine.checkpoints.hosted_loading import check_generates

        check_generates(path, config)
    check_plain(folder, config)
    if isinstance(labels := config.get("num_labels"), int) and labels > _MOST_LABELS:
        raise UserError(f"{path}: num_labels is {shortened(labels)}; allowed: at most {_MOST_LABELS}.")
    return config


def _is_hosted(family: str) -> bool:
    from exitbench.harness.engine.checkpoints.hosted_loading import text_models

    return bool(text_models(family))


def engine_for(path: Path, config: dict[str, Any], choice: EngineChoice = "auto") -> EngineName:
    """Return the engine that runs a checkpoint: for ``auto`` the lean one if it can, else the hosted one.

    The lean engine can if it supports family and options in ``config``, the content of config.json at ``path``.

    Raises:
        UserError: The lean engine is requested and does not support family or options.
    """
    if choice == "hosted":
        return choice
    family = FAMILIES.get(config["model_type"])
    reason = _unknown(config["model_type"]) if family is None else _lacking(path, config, family)
    if reason is None:
        return "lean"
    if choice == "lean":
        raise UserError(f'{path}: {reason}; "hosted" or "auto" runs others.')
    return "hosted"


def _unknown(family: str) -> str:
    supported = ", ".join(sorted(FAMILIES))
    return f'the lean engine does not know model_type {shortened(family)}. Allowed with engine = "lean": {supported}'


def _lacking(path: Path, raw: dict[str, Any], family: Family) -> str | None:
    try:
        return family.why_not(transformers_config(path, raw["model_type"], checked(path, raw, family.values)))
    except UserError:  # loading reports what is wrong, once it knows the number of blocks from the tensors
        return None


def kv_width(folder: Path) -> int:
    """Return the width of one block's keys (key/value heads times head size) from config.json; 0 if not stated there.

    Raises:
        UserError: The configuration cannot be read.
    """
    from exitbench.harness.engine.hosted.stack import head_shape

    config = _text_config(folder)
    _, groups, size = head_shape(config, getattr(config, "hidden_size", None) or 0)
    return groups * size


def head_numel(folder: Path) -> int:
    """Return the number of weights of the LM head (vocabulary times hidden size) from config.json; 0 if not stated.

    Raises:
        UserError: The configuration cannot be read.
    """
    config = _text_config(folder)
    return (getattr(config, "vocab_size", None) or 0) * (getattr(config, "hidden_size", None) or 0)


def _text_config(folder: Path) -> Any:
    from exitbench.harness.engine.checkpoints.hosted_loading import read_hosted_config

    return read_hosted_config(folder / CONFIG, read_config(folder)).get_text_config(decoder=True)


def read_generation_config(folder: Path) -> dict[str, Any]:
    """Return the content of a checkpoint's generation_config.json; {} if there is no such file.

    Raises:
        UserError: The file is not a JSON object.
    """
    return read_json(folder / GENERATION_CONFIG)


def load_checkpoint(
    folder: Path,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    engine: EngineChoice = "auto",
    device_map: DeviceMap | None = None,
) -> Checkpoint:
    """Load a checkpoint folder tensor by tensor: peak memory is the model's weights plus at most one block's.

    Args:
        folder: Folder of the checkpoint.
        dtype: Number format of the weights; int8 is weight-only, with bf16 for everything else (`products.int8`).
        device: Torch device.
        engine: Engine that runs the blocks; ``auto``: the lean one if it reads the checkpoint, else the hosted one.
        device_map: Number of blocks on each device, hosted engine only; None puts the whole model on ``device``.

    Raises:
        UserError: Something in the folder cannot be read or would be ignored; the message names the file and what was
            expected. Or the weights do not fit into the device's free memory.

    Examples:
        >>> checkpoint = load_checkpoint(Path("models/mine"), torch.bfloat16)
        >>> checkpoint.engine, checkpoint.kind, checkpoint.model.n_blocks
        ('lean', 'causal', 12)
    """
    raw = read_config(folder)
    require_room(folder, dtype, *([device] if device_map is None else dict(device_map)))
    if device_map is not None or engine_for(folder / CONFIG, raw, engine) == "hosted":
        return _load_hosted(folder, raw, dtype, device, device_map)
    try:
        return _load_lean(folder, raw, dtype, device)
    except OtherTensors as error:
        if engine == "lean":
            raise
        refusal = error.with_traceback(None)  # the traceback's frames hold the tensors that were read
    try:
        return replace(_load_hosted(folder, raw, dtype, device, None), fallback=str(refusal))
    except UserError:
        raise refusal from None


def _load_lean(folder: Path, raw: dict[str, Any], dtype: torch.dtype, device: str) -> Checkpoint:
    family = FAMILIES[raw["model_type"]]
    values = checked(folder / CONFIG, raw, family.values)
    tensors = Tensors(folder, computes_in(dtype), device)
    _check_depth(values, tensors, family)
    config = transformers_config(folder / CONFIG, raw["model_type"], values)
    arch, weights = family.read(config, tensors)
    tensors.check_all_read(family.harmless)
    eos_ids, start = _ends_and_start(folder, raw, config, arch.vocab_size, is_seq2seq=bool(arch.encoder_blocks))
    vocab_size = weights.lm_head.weight.shape[0]
    heads = load_exit_heads(folder, arch.n_blocks, arch.d_model, vocab_size, computes_in(dtype), device)
    model = Transformer(arch, weights, heads)
    del weights  # frees each block's weights while int8 copies are made
    if dtype == torch.int8:
        quantise(model)
    return Checkpoint(model, eos_ids, start)


def _load_hosted(
    folder: Path, raw: dict[str, Any], dtype: torch.dtype, device: str, device_map: DeviceMap | None
) -> Checkpoint:
    from exitbench.harness.engine.checkpoints.hosted_loading import load_hosted

    check_format(folder / CONFIG, str(dtype).removeprefix("torch."), "hosted")
    model, config = load_hosted(folder, raw, dtype, device, device_map)
    home = device if device_map is None else device_map[0][0]
    is_seq2seq = model.stack.encoder is not None
    of_family = {key: value for key in TOKEN_IDS if (value := getattr(config, key, None)) is not None}
    eos_ids, start = _ends_and_start(folder, {**of_family, **raw}, config, model.vocab_size, is_seq2seq=is_seq2seq)
    model.exit_heads = load_exit_heads(folder, model.n_blocks, model.d_model, model.vocab_size, dtype, home)
    return Checkpoint(model, eos_ids, start)


def _ends_and_start(
    folder: Path, raw: dict[str, Any], config: Any, vocab_size: int, *, is_seq2seq: bool
) -> tuple[frozenset[int], int | None]:
    """Return the end-of-sequence ids, and an encoder-decoder's first decoder token (None for a decoder-only model).

    generation_config.json takes precedence over config.json, whose content is ``raw``.
    """
    generation = read_generation_config(folder)
    for name, content in ((CONFIG, raw), (GENERATION_CONFIG, generation)):
        check_token_ids(folder / name, content, TOKEN_IDS, several=("eos_token_id",))
    ids = {**raw, **generation}

    def in_vocabulary(key: str, token_id: int) -> int:
        path = folder / (GENERATION_CONFIG if key in generation else CONFIG)
        return check_in_vocabulary(path, key, token_id, vocab_size)

    eos = ids.get("eos_token_id", getattr(config, "eos_token_id", None))
    ends = eos if isinstance(eos, list) else [] if eos is None else [eos]
    eos_ids = frozenset(in_vocabulary("eos_token_id", token_id) for token_id in ends)
    if not is_seq2seq:
        return eos_ids, None
    key = "decoder_start_token_id" if ids.get("decoder_start_token_id") is not None else "pad_token_id"
    start = ids.get(key, 0)
    if start is None:
        raise UserError(f"{folder / CONFIG}: decoder_start_token_id is missing: the token that an answer starts from.")
    return eos_ids, in_vocabulary(key, start)


def _check_depth(values: dict[str, Any], tensors: Tensors, family: Family) -> None:
    """Check that the numbers of blocks in config.json are those of the stored tensors.

    A number that config.json leaves out is not checked here: missing or extra tensors reveal a wrong one later.
    """
    for prefix, key in family.stacks.items():
        declared, n_blocks = values.get(key), tensors.depth(prefix)
        if declared is not None and n_blocks not in (0, declared):
            names = join_names(sorted({path.name for path in tensors.files.values()}))
            raise UserError(
                f"{tensors.config}: {key} is {declared}, but the weights ({names}) hold {n_blocks} blocks, "
                f"{prefix}.0 to {prefix}.{n_blocks - 1}."
            )
