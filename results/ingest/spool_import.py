"""Import another spool: attempts and records copied file by file, checked as copies, then put in place.

Of the source only regular files in real folders are read, only those that a seal or a record's kind lists, and no more
than a file of its kind can have. What is checked is the copy, so that nothing can be changed between check and use.
"""

import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from exitbench.errors import UserError, no_room
from exitbench.results.beside.rescores import RESCORES, check_rescore
from exitbench.results.beside.tags import TAGS, check_tags
from exitbench.results.beside.trainings import read_training
from exitbench.results.beside.vocabularies import FILE as VOCABULARY_FILE
from exitbench.results.beside.vocabularies import read_vocabulary
from exitbench.results.files.atomic_folder import (
    JSON_BYTES,
    SEAL,
    DamagedFile,
    SpoolError,
    read_digests,
    read_json,
    sha256,
    unique_name,
)
from exitbench.results.files.bounded import check_table
from exitbench.results.files.canonical import content_id
from exitbench.results.files.regular import Folder, NotRegular, TooLarge, opened
from exitbench.results.ingest.imports import benchmark_rows
from exitbench.results.ingest.snapshot import MANIFEST, Manifest
from exitbench.results.spool.attempts import (
    ATTEMPT_FILES,
    LOG_FILE,
    Attempt,
    attempt_path,
    freed_tables,
    links_in,
    read_attempt,
    scan_spool,
)
from exitbench.results.spool.records import (
    BENCHMARK,
    IMPORT,
    RECORD_KINDS,
    RESCORE,
    TAG,
    TRAINING,
    VOCABULARY,
    RecordKind,
    linked,
    records,
)
from exitbench.results.spool.schema import CARD_FILE, TABLES, TRAINING_LOG_FILE
from exitbench.terminal import number_of

_TABLE_FILE: Final = re.compile(r"[a-z][a-z_]*\.parquet")
_LOG_BYTES: Final = 1 << 28
"""Of log.txt; a worker that prints a line a token leaves some MB."""
_TABLE_BYTES: Final = 1 << 36
"""Of a Parquet or safetensors file; the largest, probes of thousands of documents, have a few GB."""


@dataclass(frozen=True)
class Imported:
    """What a spool brought: attempts that are new, those that were here, rescores of those, and what was left out."""

    added: int
    known: int
    rescored: int
    problems: tuple[str, ...]


def has_records(source: Path) -> bool:
    """Return whether a folder holds something that only a spool has beside its attempts."""
    return any(records(source, kind)[0] for kind in RECORD_KINDS)


def import_spool(source: Path, spool_root: Path, ours: Mapping[str, str]) -> Imported:
    """Bring what is new of a spool into another one.

    Args:
        source: The spool to import.
        spool_root: The spool it goes to.
        ours: Digest of DONE of every attempt that is known, by id.

    Raises:
        UserError: An attempt is known with other files: then nothing is imported; or the spool cannot be written.
    """
    problems = [linked(link) for link in links_in(source)]
    attempts = list(_finished(source, problems))
    require_equal(source, {one.attempt_id: digest for one, digest in attempts}, ours)
    added = known = 0
    for attempt, _digest in attempts:
        target = attempt_path(spool_root, attempt.cell_id, attempt.attempt_id)
        if (target / SEAL).is_file():
            known += 1
            continue
        try:
            _import_attempt(source, attempt, target, spool_root)
        except SpoolError as error:
            problems.append(str(error))
        else:
            added += attempt.attempt_id not in ours
            known += attempt.attempt_id in ours
    rescored = 0
    for kind in RECORD_KINDS:
        paths, others = records(source, kind)
        problems += others
        for path in paths:
            target = spool_root / path.relative_to(source)
            if target.exists():
                continue
            try:
                _import_record(source, kind, path, target, spool_root)
            except SpoolError as error:
                problems.append(str(error))
            else:
                rescored += kind is RESCORE and path.parent.name in ours
    return Imported(added, known, rescored, tuple(problems))


def require_equal(source: Path, theirs: Mapping[str, str], ours: Mapping[str, str]) -> None:
    """Check that no attempt is known with other files.

    Raises:
        UserError: One is.
    """
    differ = sorted(key for key in theirs.keys() & ours.keys() if theirs[key] != ours[key])
    if differ:
        raise UserError(
            f"{source}: here already with other files: {number_of(len(differ), 'attempt')}, such as {differ[0]}. "
            "One of the two was changed; nothing is merged."
        )


def _finished(source: Path, problems: list[str]) -> Iterator[tuple[Attempt, str]]:
    """Yield every finished attempt with the digest of its DONE."""
    for attempt in scan_spool(source):
        if attempt.finished:
            try:
                read_digests(attempt.path / SEAL)
                yield attempt, sha256(attempt.path / SEAL)
            except SpoolError as error:
                problems.append(str(error))


def _import_attempt(source: Path, attempt: Attempt, target: Path, spool_root: Path) -> None:
    """Bring one attempt that is what its DONE says, whole or not at all."""
    if target.exists():
        raise SpoolError(f"{target}: the attempt is here without DONE: still running, or its process was killed.")
    if freed := freed_tables(attempt.path):
        raise SpoolError(
            f"{attempt.path}: its {', '.join(freed)} were removed by `exitbench gc`. Import a snapshot of the "
            "database that has them (`exitbench export`)."
        )
    with _staged(source, attempt.path, target, spool_root) as copy:
        with opened(source, *attempt.path.relative_to(source).parts) as folder:
            folder.copy(SEAL, copy / SEAL, JSON_BYTES)
            _copy_all(folder, read_digests(copy / SEAL), ATTEMPT_FILES, copy)
        record = read_attempt(copy)
        if content_id(record.cell["identity"]) != attempt.cell_id:
            raise DamagedFile(f"{copy / 'cell.json'}: its cell_id is not the digest of its identity.")
        for table in record.tables:
            check_table(copy / f"{table}.parquet", TABLES[table], record.cell["model"]["blocks"])


def _import_record(source: Path, kind: RecordKind, path: Path, target: Path, spool_root: Path) -> None:
    with _staged(source, path, target, spool_root) as copy:
        if kind.is_file:
            with opened(source, *path.parent.relative_to(source).parts) as folder:
                copy.rmdir()
                folder.copy(path.name, copy, JSON_BYTES)
        else:
            with opened(source, *path.relative_to(source).parts) as folder:
                _copy_all(folder, *_files(kind, folder, copy), copy)
        _CHECKS[kind.folder](copy)


def _files(kind: RecordKind, folder: Folder, copy: Path) -> tuple[Iterable[str], frozenset[str]]:
    """Return the files of a record, and those that it may have; what lists them is copied first."""
    if kind is IMPORT:
        folder.copy(MANIFEST, copy / MANIFEST, JSON_BYTES)
        tables = read_json(copy / MANIFEST).get("tables")
        listed = [f"{table}.parquet" for table in tables] if isinstance(tables, dict) else []
        return listed, frozenset(filter(_TABLE_FILE.fullmatch, listed))
    return _FILES[kind.folder], frozenset(_FILES[kind.folder])


_FILES: Final[Mapping[str, tuple[str, ...]]] = {
    TRAINING.folder: (CARD_FILE, TRAINING_LOG_FILE),
    VOCABULARY.folder: (SEAL, VOCABULARY_FILE),
    RESCORE.folder: (SEAL, *RESCORES.all_files),
    TAG.folder: (SEAL, *TAGS.all_files),
}
_CHECKS: Final[Mapping[str, Callable[[Path], object]]] = {
    TRAINING.folder: read_training,
    VOCABULARY.folder: read_vocabulary,
    RESCORE.folder: check_rescore,
    TAG.folder: check_tags,
    IMPORT.folder: Manifest.read,
    BENCHMARK.folder: benchmark_rows,
}
"""What reads a record, and raises where it is not what it should be."""


def _copy_all(folder: Folder, names: Iterable[str], allowed: frozenset[str], copy: Path) -> None:
    for name in names:
        if name not in allowed:
            raise DamagedFile(f"{folder.path}: lists {name!r}; allowed: {', '.join(sorted(allowed))}.")
        folder.copy(name, copy / name, _limit(name))


def _limit(name: str) -> int:
    if name.endswith(".json") or name == SEAL:
        return JSON_BYTES
    return _LOG_BYTES if name == LOG_FILE else _TABLE_BYTES


@contextmanager
def _staged(source: Path, path: Path, target: Path, spool_root: Path) -> Iterator[Path]:
    """Give an empty folder for a copy, with the names above it that the path has; it is put in place if all went well.

    Raises:
        SpoolError: What is copied is not what it should be, or cannot be read; names it in the source.
        UserError: This spool cannot be written.
    """
    stage = spool_root / unique_name(".importing")
    copy = stage / path.relative_to(source)
    try:
        copy.mkdir(parents=True)
        yield copy
        target.parent.mkdir(parents=True, exist_ok=True)
        copy.rename(target)
    except (NotRegular, TooLarge) as error:
        raise DamagedFile(f"{error.filename}: {error.strerror}.") from error
    except FileNotFoundError as error:
        raise DamagedFile(f"{path}: {error.filename} is missing.") from error
    except OSError as error:
        if no_room(error):
            raise UserError(f"{target}: cannot be written: {error.strerror}.") from error
        raise SpoolError(f"{path}: cannot be copied to {target}: {error.strerror or error}.") from error
    except (UserError, KeyError, TypeError, AttributeError) as error:
        raise SpoolError(str(error).replace(str(copy), str(path))) from error
    finally:
        shutil.rmtree(stage, ignore_errors=True)
