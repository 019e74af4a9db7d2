"""Cached digests of a task's documents and prompts: making the built-in data takes longer than planning.

Kept only where nothing but sources and files decides what the documents are, with a digest of the former and size and
time of the latter; what comes from a hub is read every time.
"""

import contextlib
import functools
import hashlib
import json
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import exitbench.tasks
from exitbench.harness.cells.job import DataRequest
from exitbench.results.files.formats import content_id, sources_sha256
from exitbench.tasks.base import ModelKind, documents_sha256, self_score_remarks
from exitbench.tasks.registry import brought_by

CACHE = ".exitbench-documents.json"

_unkept: dict[Path, dict[str, Any]] = {}
"""What this process described for folders that were not there."""


@dataclass(frozen=True)
class Corpus:
    """Documents by content: how many, and digests of their fields and of the prompts made of them.

    Attributes:
        prompts_sha256: By the kind of model that reads them.
        prompts: First 16 hexadecimal digits of the SHA-256 of what each one asks (`Task.likeness`), in their order.
        remarks: Metrics under which references are not best (`self_score_remarks`), a sentence each.
    """

    documents: int
    data_sha256: str
    prompts_sha256: Mapping[ModelKind, str]
    prompts: tuple[str, ...]
    remarks: tuple[str, ...]


class Corpora:
    """Descriptions of documents, kept in one file of a folder that exists; one that is unusable is made anew."""

    def __init__(self, folder: Path) -> None:
        self._cache = folder / CACHE
        self._known: dict[str, Any] = _unkept.get(self._cache) or _read(self._cache)

    def describe(self, data: DataRequest, data_dir: Path | None) -> Corpus:
        """Return what identifies the documents.

        Raises:
            UserError: They cannot be read.
        """
        key = _key(data, data_dir)
        if key is not None and (known := self._known.get(key)) is not None:
            return Corpus(**{**known, "prompts": tuple(known["prompts"]), "remarks": tuple(known["remarks"])})
        if data.settings is not None:
            return _of_lm_eval(data, data_dir)
        corpus = _described(data, data_dir)
        if key is not None:
            self._known[key] = asdict(corpus)
            if not _write(self._cache, self._known):
                _unkept[self._cache] = self._known
        return corpus


def _described(data: DataRequest, data_dir: Path | None) -> Corpus:
    task, documents = data.task_object, data.load(data_dir)
    prompts = tuple(hashlib.sha256(task.likeness(one).encode()).hexdigest()[:16] for one in documents)
    digests = {kind: content_id(task.prompts(documents, kind)) for kind in get_args(ModelKind)}
    # Built-in documents are English, and the tests hold their metrics to this; third-party scores may take long.
    is_checked = data.source != "builtin" and data.settings is None and brought_by(type(task)) is None
    remarks = self_score_remarks(task, documents) if is_checked else ()
    return Corpus(len(documents), documents_sha256(documents), digests, prompts, remarks)


@functools.cache
def _of_lm_eval(data: DataRequest, data_dir: Path | None) -> Corpus:
    """Described once a process, which reads the data of lm-eval's tasks once too."""
    return _described(data, data_dir)


def keep(folder: Path) -> None:
    """Keep what was described before the folder was made: a first run makes its own after its plan."""
    if known := _unkept.pop(folder / CACHE, None):
        _write(folder / CACHE, known)


def _key(data: DataRequest, data_dir: Path | None) -> str | None:
    """What the documents follow from; None where that is not known, or a file is missing."""
    if data.source == "hub" or data.settings is not None:  # YAML of lm-eval may name any file
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
    """Every file that decides what the documents are."""
    return [*data.files, *(file for other in data.apart_from for file in _files(other))]


def _stamp(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _read(cache: Path) -> dict[str, Any]:
    try:
        known = json.loads(cache.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    expected = set(Corpus.__dataclass_fields__)
    usable = isinstance(known, dict) and all(isinstance(one, dict) and set(one) == expected for one in known.values())
    return known if usable else {}


def _write(cache: Path, known: Mapping[str, Any]) -> bool:
    """Keep the descriptions; False where the folder is not there or cannot be written."""
    partial = cache.with_name(f"{cache.name}.{os.getpid()}")
    try:
        partial.write_text(json.dumps(known, indent=1), encoding="utf-8")
        partial.replace(cache)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        return False
    return True
