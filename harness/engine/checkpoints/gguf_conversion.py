"""Convert a GGUF file to a checkpoint folder, with transformers' reader and the `gguf` package (extra `gguf`).

A GGUF file may come from a third party. It is read as data: no link is followed, and no other file of its folder is
read. It is refused if transformers' reader would omit a part of it, or fill weights with random numbers.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from exitbench.errors import UserError, is_out_of_memory, no_room, one_line
from exitbench.harness.engine.checkpoints.files import join_names
from exitbench.harness.engine.checkpoints.gguf_origin import GgufOrigin
from exitbench.harness.engine.checkpoints.tokenizer_files import load_tokenizer
from exitbench.harness.reading.regular_files import read_json
from exitbench.results.files.atomic import write_folder, write_whole_file
from exitbench.results.files.regular import NotRegular, open_regular

_MAGIC = b"GGUF"
_TOKENIZER_BYTES = 2**28
_UNQUANTIZED = frozenset({"F64", "F32", "F16", "BF16"})
# Vocabularies whose digits are tokens of their own. transformers' reader does not split them off, which differs where
# spaces come before a digit.
_SINGLE_DIGITS = frozenset({"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"})
_SAMPLE = "In 2024  17 people\n\tsaid:  'naïve' façades, 漢字 and 🙂 cost $3.50!\n"


def convert_gguf(path: Path, folder: Path, dtype: Literal["float32", "bfloat16"]) -> GgufOrigin:
    """Write a checkpoint folder with the weights, configuration, tokenizer and chat template of a GGUF file.

    Args:
        path: The GGUF file.
        folder: Folder to write, completely or not at all; it must be new or empty.
        dtype: Number format of the written weights.

    Returns:
        The description of the GGUF file that is written to the folder as well.

    Raises:
        UserError: `gguf` is not installed, the file is no complete GGUF of a known architecture, or the folder has
            files or cannot be written.
    """
    try:
        import gguf
    except ImportError as error:
        raise UserError(f"Reading GGUF needs the gguf package: `pip install 'exitbench[gguf]'` ({error}).") from None
    sha256 = _digest(path)
    if folder.is_symlink() or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
        raise UserError(f"{folder}: is there already; allowed: a new or an empty folder.")
    try:
        reader = gguf.GGUFReader(path)
        architecture = str(reader.fields["general.architecture"].contents())
        splitting = reader.fields.get("tokenizer.ggml.pre")
        pre_tokenizer = None if splitting is None else str(splitting.contents())
        n_tokens = len(reader.fields["tokenizer.ggml.tokens"].data)
    except Exception as error:  # whatever the package raises on bytes that are not there
        raise UserError(f"{path}: a truncated or damaged GGUF file ({_cause(error)}).") from error
    _require_read(path, architecture, reader)
    types: Counter[str] = Counter()
    for tensor in reader.tensors:
        types[tensor.tensor_type.name] += int(tensor.n_elements)
    quantized = [name for name, _ in types.most_common() if name not in _UNQUANTIZED]
    ordered = dict(types.most_common())
    origin = GgufOrigin(path.name, sha256, (quantized or list(ordered) or ["F32"])[0], ordered, dtype)

    def fill(partial: Path) -> None:
        # A folder with nothing but this file: transformers would also read others that lie next to it.
        with TemporaryDirectory() as alone:
            (Path(alone) / "model.gguf").symlink_to(path.resolve())
            _write_model(path, Path(alone), partial, architecture, dtype, sum(types.values()))
            _write_tokenizer(path, Path(alone), partial, pre_tokenizer, n_tokens)
        origin.write(partial)

    write_folder(folder, fill)
    return origin


def _digest(path: Path) -> str:
    """Return the SHA-256 of a GGUF file.

    Raises:
        UserError: The file is missing, a link or not a GGUF file.
    """
    try:
        with open_regular(path) as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                raise UserError(f"{path}: not a GGUF file: it does not begin with {_MAGIC.decode()}.")
            file.seek(0)
            return hashlib.file_digest(file, "sha256").hexdigest()
    except NotRegular as error:
        raise UserError(f"{path}: a link, or not a regular file; allowed: the GGUF file itself.") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}).") from error


def _require_read(path: Path, architecture: str, reader: Any) -> None:
    """Check that a GGUF file has no settings that transformers' reader ignores.

    Raises:
        UserError: The file has scaled rotary positions, whose type or factor would be lost.
    """
    scaling = reader.fields.get(f"{architecture}.rope.scaling.type")
    if scaling is not None and scaling.contents() != "none" and architecture != "gpt-oss":
        raise UserError(
            f"{path}: rope.scaling.type is {str(scaling.contents())[:40]!r}, which transformers' reader of GGUF leaves "
            "out: positions would be wrong. Take the model's safetensors checkpoint."
        )


def _write_model(path: Path, alone: Path, folder: Path, architecture: str, dtype: str, numel: int) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    name = "model.gguf"
    try:
        config = AutoConfig.from_pretrained(str(alone), gguf_file=name, local_files_only=True, trust_remote_code=False)
        loader = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
        model, info = loader.from_pretrained(
            str(alone),
            gguf_file=name,
            dtype=getattr(torch, dtype),
            output_loading_info=True,
            local_files_only=True,
            trust_remote_code=False,
        )
    except Exception as error:  # whatever transformers raises on a file that it cannot read
        if is_out_of_memory(error):
            raise MemoryError from error
        raise UserError(
            f"{path}: transformers cannot read its architecture, {architecture[:40]!r} ({_cause(error)})."
        ) from error
    # transformers fills what a file lacks with random numbers, and passes over what it does not know.
    if missing := sorted(info["missing_keys"]):
        raise UserError(f"{path}: the weights of {join_names(missing)} are not in the file.")
    read = sum(parameter.numel() for parameter in model.parameters())
    if read != numel:
        raise UserError(
            f"{path}: transformers reads {read:,} of its {numel:,} weights, so the result would be another model. Take "
            "the model's safetensors checkpoint."
        )
    model.hf_quantizer = None  # else transformers refuses to save what it has dequantized
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    try:
        model.save_pretrained(str(folder))
    except Exception as error:
        raise no_room(error) or UserError(f"{folder}: cannot be written ({_cause(error)}).") from error


def _write_tokenizer(path: Path, alone: Path, folder: Path, pre_tokenizer: str | None, n_tokens: int) -> None:
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            str(alone), gguf_file="model.gguf", local_files_only=True, trust_remote_code=False
        )
        if pre_tokenizer in _SINGLE_DIGITS:
            parts = [Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]
            tokenizer.backend_tokenizer.pre_tokenizer = Sequence(parts)
        ids = tokenizer(_SAMPLE)["input_ids"]
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of tokenizers is no Exception
        raise UserError(f"{path}: transformers cannot read its tokenizer ({_cause(error)}).") from error
    tokenizer.save_pretrained(str(folder))
    # transformers adds <|endoftext|> to a vocabulary without it, as an id for which there is no embedding.
    saved = read_json(folder / "tokenizer.json", _TOKENIZER_BYTES)
    saved["added_tokens"] = [token for token in saved["added_tokens"] if token["id"] < n_tokens]
    write_whole_file(folder / "tokenizer.json", json.dumps(saved, ensure_ascii=False, indent=1))
    if load_tokenizer(folder)(_SAMPLE)["input_ids"] != ids:
        raise UserError(f"{path}: its tokenizer splits texts differently once transformers has saved it.")


def _cause(error: BaseException) -> str:
    return re.sub(r"\S*model\.gguf", "the file", f"{type(error).__name__}: {one_line(error, 200)}")
