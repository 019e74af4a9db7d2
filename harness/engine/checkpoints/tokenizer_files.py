"""Load a checkpoint's tokenizer with transformers' own classes only; refuse token ids that the model does not have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from exitbench.errors import UserError
from exitbench.harness.reading.config_values import shortened
from exitbench.harness.reading.regular_files import is_file, read_json

TOKENIZER_CONFIG = "tokenizer_config.json"

PATTERNS = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab*",
    "merges.txt",
    "*.model",
    "*.spm",  # of Marian, as the next
    "target_vocab.json",
    "emoji.json",
)
_MOST_BYTES = 2**28
_ADDED = ("extra_special_tokens", "additional_special_tokens", "added_tokens_decoder")
_MOST_ADDED = 20_000
"""Most added tokens; transformers compares each with all others."""


def tokenizer_files(folder: Path) -> list[Path]:
    """Return the paths of the files in a checkpoint folder that a tokenizer is built from, sorted.

    Raises:
        UserError: There are no such files, or one is too large or not a regular file.
    """
    paths = sorted({path for pattern in PATTERNS for path in folder.glob(pattern)})
    files = [path for path in paths if not path.is_dir() and is_file(path)]
    if not files:
        # transformers would build an empty tokenizer, and all prompts would be the same.
        raise UserError(f"{folder}: no tokenizer files ({', '.join(PATTERNS)}).")
    for path in files:
        if (size := path.stat().st_size) > _MOST_BYTES:
            raise UserError(f"{path}: {size:,} bytes; allowed: at most {_MOST_BYTES:,}.")
    return files


def load_tokenizer(folder: Path) -> Any:
    """Load the tokenizer of a checkpoint folder; code in the folder is never run.

    Raises:
        UserError: transformers cannot read the tokenizer, or its configuration names files outside the folder.
    """
    from transformers import AutoTokenizer
    from transformers.utils import logging

    tokenizer_files(folder)
    for name in (TOKENIZER_CONFIG, "special_tokens_map.json"):
        _check_config(folder / name)
    logging.set_verbosity_error()
    try:
        return AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # any error of transformers or Python; a panic of tokenizers is no Exception
        if "auto_map" in read_json(folder / TOKENIZER_CONFIG):
            raise UserError(
                f"{folder / TOKENIZER_CONFIG}: auto_map: the tokenizer is a program of its own, which is never run; "
                "allowed: tokenizers that transformers has a class for."
            ) from error
        cause = shortened(" ".join(f"{type(error).__name__}: {error}".split()), 300)
        raise UserError(f"{folder}: transformers cannot read the tokenizer ({cause}).") from error


def _check_config(path: Path) -> None:
    """Check that a tokenizer's configuration names no files outside its folder, and not too many added tokens."""
    config = read_json(path)
    names = config.get("fast_tokenizer_files")
    plain = isinstance(names, list) and all(isinstance(name, str) and not set(name) & set("/\\") for name in names)
    if names is not None and not plain:
        raise UserError(f"{path}: fast_tokenizer_files is {shortened(names)}; allowed: names in the same folder.")
    for key in _ADDED:
        if isinstance(config.get(key), list | dict) and (count := len(config[key])) > _MOST_ADDED:
            raise UserError(f"{path}: {key} has {count:,} tokens; allowed: at most {_MOST_ADDED:,}.")
    for key in ("gguf_file", "init_inputs"):
        if config.get(key):
            raise UserError(f"{path}: {key} is {shortened(config[key])}; allowed: nothing.")


def check_vocabulary(folder: Path, tokenizer: Any, vocab_size: int) -> None:
    """Check that the model's embedding has a row for every token of the tokenizer.

    Raises:
        UserError: A token id has no row: the tokenizer is perhaps another model's.
    """
    token, largest = max(tokenizer.get_vocab().items(), key=lambda item: item[1], default=("", -1))
    if largest >= vocab_size:
        raise UserError(
            f"{folder}: the tokenizer has ids up to {largest} ({shortened(token, 40)}), but the model has {vocab_size} "
            f"rows (vocab_size); allowed: ids of 0 to {vocab_size - 1}. Is it another model's tokenizer, or were "
            "tokens added and the embedding not resized?"
        )
