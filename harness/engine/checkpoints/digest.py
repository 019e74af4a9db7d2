"""Content digests of a checkpoint's folder: SHA-256 of weights, configuration and tokenizer, and its size.

Hashing gigabytes takes longer than planning a suite, so the description is kept beside the weights, with
the size and time of every file it was made from.
"""

import contextlib
import hashlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exitbench.errors import UserError
from exitbench.harness.cells.cell import EngineChoice, EngineName, ModelRef
from exitbench.harness.engine.checkpoints.files import CONFIG, TRAINED_BESIDE, checkpoint_remarks, weight_files
from exitbench.harness.engine.checkpoints.tokenizer_files import check_vocabulary, load_tokenizer, tokenizer_files
from exitbench.harness.reading.regular_files import read_json
from exitbench.results.files.formats import content_id

if TYPE_CHECKING:
    from exitbench.harness.engine.checkpoints.loading import Checkpoint

CACHE = ".exitbench.json"
HOSTED_CACHE = ".exitbench.hosted.json"
"""Where the hosted engine is asked for, which may have it otherwise than the one that is taken unasked."""
CACHE_VERSION = 6
"""Raise it whenever a description has something new to say, or refuses what it did not."""


@dataclass(frozen=True)
class Description:
    """A checkpoint as a plan needs to know it.

    Attributes:
        model: What identifies it.
        vocab_size: Rows of the LM head, or of the classifier.
        max_positions: Tokens that prompt and answer may have together; None where positions have no end.
        remarks: What is not wrong but should be known, a sentence each.
        engine: What runs it.
        labels: What a classifier calls its labels; None of a model that generates.
    """

    model: ModelRef
    vocab_size: int
    max_positions: int | None
    remarks: tuple[str, ...]
    engine: EngineName
    labels: tuple[str, ...] | None = None


def describe_checkpoint(name: str, folder: Path) -> ModelRef:
    """Return what identifies the checkpoint in a folder; see `inspect_checkpoint`."""
    return inspect_checkpoint(name, folder).model


def files_sha256(folder: Path) -> str:
    """Return the digest of a checkpoint's weights, configuration and tokenizer, whether or not it can be run as it is.

    Raises:
        UserError: It has no such files.
    """
    paths = [*weight_files(folder).paths, folder / CONFIG, *tokenizer_files(folder)]
    return content_id({path.name: _sha256(path) for path in paths})


def inspect_checkpoint(name: str, folder: Path, engine: EngineChoice = "auto") -> Description:
    """Return what a plan needs to know of the checkpoint in a folder.

    Args:
        name: What the suite calls it.
        folder: A Hugging Face checkpoint: config.json, safetensors (one or more), tokenizer files.
        engine: What is to run it.

    Raises:
        UserError: The engine cannot read it, it has no tokenizer, or one with more tokens than the model.
    """
    # The time of the last change too, which whoever packed the folder cannot have chosen: a description that came along
    # with somebody's checkpoint is not believed.
    files = sorted(path for path in folder.glob("*") if path.is_file() and not path.name.startswith("."))
    status = {path.name: path.stat() for path in files}
    stamps = {name: [file.st_size, file.st_mtime_ns, file.st_ctime_ns] for name, file in status.items()}
    cache = folder / (HOSTED_CACHE if engine == "hosted" else CACHE)
    if (cached := _cached(cache, stamps, name)) is not None and engine in ("auto", cached.engine):
        return cached
    description = _inspect(name, folder, engine)
    content = asdict(description)
    del content["model"]["name"]
    _write(cache, json.dumps({"version": CACHE_VERSION, "files": stamps, **content}, indent=1))
    return description


def _cached(cache: Path, stamps: Mapping[str, list[int]], name: str) -> Description | None:
    """Return the stored description if it is of these very files; an unusable one is made anew."""
    try:
        record = read_json(cache)
        if record["version"] != CACHE_VERSION or record["files"] != stamps:
            return None
        model = ModelRef(name=name, **record["model"])
        remarks, labels = tuple(record["remarks"]), record["labels"] and tuple(record["labels"])
        return Description(model, record["vocab_size"], record["max_positions"], remarks, record["engine"], labels)
    except (UserError, KeyError, TypeError):
        return None


def _inspect(name: str, folder: Path, engine: EngineChoice) -> Description:
    # Imported here: it loads torch and transformers, which a cached description does not need.
    from exitbench.harness.engine.checkpoints.encoder_loading import EncoderCheckpoint, is_encoder, load_encoder
    from exitbench.harness.engine.checkpoints.loading import load_checkpoint
    from exitbench.harness.engine.checkpoints.sizes import stored_tensors

    checkpoint: Checkpoint | EncoderCheckpoint
    fallback: tuple[str, ...] = ()
    if is_encoder(folder):
        checkpoint = load_encoder(folder, device="meta")
        n_tokens, labels = checkpoint.model.n_tokens, checkpoint.model.labels
    else:
        checkpoint = load_checkpoint(folder, device="meta", engine=engine)
        n_tokens, labels = checkpoint.model.vocab_size, None
        if checkpoint.fallback is not None:
            fallback = (f"run by the hosted engine, since the lean one does not read it: {checkpoint.fallback}",)
    tokenizer = tokenizer_files(folder)
    heads = [folder / name for name in TRAINED_BESIDE if (folder / name).is_file()]
    weights = [*weight_files(folder).paths, *heads]
    check_vocabulary(folder, loaded := load_tokenizer(folder), n_tokens)
    digests = [_sha256(path) for path in weights]
    model = ModelRef(
        name=name,
        # One file's digest is its own, so that it can be checked with sha256sum.
        weights_sha256=digests[0] if len(digests) == 1 else content_id(digests),
        config_sha256=_config_sha256(folder) if labels is None else _sha256(folder / CONFIG),
        tokenizer_sha256=content_id({path.name: _sha256(path) for path in tokenizer}),
        kind=checkpoint.kind,
        blocks=checkpoint.model.n_blocks,
        encoder_blocks=checkpoint.model.encoder_blocks,
        parameters=sum(numel for _, numel in stored_tensors(weights)),
    )
    remarks = (*checkpoint_remarks(folder), *fallback, *(_no_end(checkpoint.eos_ids, loaded) if labels is None else ()))
    max_positions = checkpoint.model.max_positions
    return Description(model, checkpoint.model.vocab_size, max_positions, remarks, checkpoint.engine, labels)


def _no_end(eos_ids: frozenset[int], tokenizer: Any) -> tuple[str, ...]:
    if eos_ids:
        return ()
    eos_id = tokenizer.eos_token_id
    named = "" if eos_id is None else f"; the tokenizer's is {eos_id}, eos_token_id of config.json names none"
    return (f"no end-of-sequence token: every answer runs to its budget{named}",)


def _config_sha256(folder: Path) -> str:
    """Digest of config.json, and of what generation_config.json says otherwise where it changes what is decoded."""
    from exitbench.harness.engine.checkpoints.loading import GENERATION_KEYS, read_config, read_generation_config

    config, generation, digest = read_config(folder), read_generation_config(folder), _sha256(folder / "config.json")
    said = {key: generation[key] for key in GENERATION_KEYS if key in generation}
    otherwise = {key: value for key, value in said.items() if value != config.get(key)}
    return content_id({"config.json": digest, **otherwise}) if otherwise else digest


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write(cache: Path, text: str) -> None:
    """Keep the description where the folder can be written; a read-only checkpoint is described each time."""
    with contextlib.suppress(OSError):
        # A new file under a name that nobody can know before: a link put there is not written through.
        partial = cache.with_name(f"{CACHE}.{secrets.token_hex(4)}")
        try:
            with partial.open("x", encoding="utf-8") as file:
                file.write(text)
            partial.replace(cache)
        except OSError:
            partial.unlink(missing_ok=True)
