"""Records derived from stored attempts: rescores under another metric version, and part-of-speech tags.

    <spool>/rescores/<attempt_id>/<digest of the version>/{samples.parquet, metrics.parquet, status.json, DONE}
    <spool>/tags/<attempt_id>/<digest of the tagger>/{token_tag.parquet, status.json, DONE}

A record is complete or absent, like an attempt, and the database is filled from it. status.json has `format`,
`attempt_id` and `metric_version` or `tagger`, which made the record.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import sqlalchemy as sa

from exitbench.errors import UserError
from exitbench.results.database.catalogue import ATTEMPT
from exitbench.results.files.arrow import insert_rows
from exitbench.results.files.atomic import (
    DamagedFile,
    SpoolError,
    check_digested_folder,
    read_json,
    write_digested_folder,
    write_json,
)
from exitbench.results.files.bounded import read_table
from exitbench.results.files.duckdb_files import is_system_error
from exitbench.results.files.formats import content_id
from exitbench.results.files.values import COUNT, TEXT, TIME, first_invalid_key
from exitbench.results.spool.attempts import QUARANTINE, conform
from exitbench.results.spool.records import RESCORE, TAG, RecordKind, records
from exitbench.results.spool.schema import TABLES as FILE_TABLES
from exitbench.results.spool.schema import arrow_schema
from exitbench.results.tables import TABLES

_FORMAT: Final = 1
_DIGITS: Final = 16
_STATUS: Final = "status.json"
_KEYS: Final = {"format": COUNT, "attempt_id": TEXT, "scored_at": replace(TIME, needed=False)}


@dataclass(frozen=True)
class Derived:
    """Kind of record that is derived from a stored attempt: rescores or part-of-speech tags.

    Attributes:
        kind: Folder and file names of the records.
        producer_key: Key of status.json whose value names what made the record: `metric_version` or `tagger`.
        files: Files of a record besides status.json.
        repair_hint: Instruction for messages on how to write a damaged record again.
    """

    kind: RecordKind
    producer_key: str
    files: tuple[str, ...]
    repair_hint: str

    @property
    def folder(self) -> str:
        """Name of the spool's subfolder with these records."""
        return self.kind.folder

    @property
    def all_files(self) -> tuple[str, ...]:
        """Names of a record's files whose digests are in its DONE file."""
        return (*self.files, _STATUS)

    def record_folder(self, spool_root: Path, attempt_id: str, producer: str) -> Path:
        """Return the folder of the record that `producer`, a metric version or tagger, derived from an attempt.

        The folder's name is a digest of `producer`, which may contain characters that are invalid in a folder's name.
        """
        return spool_root / self.kind.folder / attempt_id / _digest(producer)

    def has(self, spool_root: Path, attempt_id: str, producer: str) -> bool:
        """Return whether the spool has a complete record of an attempt and `producer`, a metric version or tagger."""
        return (self.record_folder(spool_root, attempt_id, producer) / "DONE").is_file()

    def record(self, spool_root: Path, producer: str, status: Mapping[str, Any], fill: Callable[[Path], None]) -> None:
        """Write a record of an attempt into the spool, unless it exists.

        Args:
            spool_root: The spool.
            producer: Metric version or tagger that made the record.
            status: Content of status.json besides `format`; includes `attempt_id`.
            fill: Function that writes `files` into an empty folder.

        Raises:
            UserError: The spool cannot be written.
        """

        def fill_all(folder: Path) -> None:
            fill(folder)
            write_json(folder / _STATUS, {"format": _FORMAT, **status})

        write_digested_folder(self.record_folder(spool_root, status["attempt_id"], producer), fill_all)

    def load(
        self, engine: sa.Engine, spool_root: Path, known_sql: str, add: Callable[[Path, Mapping[str, Any]], None]
    ) -> list[str]:
        """Add to the database the spool's records that it lacks; return a message per record that cannot be added.

        Records of attempts that the database does not have are skipped.

        Args:
            engine: An open, writable database.
            spool_root: The spool.
            known_sql: SQL that selects (attempt id, producer) of the records that the database has.
            add: Function that adds one record, given its checked folder and the content of its status.json.
        """
        with engine.connect() as connection:
            attempts: Set[str] = set(connection.execute(sa.select(ATTEMPT.c.attempt_id)).scalars())
            stored = {(attempt_id, _digest(producer)) for attempt_id, producer in connection.exec_driver_sql(known_sql)}

        def is_new(folder: Path) -> bool:
            return folder.parent.name in attempts and (folder.parent.name, folder.name) not in stored

        return load_records(
            spool_root, self.kind, is_new, lambda folder: add(folder, self.status(folder)), self.repair_hint
        )

    def check(self, spool_root: Path) -> list[str]:
        """Check every record of this kind in the spool against its digests; return a message per invalid record."""
        return check_records(spool_root, self.kind, self.status, self.repair_hint)

    def status(self, folder: Path) -> dict[str, Any]:
        """Return the content of a record's status.json, after checking all files of the record.

        Raises:
            DamagedFile: A file is missing or was changed, or the record does not match its folder's name.
            SpoolError: A newer version wrote the record, or a file cannot be read.
        """
        check_digested_folder(folder, self.all_files)
        path = folder / _STATUS
        status = read_json(path)
        if fault := first_invalid_key(status, {"": {**_KEYS, self.producer_key: TEXT}}):
            raise DamagedFile(f"{path}: {fault}")
        if status["format"] > _FORMAT:
            raise SpoolError(f"{path}: written by a newer version (format {status['format']}; this one: {_FORMAT}).")
        if status["attempt_id"] != folder.parent.name:
            raise DamagedFile(f"{path}: is of attempt {status['attempt_id']}, not of its folder's.")
        if _digest(status[self.producer_key]) != folder.name:
            raise DamagedFile(f"{path}: its folder's name is not the digest of its {self.producer_key}.")
        return status


def _digest(producer: str) -> str:
    return content_id(producer)[:_DIGITS]


def load_records(
    spool_root: Path,
    kind: RecordKind,
    is_new: Callable[[Path], bool],
    add: Callable[[Path], None],
    repair_hint: str | None = None,
) -> list[str]:
    """Add to a database the spool's records of one kind that it lacks, each completely or not at all.

    Args:
        spool_root: The spool.
        kind: Kind of the records.
        is_new: Returns whether the database lacks the record in a folder.
        add: Function that reads the record in a folder and adds it to the database.
        repair_hint: Instruction for messages on how to write a damaged record again; damaged records are then moved
            to the quarantine. None leaves them in place.

    Returns:
        One message per record that was not added.
    """
    folders, problems = records(spool_root, kind)
    for folder in filter(is_new, folders):
        try:
            add(folder)
        except (duckdb.Error, sa.exc.StatementError) as error:
            if is_system_error(error):
                raise
            problems.append(f"{folder}: does not fit the database: {error}")
        except (UserError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
            # A record that cannot be read at the moment need not be damaged.
            is_damaged = isinstance(error, DamagedFile) or not isinstance(error, SpoolError)
            moved = f" {_move_aside(spool_root, kind, folder)}; {repair_hint}." if repair_hint and is_damaged else ""
            problems.append(f"{folder}: {error}{moved}")
    return problems


def check_records(
    spool_root: Path, kind: RecordKind, read: Callable[[Path], object], repair_hint: str | None = None
) -> list[str]:
    """Read every record of one kind in the spool; return a message per record that is invalid.

    Args:
        spool_root: The spool.
        kind: Kind of the records.
        read: Function that reads and checks the record in a folder.
        repair_hint: Instruction for messages on how to write a damaged record again; None if there is none.
    """
    folders, problems = records(spool_root, kind)
    for folder in folders:
        try:
            read(folder)
        except UserError as error:
            moves = repair_hint is not None and isinstance(error, DamagedFile)
            then = f" The next ingest moves it to the quarantine; {repair_hint}." if moves else ""
            problems.append(f"{folder}: {error}{then}")
    return problems


def _move_aside(spool_root: Path, kind: RecordKind, folder: Path) -> str:
    """Move a damaged record to the spool's quarantine, so that it can be written again; return a message."""
    aside = spool_root / QUARANTINE / kind.folder / "-".join(folder.relative_to(spool_root / kind.folder).parts)
    aside.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(aside, ignore_errors=True)
    return f"Moved to {folder.rename(aside)}"


RESCORES: Final = Derived(RESCORE, "metric_version", ("samples.parquet", "metrics.parquet"), "rescore again")
_SAMPLES: Final = arrow_schema(TABLES["sample_rescore"])
_STORED_RESCORES: Final = "SELECT DISTINCT attempt_id, metric_version FROM sample_rescore"


@dataclass(frozen=True)
class Rescore:
    """Scores of one attempt's outputs under one metric version.

    Attributes:
        samples: One row per document with doc_key, scores and statistics, as in an attempt's samples.parquet.
        metrics: One row per metric, as in an attempt's metrics.parquet; the task's headline metric is first.
    """

    attempt_id: str
    metric_version: str
    samples: pa.Table
    metrics: pa.Table


def is_rescored(spool_root: Path, attempt_id: str, metric_version: str) -> bool:
    """Return whether the spool has a rescore of an attempt under a metric version."""
    return RESCORES.has(spool_root, attempt_id, metric_version)


def record_rescore(spool_root: Path, rescore: Rescore) -> None:
    """Write a rescore into the spool, unless it has one of this attempt and metric version.

    Raises:
        UserError: The spool cannot be written, or a column is invalid.
    """
    metrics = conform("metrics", rescore.metrics, location="metrics.parquet")
    samples = rescore.samples.select(_SAMPLES.names).cast(_SAMPLES)
    status = {
        "attempt_id": rescore.attempt_id,
        "metric_version": rescore.metric_version,
        "scored_at": datetime.now(UTC).isoformat(timespec="microseconds"),
    }

    def fill(folder: Path) -> None:
        pq.write_table(samples, folder / "samples.parquet", compression="zstd")
        pq.write_table(metrics, folder / "metrics.parquet", compression="zstd")

    RESCORES.record(spool_root, rescore.metric_version, status, fill)


def load_rescores(engine: sa.Engine, spool_root: Path) -> list[str]:
    """Add to the database the spool's rescores that it lacks; return a message per rescore that cannot be added.

    Rescores of attempts that the database does not have are skipped.
    """

    def add(folder: Path, status: Mapping[str, Any]) -> None:
        rescore, scored_at = _read_rescore(folder, status)
        _insert_rescore(engine, rescore, scored_at)

    return RESCORES.load(engine, spool_root, _STORED_RESCORES, add)


def check_rescore(folder: Path) -> None:
    """Check the rescore in a folder: digests, status.json, and the columns of its tables.

    Raises:
        UserError: The rescore is invalid.
    """
    _read_rescore(folder, RESCORES.status(folder))


def _read_rescore(folder: Path, status: Mapping[str, Any]) -> tuple[Rescore, datetime]:
    """Return the rescore in a folder, and the time (UTC) of scoring; `status` is the content of its status.json."""
    scored_at = datetime.fromisoformat(status["scored_at"]).astimezone(UTC).replace(tzinfo=None)
    samples = read_table(folder / "samples.parquet", _SAMPLES)
    path = folder / "metrics.parquet"
    metrics = conform("metrics", read_table(path, FILE_TABLES["metrics"]), location=str(path))
    return Rescore(status["attempt_id"], status["metric_version"], samples, metrics), scored_at


def _insert_rescore(engine: sa.Engine, rescore: Rescore, scored_at: datetime) -> None:
    n = len(rescore.samples)
    samples = _with(rescore.samples, "metric_version", [rescore.metric_version] * n, pa.string())
    metrics = _with(rescore.metrics, "ordinal", range(len(rescore.metrics)), pa.int32())
    with engine.begin() as connection:
        for table, rows in (("sample_rescore", samples), ("metric", metrics)):
            rows = _with(rows, "scored_at", [scored_at] * len(rows), pa.timestamp("us"))
            insert_rows(connection, table, rows, "attempt_id", rescore.attempt_id)


def _with(rows: pa.Table, name: str, values: Sequence[object], kind: pa.DataType) -> pa.Table:
    return rows.append_column(name, pa.array(values, kind))


_FILE: Final = "token_tag.parquet"
TAGS: Final = Derived(TAG, "tagger", (_FILE,), "annotate again")
TAG_SCHEMA: Final = arrow_schema(TABLES["token_tag"])
"""Schema of tags: one row per token that belongs to a word."""
_STORED_TAGS: Final = "SELECT DISTINCT attempt_id, tagger FROM token_tag"


def record_tags(spool_root: Path, attempt_id: str, tagger: str, tags: pa.Table) -> None:
    """Write the part-of-speech tags of an attempt's answers into the spool, unless it has tags of this tagger.

    Args:
        spool_root: The spool.
        attempt_id: Attempt whose answers are tagged.
        tagger: Library, model and their versions, as text.
        tags: Rows of `TAG_SCHEMA`.

    Raises:
        UserError: The spool cannot be written.
    """
    rows = tags.cast(TAG_SCHEMA)

    def fill(folder: Path) -> None:
        pq.write_table(rows, folder / _FILE, compression="zstd")

    TAGS.record(spool_root, tagger, {"attempt_id": attempt_id, "tagger": tagger}, fill)


def load_tags(engine: sa.Engine, spool_root: Path) -> list[str]:
    """Add to the database the spool's part-of-speech tags that it lacks; return a message per record not added.

    Tags of attempts that the database does not have are skipped.
    """

    def add(folder: Path, status: Mapping[str, Any]) -> None:
        rows = read_table(folder / _FILE, TAG_SCHEMA)
        rows = rows.append_column("tagger", pa.array([status["tagger"]] * len(rows), pa.string()))
        with engine.begin() as connection:
            insert_rows(connection, "token_tag", rows, "attempt_id", status["attempt_id"])

    return TAGS.load(engine, spool_root, _STORED_TAGS, add)


def check_tags(folder: Path) -> None:
    """Check the part-of-speech tags in a folder: digests, status.json, and the columns of the table.

    Raises:
        UserError: The record of tags is invalid.
    """
    TAGS.status(folder)
    read_table(folder / _FILE, TAG_SCHEMA)
