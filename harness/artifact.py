"""What a checkpoint's folder holds, by content: digests of weights, configuration and tokenizer, and its size.

Hashing gigabytes takes longer than planning a suite, so the description is kept beside the weights, with
the size and time of every file it was made from.
"""

import contextlib
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from safetensors import safe_open

from exitbench.errors import UserError
from exitbench.harness.cell import ModelRef
from exitbench.results.canonical import content_id

CACHE = ".exitbench.json"
GENERATION_CONFIG = "generation_config.json"

_TOKENIZER_PATTERNS = ("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab*", "merges.txt", "*.model")


def describe_checkpoint(name: str, folder: Path) -> ModelRef:
    """Return what identifies the checkpoint in a folder.

    Args:
        name: What the suite calls it.
        folder: A Hugging Face checkpoint: config.json, safetensors (one or more), tokenizer files.

    Raises:
        UserError: The engine cannot read it, or it has no tokenizer.
    """
    tokenizer = {path for pattern in _TOKENIZER_PATTERNS for path in folder.glob(pattern)}
    if not tokenizer:
        # transformers would make an empty tokenizer, and every prompt the same.
        raise UserError(f"{folder}: no tokenizer files ({', '.join(_TOKENIZER_PATTERNS)}).")
    files = sorted({folder / "config.json", folder / GENERATION_CONFIG, *tokenizer, *folder.glob("*.safetensors")})
    stamps = {path.name: [path.stat().st_size, path.stat().st_mtime_ns] for path in files if path.is_file()}
    cache = folder / CACHE
    if (known := _cached(cache, stamps, name)) is not None:
        return known
    model = _describe(name, folder, sorted(tokenizer))
    content = {key: value for key, value in asdict(model).items() if key != "name"}
    _write(cache, json.dumps({"files": stamps, "model": content}, indent=1))
    return model


def _cached(cache: Path, stamps: Mapping[str, list[int]], name: str) -> ModelRef | None:
    """Return the stored description if it is of these very files; an unusable one is made anew."""
    try:
        known = json.loads(cache.read_text(encoding="utf-8"))
        return ModelRef(name=name, **known["model"]) if known["files"] == stamps else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _describe(name: str, folder: Path, tokenizer: list[Path]) -> ModelRef:
    # Imported here: it loads torch and transformers, which a cached description does not need.
    from exitbench.harness.checkpoint import load_checkpoint, safetensors_files
    from exitbench.harness.exit_heads import EXIT_HEADS_FILE

    heads = folder / EXIT_HEADS_FILE
    weights = [*safetensors_files(folder), *([heads] if heads.is_file() else [])]
    checkpoint = load_checkpoint(folder, device="meta")
    digests = [_sha256(path) for path in weights]
    return ModelRef(
        name=name,
        # One file's digest is its own, so that it can be checked with sha256sum.
        weights_sha256=digests[0] if len(digests) == 1 else content_id(digests),
        config_sha256=_config_sha256(folder),
        tokenizer_sha256=content_id({path.name: _sha256(path) for path in tokenizer if path.is_file()}),
        kind=checkpoint.kind,
        blocks=checkpoint.model.n_blocks,
        encoder_blocks=checkpoint.model.arch.encoder_blocks,
        parameters=sum(_parameters(path) for path in weights),
    )


def _config_sha256(folder: Path) -> str:
    """Digest of config.json, and of what generation_config.json says otherwise where it changes what is decoded."""
    from exitbench.harness.checkpoint import GENERATION_KEYS, read_config, read_generation_config

    config, generation, digest = read_config(folder), read_generation_config(folder), _sha256(folder / "config.json")
    said = {key: generation[key] for key in GENERATION_KEYS if key in generation}
    otherwise = {key: value for key, value in said.items() if value != config.get(key)}
    return content_id({"config.json": digest, **otherwise}) if otherwise else digest


def _parameters(path: Path) -> int:
    with safe_open(path, framework="np") as tensors:
        return sum(math.prod(tensors.get_slice(key).get_shape()) for key in tensors.keys())  # noqa: SIM118


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write(cache: Path, text: str) -> None:
    """Keep the description where the folder can be written; a read-only checkpoint is described each time."""
    partial = cache.with_suffix(".partial")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(cache)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
