"""Load a checkpoint of any transformers family into the hosted engine, without running code from its folder.

config.json and safetensors are read as for the lean engine (`checkpoints.files`, `checkpoints.tensor_files`).
transformers' own mappings choose the class and translate old tensor names. No code from the folder is executed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from exitbench.errors import UserError, one_line
from exitbench.harness.cells.cell import DeviceMap
from exitbench.harness.engine.checkpoints.files import CONFIG, join_names, transformers_config
from exitbench.harness.engine.checkpoints.tensor_files import Tensors, Unread, prefix_note
from exitbench.harness.engine.encoders.families import FAMILIES as ENCODERS
from exitbench.harness.engine.hosted.model import HostedTransformer
from exitbench.harness.engine.hosted.proof import as_user_errors, prove
from exitbench.harness.engine.hosted.stack import find_stack, modules_on, remove_inner_hooks
from exitbench.harness.reading.config_values import shortened

_NOT_OURS = frozenset(
    {
        *("auto_map", "attn_implementation", "experts_implementation", "fusion_config", "kernel_config"),
        *("use_kernels", "distributed_config", "dtype", "torch_dtype", "custom_generate", "architectures"),
    }
)
"""Keys of config.json that say how a model is run, not what it computes. Keys that start with _ are dropped too."""

_POSITIONS = r"(^|\.)position_ids$"
"""Buffer of earlier versions of transformers, of integers from 0 up."""

_IN_ORDER = "HF_DEACTIVATE_ASYNC_LOAD"
"""Environment variable of transformers, which has no argument for this setting."""

_COUNTS = re.compile(r".*(layer|block|depth|label|group|stage).*")
_MOST_COUNTED, _MOST = 10_000, 2**40
"""Largest number of blocks, labels and the like, for each of which transformers allocates a module or an entry; and
largest integer of any other key.
"""
_DEEPEST = 20
"""Deepest nesting of lists and objects; transformers' own configurations have 4 levels."""


def text_models(family: str) -> dict[str, str]:
    """Return the text-generating classes of a family (model_type) in transformers: their names by kind of model.

    The kinds are ``causal`` (decoder-only) and ``seq2seq`` (encoder-decoder); of several classes, the first is named.
    """
    from transformers.models.auto import modeling_auto

    mappings = {
        "seq2seq": modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
        "causal": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    }
    classes = {kind: mapping[family] for kind, mapping in mappings.items() if family in mapping}
    return {kind: names if isinstance(names, str) else names[0] for kind, names in classes.items()}


def load_hosted(
    folder: Path, raw: dict[str, Any], dtype: torch.dtype, device: str, device_map: DeviceMap | None = None
) -> tuple[HostedTransformer, Any]:
    """Load a checkpoint and check that the hosted engine computes the same as transformers' own forward pass.

    Args:
        folder: Folder of the checkpoint.
        raw: Content of its config.json.
        dtype: Number format of the weights.
        device: Torch device; on ``meta`` nothing is computed, and nothing is checked.
        device_map: Number of blocks on each device; None puts the whole model on ``device``.

    Returns:
        The model and its transformers configuration object.

    Raises:
        UserError: Configuration and tensors do not fit together, or the model cannot be run block by block.
    """
    path = folder / CONFIG
    config = read_hosted_config(path, raw)
    cls = _class_for(path, raw, config)
    attention = "sdpa" if getattr(cls, "_supports_sdpa", False) else "eager"
    tensors = Tensors(folder, None, "meta" if device == "meta" else "cpu")
    unread = {name: tensors.unread(name) for name in tensors.files if not _is_unused_buffer(name, cls, tensors)}
    places = {"": device} if device_map is None else _places(folder, raw, device_map)
    lm = load_transformers_model(folder, cls, config, unread, dtype, attention, places).eval().requires_grad_(False)
    with as_user_errors(raw["model_type"]):
        stack = find_stack(lm)
        remove_inner_hooks(stack.blocks)
        model = HostedTransformer(stack)
        if device != "meta":
            prove(model)
    return model, config


def _places(folder: Path, raw: dict[str, Any], device_map: DeviceMap) -> dict[str, str]:
    """Return the device of every module, by module name, as a device map places the blocks.

    Raises:
        UserError: The device map has more blocks than the model, or fewer.
    """
    lm = skeleton(folder, raw)
    blocks = find_stack(lm).blocks
    if (mapped := sum(count for _, count in device_map)) != len(blocks):
        raise UserError(f"{folder}: device_map has {mapped} blocks; allowed: {len(blocks)}, those of the model.")
    return modules_on(lm, blocks, device_map)


def read_hosted_config(path: Path, raw: dict[str, Any]) -> Any:
    """Return transformers' configuration object for config.json (``raw``), without keys such as ``torch_dtype``.

    All keys that say how to run the model, not what it computes, are left out.
    """
    _check_numbers(path, "", raw)
    values = _described(raw)
    del values["model_type"]
    return transformers_config(path, raw["model_type"], values)


def _described(raw: dict[str, Any]) -> dict[str, Any]:
    described = {key: value for key, value in raw.items() if key not in _NOT_OURS and not key.startswith("_")}
    return {key: _described(value) if isinstance(value, dict) else value for key, value in described.items()}


def _check_numbers(path: Path, key: str, value: Any, depth: int = 0) -> None:
    """Check that numbers and nesting of a config value are small enough for transformers to build modules from.

    ``key`` is the value's key, which decides how large numbers may be, and ``depth`` its level of nesting.

    Raises:
        UserError: A number is too large, or the value is nested too deep.
    """
    if depth > _DEEPEST:
        raise UserError(f"{path}: {key} is nested too deep; allowed: {_DEEPEST} levels.")
    most = _MOST_COUNTED if _COUNTS.fullmatch(key) else _MOST
    if isinstance(value, int) and abs(value) > most:
        raise UserError(f"{path}: {key} is {shortened(value)}; allowed: at most {most}.")
    if isinstance(value, dict):
        for name, inner in value.items():
            _check_numbers(path, name, inner, depth + 1)
    if isinstance(value, list):
        for inner in value:
            _check_numbers(path, key, inner, depth + 1)


def check_generates(path: Path, raw: dict[str, Any]) -> None:
    """Check that config.json does not name an encoder-only model (embeddings, masked language modeling).

    Raises:
        UserError: config.json names an encoder-only model, and none that generates text.
    """
    named, family = raw.get("architectures"), raw["model_type"]
    if not named or family not in ENCODERS:
        return
    generating = tuple(text_models(family).values())
    if not set(generating) & set(named if isinstance(named, list) else ()):
        raise UserError(
            f"{path}: architectures {shortened(named)}: an encoder, as of embeddings, without a head that generates "
            f"text or classifies it. Allowed: {', '.join((*generating, '...ForSequenceClassification'))}. "
            "`exitbench train` makes a classifier of an encoder (docs/training.md)."
        )


def _class_for(path: Path, raw: dict[str, Any], config: Any) -> Any:
    """Return the transformers class to load: the one named in config.json, else the family's text-generating class."""
    import transformers

    classes = text_models(raw["model_type"])
    named = raw.get("architectures")
    for name in named if isinstance(named, list) else ():
        if name in classes.values():
            return getattr(transformers, name)
    check_generates(path, raw)
    kind = "seq2seq" if config.is_encoder_decoder and "seq2seq" in classes else "causal"
    if kind not in classes:
        raise UserError(f"{path}: model_type {shortened(raw['model_type'])} has no decoder that generates text.")
    return getattr(transformers, classes[kind])


def load_transformers_model(
    folder: Path,
    cls: Any,
    config: Any,
    unread: dict[str, Unread],
    dtype: torch.dtype,
    attention: str,
    places: dict[str, str],
) -> Any:
    """Build a transformers model and load its weights tensor by tensor, so that memory holds at most one tensor twice.

    Args:
        folder: Folder of the checkpoint, for messages.
        cls: Class of the model.
        config: Configuration object of the model.
        unread: Stored tensors by name, read when they are accessed.
        dtype: Number format of the loaded weights.
        attention: Attention implementation, ``sdpa`` or ``eager``.
        places: Device of each module, by module name.

    Raises:
        UserError: Configuration and tensors do not fit together.
    """
    try:
        with _one_by_one(), without_bars():
            lm, info = cls.from_pretrained(
                None,
                config=config,
                state_dict=unread,
                dtype=dtype,
                attn_implementation=attention,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
                device_map=places,
            )
    except Exception as error:  # whatever the family's code raises for values that do not fit together
        raise UserError(
            f"{folder}: transformers cannot make {cls.__name__} of {CONFIG} and these tensors ({one_line(error)})."
        ) from error
    for name, of_file, of_model in sorted(info["mismatched_keys"]):
        raise UserError(
            f"{folder}: tensor {name!r} has shape {list(of_file)}, {CONFIG} requires {list(of_model)} ({cls.__name__})."
        )
    files = {name: tensor.tensors.files[name] for name, tensor in unread.items()}
    note = prefix_note(files, sorted(info["missing_keys"]))
    _refuse(folder, "missing from the checkpoint", info["missing_keys"], cls, note)
    _refuse(folder, f"not part of the model that {CONFIG} describes", info["unexpected_keys"], cls)
    if info["error_msgs"]:
        raise UserError(f"{folder}: {shortened(' '.join(info['error_msgs']), 300)}")
    return lm


@contextmanager
def _one_by_one() -> Iterator[None]:
    """Context manager in which transformers reads each tensor only when it assigns it, not all of them beforehand."""
    before = os.environ.get(_IN_ORDER)
    os.environ[_IN_ORDER] = "1"
    try:
        yield
    finally:
        del os.environ[_IN_ORDER]
        if before is not None:
            os.environ[_IN_ORDER] = before


@contextmanager
def without_bars() -> Iterator[None]:
    """Context manager that turns off transformers' progress bars, which would fill logs and pipes."""
    from transformers.utils import logging

    was_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            logging.enable_progress_bar()


def _is_unused_buffer(name: str, cls: Any, tensors: Tensors) -> bool:
    """Return whether a tensor holds no weights and may be skipped: position ids, or causal masks in old files."""
    patterns = (_POSITIONS, *(getattr(cls, "_keys_to_ignore_on_load_unexpected", None) or ()))
    return any(re.search(pattern, name) for pattern in patterns) and not tensors.holds_weights(name)


def _refuse(folder: Path, what: str, names: Iterable[str], cls: Any, note: str = "") -> None:
    if wrong := sorted(names):
        count = "1 tensor is" if len(wrong) == 1 else f"{len(wrong)} tensors are"
        raise UserError(
            f"{folder}: {count} {what}: {join_names(wrong)} ({cls.__name__}). The model would be another than was "
            f"trained, so it is not read.{note}"
        )


def skeleton(folder: Path, raw: dict[str, Any]) -> Any:
    """Return the transformers model that config.json describes, on the ``meta`` device: shapes without weights.

    Args:
        folder: Folder of the checkpoint; only config.json is needed.
        raw: Content of config.json.

    Raises:
        UserError: transformers has no such model, or cannot build one with these values.
    """
    path = folder / CONFIG
    if not isinstance(raw.get("model_type"), str) or not text_models(raw["model_type"]):
        raise UserError(f"{path}: model_type {shortened(raw.get('model_type'))} is not one that generates text.")
    config = read_hosted_config(path, raw)
    cls = _class_for(path, raw, config)
    try:
        with torch.device("meta"):
            return cls._from_config(config)
    except Exception as error:  # whatever the family's code raises for values that do not fit together
        raise UserError(f"{path}: transformers cannot make {cls.__name__} of it ({one_line(error)}).") from error
