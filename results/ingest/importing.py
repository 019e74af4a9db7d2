"""Import third-party results into the spool, from which the database is filled.

From another spool, only regular files in real folders are read, up to a maximum size. Their names must be listed in a
DONE file, or be those of a kind of record. Checks read the copy, so nothing can change between check and use.
"""

import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Literal

import duckdb
import pyarrow as pa
import sqlalchemy as sa

from exitbench.errors import UserError, no_room
from exitbench.results.database.catalogue import key_rows
from exitbench.results.database.connection import open_database
from exitbench.results.database.tables import quoted
from exitbench.results.files.arrow import driver_connection
from exitbench.results.files.atomic import (
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
from exitbench.results.files.duckdb_files import driver_error, is_duckdb_file
from exitbench.results.files.formats import content_id
from exitbench.results.files.regular import Folder, NotRegular, TooLarge, opened
from exitbench.results.ingest.ingest import ingest
from exitbench.results.ingest.manifest import MANIFEST, Manifest
from exitbench.results.ingest.snapshot import (
    SCORES,
    attempt_digests,
    benchmark_rows,
    is_snapshot,
    load_snapshot,
    require_equal_digests,
    write_snapshot,
)
from exitbench.results.side_records.derived import RESCORES, TAGS, check_rescore, check_tags
from exitbench.results.side_records.trainings import read_training
from exitbench.results.side_records.vocabularies import FILE as VOCABULARY_FILE
from exitbench.results.side_records.vocabularies import read_vocabulary
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
    link_message,
    records,
)
from exitbench.results.spool.schema import CARD_FILE, TABLES, TRAINING_LOG_FILE
from exitbench.results.tables import KEYS, tables_of_attempts

Kind = Literal["spool", "snapshot", "benchmarks"]

_DIGITS: Final = 16
_START_BYTES: Final = 12


@dataclass(frozen=True)
class MergeReport:
    """Result of an import into the spool and the database.

    Attributes:
        kind: Kind of the source.
        added: Number of new attempts (for benchmarks: files).
        existing: Number of attempts that were in the spool already.
        rescored: Number of rescores (scores under another metric version) of attempts that were in the spool already.
        problems: One message per part of the source, or of this spool, that was left out.
    """

    kind: Kind
    added: int
    existing: int
    rescored: int
    problems: tuple[str, ...]


def kind_of(source: Path) -> Kind:
    """Return the kind of a file or folder to be imported, judged by its content.

    Raises:
        UserError: The source cannot be imported, for example because it is a database.
    """
    if source.is_dir():
        if is_snapshot(source):
            return "snapshot"
        if next(scan_spool(source), None) or has_records(source):
            return "spool"
    elif source.is_file():
        if is_duckdb_file(source):
            raise UserError(
                f"{source} is a database, and databases cannot be imported. On its machine, write a snapshot with "
                f"`exitbench export FOLDER --database {source.name}`, and import that folder."
            )
        with source.open("rb") as file:
            start = file.read(_START_BYTES)
        if start.lstrip()[:1] == b"{" and read_json(source.resolve()).keys() >= {"benchmarks", "machine_info"}:
            return "benchmarks"
    what = "is nothing that can be imported" if source.exists() else "does not exist"
    hint = f" Did you mean {source / 'spool'}?" if (source / "spool").is_dir() else ""
    raise UserError(
        f"{source} {what}.{hint} Allowed: a spool folder (RUNS/spool), a snapshot (a folder that "
        "`exitbench export` wrote as Parquet), or a JSON file of pytest-benchmark."
    )


def merge(source: Path, spool_root: Path, database_path: Path) -> MergeReport:
    """Import a spool, a snapshot or a file of benchmarks into the spool, then fill the database from the spool.

    Raises:
        UserError: The source cannot be imported or is damaged, or contains an attempt that is in the spool with other
            files. Nothing is imported then.
    """
    kind = kind_of(source)
    spool_root.mkdir(parents=True, exist_ok=True)
    ingest(spool_root, database_path)
    with open_database(database_path) as database:
        with database.engine.connect() as connection:
            stored = attempt_digests(connection)
        keys = {table: key_rows(database.engine, table) for table in KEYS}
    if kind == "spool":
        report = import_spool(source, spool_root, stored)
    elif kind == "benchmarks":
        report = MergeReport(kind, _merge_benchmarks(source, spool_root), 0, 0, ())
    else:
        report = MergeReport(kind, *_merge_snapshot(source, spool_root, stored, keys), ())
    quarantined = ingest(spool_root, database_path).quarantined
    return replace(report, problems=(*report.problems, *quarantined))


def _merge_benchmarks(source: Path, spool_root: Path) -> int:
    source = source.resolve()
    benchmark_rows(source)
    target = spool_root / BENCHMARK.folder / f"{sha256(source)[:_DIGITS]}.json"
    if target.exists():
        return 0
    partial = spool_root / unique_name(".importing")
    try:
        shutil.copyfile(source, partial)
        target.parent.mkdir(parents=True, exist_ok=True)
        partial.rename(target)
    except OSError as error:
        raise UserError(f"{target}: cannot be written: {error.strerror or error}.") from error
    finally:
        partial.unlink(missing_ok=True)
    return 1


def _merge_snapshot(
    source: Path, spool_root: Path, stored: Mapping[str, str], keys: Mapping[str, pa.Table]
) -> tuple[int, int, int]:
    """Copy a snapshot to the imports in the spool, without the rows that the database already has.

    Args:
        source: Folder of the snapshot.
        spool_root: The spool.
        stored: Digest of the DONE file of every known attempt, by id. If the snapshot has the attempt, its digest must
            be equal.
        keys: Keys of the rows that the database has, by table.

    Returns:
        The numbers `added`, `existing` and `rescored`, as in `MergeReport`.
    """
    with _as_database(source, spool_root) as engine:
        with engine.connect() as connection:
            incoming = attempt_digests(connection)
        require_equal_digests(source, incoming, stored)
        _delete_known(engine, keys)
        new_scores = {tuple(key.values()) for table in SCORES for key in key_rows(engine, table).to_pylist()}
        if any(len(key_rows(engine, table)) for table in KEYS):
            folder = spool_root / IMPORT.folder
            new = folder / unique_name(".new")
            write_snapshot(engine, new)
            target = folder / sha256(new / MANIFEST)[:_DIGITS]
            if target.exists():
                shutil.rmtree(new)
            else:
                new.rename(target)
    existing = len(incoming.keys() & stored.keys())
    rescored = sum(attempt_id in stored for attempt_id, _version in new_scores)
    return len(incoming) - existing, existing, rescored


@contextmanager
def _as_database(source: Path, spool_root: Path) -> Iterator[sa.Engine]:
    """Yield an engine on a temporary, writable database with the rows of the snapshot `source`."""
    with TemporaryDirectory(dir=spool_root, prefix=".import-") as folder:
        copy = Path(folder) / "source.duckdb"
        try:
            with open_database(copy, read_only=False) as database:
                load_snapshot(database.engine, source)
                yield database.engine
        except UserError as error:
            raise UserError(str(error).replace(str(copy), str(source))) from error
        except (duckdb.Error, sa.exc.DBAPIError) as error:
            raise UserError(f"{source}: cannot be imported: {driver_error(error)}") from error


def _delete_known(engine: sa.Engine, keys: Mapping[str, pa.Table]) -> None:
    """Delete from a database the rows whose keys are in `keys` (by table), and cells without attempts."""
    with engine.begin() as connection:
        duck = driver_connection(connection)
        owners = {**dict.fromkeys(tables_of_attempts(), "attempt"), **{table: table for table in KEYS}}
        for table, key_table in owners.items():
            equal = " AND ".join(f"known_keys.{quoted(key)} = {quoted(table)}.{quoted(key)}" for key in KEYS[key_table])
            duck.register("known_keys", keys[key_table])
            duck.execute(f"DELETE FROM {quoted(table)} WHERE EXISTS (SELECT 1 FROM known_keys WHERE {equal})")
            duck.unregister("known_keys")
        duck.execute("DELETE FROM cell WHERE cell_id NOT IN (SELECT cell_id FROM attempt)")


_TABLE_FILE: Final = re.compile(r"[a-z][a-z_]*\.parquet")
_LOG_BYTES: Final = 1 << 28
"""Maximum size of log.txt; a worker that prints one line per token leaves some MB."""
_TABLE_BYTES: Final = 1 << 36
"""Maximum size of a Parquet or safetensors file; the largest, probes of thousands of documents, have a few GB."""


def has_records(source: Path) -> bool:
    """Return whether a folder has records that a spool keeps next to its attempts, such as rescores or trainings."""
    return any(records(source, kind)[0] for kind in RECORD_KINDS)


def import_spool(source: Path, spool_root: Path, stored: Mapping[str, str]) -> MergeReport:
    """Import from another spool all attempts and records that this spool lacks.

    Args:
        source: The other spool.
        spool_root: This spool.
        stored: Digest of the DONE file of every attempt in this spool's database, by id.

    Raises:
        UserError: An attempt is known with other files (then nothing is imported), or this spool cannot be written.
    """
    problems = [link_message(link) for link in links_in(source)]
    attempts = list(_finished(source, problems))
    require_equal_digests(source, {entry.attempt_id: digest for entry, digest in attempts}, stored)
    added = existing = 0
    for attempt, _digest in attempts:
        target = attempt_path(spool_root, attempt.cell_id, attempt.attempt_id)
        if (target / SEAL).is_file():
            existing += 1
            continue
        try:
            _import_attempt(source, attempt, target, spool_root)
        except SpoolError as error:
            problems.append(str(error))
        else:
            added += attempt.attempt_id not in stored
            existing += attempt.attempt_id in stored
    rescored = 0
    for kind in RECORD_KINDS:
        paths, record_problems = records(source, kind)
        problems += record_problems
        for path in paths:
            target = spool_root / path.relative_to(source)
            if target.exists():
                continue
            try:
                _import_record(source, kind, path, target, spool_root)
            except SpoolError as error:
                problems.append(str(error))
            else:
                rescored += kind is RESCORE and path.parent.name in stored
    return MergeReport("spool", added, existing, rescored, tuple(problems))


def _finished(source: Path, problems: list[str]) -> Iterator[tuple[Attempt, str]]:
    """Yield (attempt, SHA-256 of its DONE file) for every finished attempt of a spool.

    For an attempt whose DONE file is unreadable, a message is added to `problems` instead.
    """
    for attempt in scan_spool(source):
        if attempt.finished:
            try:
                read_digests(attempt.path / SEAL)
                yield attempt, sha256(attempt.path / SEAL)
            except SpoolError as error:
                problems.append(str(error))


def _import_attempt(source: Path, attempt: Attempt, target: Path, spool_root: Path) -> None:
    """Copy one attempt from the spool `source` to `target`, completely or not at all, after checking the copy.

    Raises:
        SpoolError: The attempt is invalid, does not match its DONE file, or lacks traces that `exitbench gc` removed.
            Or the target exists.
    """
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
    """Return the names of the files to copy for a record, and the names that are allowed.

    For a snapshot, the manifest, which lists its files, is first copied to `copy`.
    """
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
"""Function that reads a kind of record, and raises an error if the record is invalid."""


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
    """Yield an empty temporary folder for a copy of `path`; without an error, it is then moved to `target`.

    The temporary folder's path ends with the path of `path` relative to `source`.

    Raises:
        SpoolError: The copied files are invalid or cannot be read; the message names them in the source.
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
