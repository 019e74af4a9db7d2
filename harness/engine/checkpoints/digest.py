"""Content digests of a checkpoint folder: SHA-256 of weights, configuration and tokenizer, and its size.

Hashing gigabytes takes longer than planning a suite, so the description is cached next to the weights, with the size
and timestamps of every file it was computed from.
"""

import contextlib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exitbench.errors import UserError
from exitbench.harness.cells.cell import EngineChoice, EngineName, ModelRef
from exitbench.harness.engine.checkpoints.files import CONFIG, TRAINED_BESIDE, checkpoint_remarks, weight_files
from exitbench.harness.engine.checkpoints.gguf_origin import name_in_results, read_origin
from exitbench.harness.engine.checkpoints.tokenizer_files import check_vocabulary, load_tokenizer, tokenizer_files
from exitbench.harness.reading.regular_files import read_json
from exitbench.results.files.atomic import write_whole_file
from exitbench.results.files.formats import content_id

if TYPE_CHECKING:
    from exitbench.harness.engine.checkpoints.loading import Checkpoint

CACHE = ".exitbench.json"
HOSTED_CACHE = ".exitbench.hosted.json"
"""Cache file when the hosted engine is requested; its description may differ from that of the default engine."""
CACHE_VERSION = 6
"""Raise it whenever a description contains something new, or refuses what it did not refuse before."""


@dataclass(frozen=True)
class Description:
    """Everything that planning a suite needs to know about a checkpoint.

    Attributes:
        model: Identity of the model: name, digests, kind, numbers of blocks and parameters.
        vocab_size: Number of rows of the LM head (tokens), or of the classifier (labels).
        max_positions: Largest number of tokens of prompt and answer together; None if unlimited.
        remarks: Notes about the checkpoint (not errors), one sentence each.
        engine: Engine that runs the model.
        labels: Names of a classifier's labels; None for a model that generates.
    """

    model: ModelRef
    vocab_size: int
    max_positions: int | None
    remarks: tuple[str, ...]
    engine: EngineName
    labels: tuple[str, ...] | None = None


def describe_checkpoint(name: str, folder: Path) -> ModelRef:
    """Return only the identity of a checkpoint (name, digests, sizes); arguments as in `inspect_checkpoint`."""
    return inspect_checkpoint(name, folder).model


def files_sha256(folder: Path) -> str:
    """Return the digest of a checkpoint's weights, configuration and tokenizer, even if no engine can run it.

    Raises:
        UserError: The folder has no weights or no tokenizer files.
    """
    paths = [*weight_files(folder).paths, folder / CONFIG, *tokenizer_files(folder)]
    return content_id({path.name: _sha256(path) for path in paths})


def inspect_checkpoint(name: str, folder: Path, engine: EngineChoice = "auto") -> Description:
    """Return what a plan needs to know about a checkpoint, from the cache file in its folder if that is current.

    Args:
        name: Name of the model in the suite; the quantization of a converted GGUF file is appended.
        folder: A Hugging Face checkpoint: config.json, safetensors (one or more), tokenizer files.
        engine: Engine that the suite requests: ``auto``, ``lean`` or ``hosted``.

    Raises:
        UserError: The engine cannot read the checkpoint, or the tokenizer is missing or has more tokens than the model.
    """
    name = name_in_results(name, folder)
    # The inode change time is part of the stamp, because it cannot be set when a folder is packed: a cached description
    # that came with a third-party checkpoint is never trusted.
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
    """Return the description in a cache file; None if it is unusable or was computed from other files.

    ``stamps`` are the size and the two timestamps of each file in the folder, by name. ``name`` is the model's name,
    which the cache file does not hold.
    """
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
    origin = read_origin(folder)
    model = ModelRef(
        name=name,
        # The digest of a single file is used unchanged, so that it can be checked with sha256sum.
        weights_sha256=digests[0] if len(digests) == 1 else content_id(digests),
        config_sha256=_config_sha256(folder) if labels is None else _sha256(folder / CONFIG),
        tokenizer_sha256=content_id({path.name: _sha256(path) for path in tokenizer}),
        kind=checkpoint.kind,
        blocks=checkpoint.model.n_blocks,
        encoder_blocks=checkpoint.model.encoder_blocks,
        parameters=sum(numel for _, numel in stored_tensors(weights)),
        source=None if origin is None else origin.source,
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
    """Return the SHA-256 of config.json, combined with special token ids that generation_config.json changes."""
    from exitbench.harness.engine.checkpoints.loading import GENERATION_KEYS, read_config, read_generation_config

    config, generation, digest = read_config(folder), read_generation_config(folder), _sha256(folder / "config.json")
    settings = {key: generation[key] for key in GENERATION_KEYS if key in generation}
    otherwise = {key: value for key, value in settings.items() if value != config.get(key)}
    return content_id({"config.json": digest, **otherwise}) if otherwise else digest


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write(cache: Path, text: str) -> None:
    """Write the cache file; do nothing if the folder is read-only, so that the description is computed each time."""
    with contextlib.suppress(OSError):
        write_whole_file(cache, text)
