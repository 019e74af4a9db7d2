"""Files of a checkpoint folder: the names that are read, and checks before any of them is opened.

Weights are found as transformers finds them: `model.safetensors`, else the files in `model.safetensors.index.json`. A
folder may come from a third party, so its JSON files are untrusted: a weight file must be a plain name in this folder.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exitbench.errors import UserError, one_line
from exitbench.harness.engine.checkpoints.gguf_origin import read_origin
from exitbench.harness.reading.regular_files import is_file, read_json

CONFIG = "config.json"
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
EXIT_HEADS_FILE = "exit_heads.safetensors"
OFF_RAMPS_FILE = "off_ramps.safetensors"
TRAINED_BESIDE = (EXIT_HEADS_FILE, OFF_RAMPS_FILE)
"""Heads trained for a checkpoint's blocks: of a generating model, and of a classifier."""

_INDEX_BYTES = 2**27
_ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors", "adapter_model.bin")
_QUANTISED_KEYS = ("quantization_config", "compression_config")
_NAMED = 5
"""Number of names listed in a message before "and n more"."""

DEQUANTISE = (
    "Only weights in float32, float16, bfloat16 or float64 are read: dequantise with transformers and save them, e.g. "
    "`model.dequantize().save_pretrained(folder)`, or take the checkpoint that was quantised."
)


@dataclass(frozen=True)
class WeightFiles:
    """Weight files of a checkpoint.

    Attributes:
        paths: The files, sorted by name.
        index: File of each tensor according to `model.safetensors.index.json`; None if all are in `model.safetensors`.
    """

    paths: tuple[Path, ...]
    index: Mapping[str, str] | None


def not_a_checkpoint(path: Path) -> str:
    """Return the error message for a path without config.json, with instructions if it is or contains a GGUF file."""
    return f"{path}: not a Hugging Face checkpoint folder (no config.json).{gguf_note(path)}"


def gguf_note(path: Path) -> str:
    """Return a sentence on converting a path's GGUF file to safetensors, with a leading space; "" if it has none."""
    file = path if path.suffix == ".gguf" else next(iter(sorted(path.glob("*.gguf"))), None)
    if file is None:
        return ""
    return (
        f" {file.name} is GGUF: a file of mostly quantized weights for another program. Take the safetensors "
        "checkpoint that it was made of, which its page on the hub names, or convert it: "
        f"`{shlex.join(('exitbench', 'convert', str(file), f'{file.stem}-safetensors'))}`."
    )


def check_plain(folder: Path, config: Mapping[str, Any]) -> None:
    """Check that a checkpoint folder holds a complete model in full precision: no quantised weights, no adapter.

    Raises:
        UserError: The model is quantised, the folder has an adapter, or config.json refers to weights elsewhere.
    """
    path = folder / CONFIG
    for key in _QUANTISED_KEYS:
        if config.get(key) not in (None, {}):
            quant_method = config[key].get("quant_method") if isinstance(config[key], dict) else None
            how = f" ({quant_method!r})" if isinstance(quant_method, str) else ""
            raise UserError(f"{path}: {key}{how}: quantised weights are not supported. {DEQUANTISE}")
    for key, what in (("transformers_weights", "another file of weights"), ("per_layer_config", "blocks that differ")):
        if config.get(key) is not None:
            raise UserError(f"{path}: {key} ({what}) is not supported; allowed: null.")
    for name in _ADAPTER_FILES:
        if (folder / name).is_symlink() or (folder / name).exists():
            raise UserError(
                f"{folder / name}: an adapter next to the weights; transformers applies it, ExitBench would not. Merge "
                "it, `PeftModel.from_pretrained(model, folder).merge_and_unload().save_pretrained(other)`, or move it "
                "out of the folder."
            )


def weight_files(folder: Path) -> WeightFiles:
    """Return the files of the model's own weights, as transformers finds them; trained exit heads are not among them.

    Raises:
        UserError: There are none, a shard is missing, or the index names anything but files of the folder.
    """
    if is_file(folder / SINGLE):
        return WeightFiles((folder / SINGLE,), None)
    index = folder / INDEX
    if is_file(index):
        places = read_index(index)
        paths = tuple(folder / name for name in sorted(set(places.values())))
        for path in paths:
            if not is_file(path):
                raise UserError(f"{path}: this part of the weights is missing; {INDEX} names it.")
        return WeightFiles(paths, places)
    names = sorted(path.name for path in folder.iterdir() if path.suffix in (".safetensors", ".bin", ".pt", ".pth"))
    raise UserError(
        f"{folder}: no {SINGLE} and no {INDEX} (found {join_names(names) or 'no weight files'}). Only safetensors "
        "weights of these names are read, never pickles; convert with "
        f"`model.save_pretrained(folder)`.{gguf_note(folder)}"
    )


def read_index(path: Path) -> dict[str, str]:
    """Return the file name of each tensor, by tensor name, from a `model.safetensors.index.json`.

    Raises:
        UserError: The file is not such an index, or names anything but files in its own folder.
    """
    places = read_json(path, _INDEX_BYTES).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise UserError(f"{path}: weight_map is missing; allowed: an object of tensors and the names of their files.")
    for tensor, name in places.items():
        if not isinstance(name, str) or not re.fullmatch(r"[^/\\\0]+\.safetensors", name):
            raise UserError(
                f"{path}: weight_map says {name!r} for {tensor!r}; allowed: the name of a *.safetensors file in the "
                "same folder."
            )
    return places


def checkpoint_remarks(folder: Path) -> tuple[str, ...]:
    """Return remarks (not errors) about a checkpoint, one sentence each: its GGUF origin, and weight files not read.

    Raises:
        UserError: The model's own weight files, or the record of a conversion, are not usable.
    """
    origin = read_origin(folder)
    converted = () if origin is None else (origin.remark,)
    files = weight_files(folder)
    read = {path.name for path in files.paths} | set(TRAINED_BESIDE)
    if files.index is None:
        candidates = [*folder.glob("*.safetensors"), *folder.glob(INDEX)]
    else:
        candidates = list(folder.glob("*.safetensors"))
    strays = sorted({path.name for path in candidates} - read)
    if not strays:
        return converted
    weights_name = SINGLE if files.index is None else INDEX
    return (
        *converted,
        f"not read: {join_names(strays)} (the weights are those of {weights_name})",
    )


def join_names(names: list[str]) -> str:
    """Return names joined by commas for a message; after the first five, only the number of the others."""
    n_more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {n_more} more" if n_more > 0 else "")


def transformers_config(path: Path, family: str, values: dict[str, Any]) -> Any:
    """Return transformers' configuration object of a model family with these values; ``path`` is for messages.

    Raises:
        UserError: transformers rejects the values.
    """
    from transformers import AutoConfig
    from transformers.utils import logging

    logging.set_verbosity_error()  # its advice is for authors of a configuration
    try:
        return AutoConfig.for_model(family, **values)
    except Exception as error:  # whatever these checks raise
        raise UserError(f"{path}: not a configuration that transformers takes ({one_line(error)}).") from error
