"""Cached digests of a task's documents and prompts: generating the built-in data takes longer than planning.

Documents are cached only if source code and files alone determine them. The cache key contains a digest of the code,
and size and time of the files. Data from a hub are read every time.
"""

import functools
import hashlib
import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, get_args

import exitbench.tasks
from exitbench.harness.cells.job import DataRequest
from exitbench.results.files.atomic import write_whole_file
from exitbench.results.files.formats import content_id, sources_sha256
from exitbench.tasks.base import ModelKind, documents_sha256, self_score_remarks
from exitbench.tasks.registry import task_origin

CACHE = ".exitbench-documents.json"

_pending: dict[Path, dict[str, Any]] = {}
"""Descriptions computed by this process for folders that do not exist yet, so that they cannot be cached on disk."""


@dataclass(frozen=True)
class Corpus:
    """Description of a set of documents: their number, and digests of their fields and prompts.

    Attributes:
        data_sha256: Digest of the fields of all documents.
        prompts_sha256: Digest of all prompts, by kind of model.
        prompts: For each document in order, the first 16 hexadecimal digits of the SHA-256 of its question
            (`Task.likeness`).
        remarks: Sentences about metrics that give a document's own reference less than the best score.
        prompt_characters: Mean length of a prompt, in characters.
        answer_characters: Mean length of a document's first reference, in characters.
    """

    documents: int
    data_sha256: str
    prompts_sha256: Mapping[ModelKind, str]
    prompts: tuple[str, ...]
    remarks: tuple[str, ...]
    prompt_characters: float
    answer_characters: float


class Corpora:
    """Cache of `Corpus` descriptions, in one file of a folder. An unreadable cache file is replaced."""

    def __init__(self, folder: Path) -> None:
        self._cache = folder / CACHE
        self._known: dict[str, Any] = _pending.get(self._cache) or _read(self._cache)

    def describe(self, data: DataRequest, data_dir: Path | None) -> Corpus:
        """Return the `Corpus` (description) of the requested documents, from the cache if it is there.

        Raises:
            UserError: The documents cannot be read.
        """
        key = _key(data, data_dir)
        if key is not None and (cached := self._known.get(key)) is not None:
            return Corpus(**{**cached, "prompts": tuple(cached["prompts"]), "remarks": tuple(cached["remarks"])})
        if data.settings is not None:
            return _of_lm_eval(data, data_dir)
        corpus = _described(data, data_dir)
        if key is not None:
            self._known[key] = asdict(corpus)
            if not _write(self._cache, self._known):
                _pending[self._cache] = self._known
        return corpus


def _described(data: DataRequest, data_dir: Path | None) -> Corpus:
    task, documents = data.task_object, data.load(data_dir)
    prompts = tuple(hashlib.sha256(task.likeness(document).encode()).hexdigest()[:16] for document in documents)
    digests = {kind: content_id(task.prompts(documents, kind)) for kind in get_args(ModelKind)}
    # Built-in documents are English, and tests check their metrics; third-party scores may take long.
    is_checked = data.source != "builtin" and data.settings is None and task_origin(type(task)) is None
    remarks = self_score_remarks(task, documents) if is_checked else ()
    return Corpus(
        len(documents),
        documents_sha256(documents),
        digests,
        prompts,
        remarks,
        prompt_characters=fmean(len(task.prompt_for(document, "seq2seq")) for document in documents),
        answer_characters=fmean(len(task.target(document)) for document in documents),
    )


@functools.cache
def _of_lm_eval(data: DataRequest, data_dir: Path | None) -> Corpus:
    """Return the `Corpus` of an lm-eval task; cached in memory, so that each process reads its documents once."""
    return _described(data, data_dir)


def write_pending(folder: Path) -> None:
    """Write `Corpus` objects to the cache file in `folder` if their first write failed, for lack of the folder."""
    if descriptions := _pending.pop(folder / CACHE, None):
        _write(folder / CACHE, descriptions)


def _key(data: DataRequest, data_dir: Path | None) -> str | None:
    """Return the cache key of a selection of documents.

    None if source code and local files do not determine the documents, or a file is missing.
    """
    if data.source == "hub" or data.settings is not None:  # an lm-eval YAML file may name any file
        return None
    try:
        files = [(role, *_stamp((data_dir or Path()) / path)) for role, path in _files(data)]
    except (OSError, ValueError):  # ValueError: NUL in a path
        return None
    made_by = {"python": platform.python_version(), "sources": sources_sha256(exitbench.tasks)}
    return content_id(
        {"data": asdict(data), "data_dir": str(data_dir and data_dir.resolve()), "files": files, **made_by}
    )


def _files(data: DataRequest) -> list[tuple[str, str]]:
    """Return (role, path) of every file that determines the documents, including the files of documents to exclude."""
    return [*data.files, *(file for other in data.apart_from for file in _files(other))]


def _stamp(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _read(cache: Path) -> dict[str, Any]:
    try:
        stored = json.loads(cache.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    expected = set(Corpus.__dataclass_fields__)
    usable = isinstance(stored, dict) and all(
        isinstance(description, dict) and set(description) == expected for description in stored.values()
    )
    return stored if usable else {}


def _write(cache: Path, descriptions: Mapping[str, Any]) -> bool:
    """Write the descriptions to the cache file; return False if the folder does not exist or cannot be written."""
    try:
        write_whole_file(cache, json.dumps(descriptions, indent=1))
    except OSError:
        return False
    return True
