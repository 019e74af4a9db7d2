"""The spool: one folder per attempt at a cell, which is the source of truth for the database.

    <spool>/<cell_id[:2]>/<cell_id>/<attempt_id>/{cell.json, env.json, status.json, *.parquet, log.txt, DONE}

DONE contains the SHA-256 of every other file as JSON and is written last, by rename. A folder without it was not
finished: it is running, which a lock on its file RUNNING shows, or its process was killed. A folder with it can be
checked years later. If tables were removed because a database has their rows, FREED lists the numbers of their rows.
"""

import json
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from exitbench.errors import UserError, is_out_of_memory, suggestion
from exitbench.results.files.atomic import (
    DamagedFile,
    SpoolError,
    check_digest,
    read_digests,
    read_json,
    sha256,
    write_json,
)
from exitbench.results.files.formats import abbreviate_home
from exitbench.results.files.values import INT64, Keys, first_invalid_key
from exitbench.results.spool.heartbeat import OWNER_FILE, Heartbeat
from exitbench.results.spool.schema import (
    ATTEMPT_ID,
    CELL_KEYS,
    ENV_KEYS,
    FITTED_FILE,
    ROLES,
    SCHEMA_VERSION,
    STATUS_KEYS,
    STATUSES,
    TABLES,
)

LOG_TAIL_LINES = 40
UNFINISHED = "unfinished"
DAMAGED = "damaged"
NO_OUTCOME = frozenset({UNFINISHED, "interrupted"})
TO_BE_RUN = NO_OUTCOME | {DAMAGED}
"""Statuses of a cell's latest attempt for which the cell has no outcome yet."""

_JSON_FILES = ("cell.json", "env.json", "status.json")
LOG_FILE = "log.txt"
_FREED = "FREED"
ATTEMPT_FILES = frozenset({*_JSON_FILES, LOG_FILE, FITTED_FILE, *(f"{table}.parquet" for table in TABLES)})
"""Files that DONE may list."""
_OUTCOME: Keys = {"": {name: STATUS_KEYS[""][name] for name in ("status", "reason")}}
# Small enough that several threads share reading one file. Not compressed, which would halve the speed of ingest.
_ROW_GROUP_ROWS = 16_384
QUARANTINE = "quarantine"
_ID_TIME = "%Y%m%dT%H%M%S%fZ"
_PREFIX_LENGTH = 2


@dataclass(frozen=True)
class Attempt:
    """Attempt at a cell, as found in the spool without reading its files; `finished` is True if it has a DONE file."""

    cell_id: str
    attempt_id: str
    path: Path
    finished: bool


@dataclass(frozen=True)
class AttemptStatus:
    """Status of an attempt in the spool.

    Attributes:
        path: The attempt's folder.
        status: One of `schema.STATUSES`, 'unfinished' without the file DONE, or 'damaged' if status.json is invalid.
        reason: Why the attempt did not succeed, or why it is damaged; None if no reason is known.
    """

    cell_id: str
    attempt_id: str
    path: Path
    status: str
    reason: str | None


@dataclass(frozen=True)
class AttemptRecord:
    """Finished attempt whose files have been checked against the digests in its file DONE.

    Attributes:
        cell: Content of cell.json.
        env: Content of env.json.
        status: Content of status.json.
        tables: Names of the tables whose Parquet files are present.
        digests: SHA-256 of every file, by file name, as listed in DONE.
        done_sha256: SHA-256 of DONE itself.
        freed: Number of rows of each table whose file was removed (`free_tables`), since a database has the rows.
    """

    attempt: Attempt
    cell: dict[str, Any]
    env: dict[str, Any]
    status: dict[str, Any]
    tables: tuple[str, ...]
    digests: dict[str, str]
    done_sha256: str
    freed: dict[str, int]

    def batches(self, table: str) -> Iterator[pa.Table]:
        """Yield the rows of `table` (a name in `tables`) one Parquet row group at a time, in the schema's types.

        Raises:
            SpoolError: The file does not match the schema; the message names file and column.
        """
        path = self.attempt.path / f"{table}.parquet"
        try:
            with pq.ParquetFile(path) as file:
                for group in range(file.num_row_groups):
                    yield conform(table, file.read_row_group(group), location=str(path))
        except pa.ArrowException as error:
            raise SpoolError(f"{path}: cannot be read as Parquet: {error}") from error


class AttemptWriter:
    """Writer of one attempt at a cell; use it as a context manager and call `finish` once.

    If an exception leaves the context, the attempt is finished with the status of that exception ('interrupted', 'oom',
    'timeout' or 'failed'), and the exception propagates. A process that is killed leaves a folder without DONE.
    """

    def __init__(self, spool_root: Path, cell: Mapping[str, Any], env: Mapping[str, Any]) -> None:
        """Create the attempt's folder with cell.json and env.json.

        Args:
            spool_root: The spool; created if missing.
            cell: Content of cell.json (`schema.CELL_KEYS`).
            env: Content of env.json (`schema.ENV_KEYS`).

        Raises:
            SpoolError: A key is missing, or of the wrong type.
            UserError: The folder cannot be created.
        """
        _require(cell, CELL_KEYS, "cell.json")
        _require(env, ENV_KEYS, "env.json")
        self.cell_id: str = cell["cell_id"]
        self.attempt_id = _following_id(spool_root, self.cell_id)
        self.path = attempt_path(spool_root, self.cell_id, self.attempt_id)
        if link := next(filter(Path.is_symlink, (self.path.parent.parent, self.path.parent)), None):
            raise UserError(
                f"{link}: is a link; attempts in linked folders would not be found again. Replace it with the folder."
            )
        try:
            self.path.mkdir(parents=True)
            self._owner = Heartbeat(self.path)
        except OSError as error:
            raise UserError(f"The spool folder {self.path} cannot be created: {error.strerror}.") from error
        self._started_at, self._start_s = _utc_now(), time.monotonic()
        self._parquet: dict[str, pq.ParquetWriter] = {}
        self._finished = False
        write_json(self.path / "cell.json", dict(cell))
        write_json(self.path / "env.json", dict(env))

    @property
    def log_path(self) -> Path:
        """Path of this attempt's log. Nothing may be written to it after `finish`."""
        return self.path / LOG_FILE

    def progress(self, done: int, total: int | None = None) -> None:
        """Record the number of finished documents, and their total if known, for processes that watch the spool."""
        self._owner.progress(done, total)

    def write(self, table: str, rows: pa.Table) -> None:
        """Append `rows` to the Parquet file of `table`; may be called several times per table.

        Raises:
            SpoolError: The table does not exist, or the columns do not match the schema.
        """
        rows = conform(table, rows, location=f"{table}.parquet")
        if table not in self._parquet:
            path = self.path / f"{table}.parquet"
            strings = [field.name for field in TABLES[table] if pa.types.is_string(field.type)]
            self._parquet[table] = pq.ParquetWriter(path, TABLES[table], compression="none", use_dictionary=strings)
        self._parquet[table].write_table(rows, row_group_size=_ROW_GROUP_ROWS)

    def finish(
        self,
        status: str,
        reason: str | None = None,
        *,
        exit_code: int | None = None,
        signal: int | None = None,
        peak_rss_bytes: int | None = None,
        pass_cells: int | None = None,
    ) -> None:
        """Finish the attempt: close its Parquet files, write these values to status.json, then write DONE.

        `pass_cells` is the number of cells that one run over the documents answered; None if the cell ran alone.

        Raises:
            SpoolError: The status is unknown, or the attempt is already finished.
        """
        if status not in STATUSES:
            raise SpoolError(f"status {status!r} is not known.{suggestion(status, STATUSES)}")
        if self._finished:
            raise SpoolError(f"{self.path}: the attempt is already finished.")
        self._finished = True
        for writer in self._parquet.values():
            writer.close()
        write_json(
            self.path / "status.json",
            {
                "schema_version": SCHEMA_VERSION,
                "status": status,
                "reason": None if reason is None else abbreviate_home(reason),
                "started_at": self._started_at,
                "ended_at": self._ended_at(),
                "exit_code": exit_code,
                "signal": signal,
                "peak_rss_bytes": peak_rss_bytes,
                "pass_cells": pass_cells,
                "log_tail": _log_tail(self.log_path),
            },
        )
        _write_done(self.path)
        self._owner.release()

    def _ended_at(self) -> str:
        """Return the attempt's end as text: now, or if the clock was set back meanwhile, start plus elapsed time."""
        started, now = datetime.fromisoformat(self._started_at), _utc_now()
        if datetime.fromisoformat(now) >= started:
            return now
        return (started + timedelta(seconds=time.monotonic() - self._start_s)).isoformat(timespec="microseconds")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._finished:
            return
        if error is None:
            self.finish("failed", "the attempt was left without finish()")
        else:
            self.finish(status_of(error), f"{type(error).__name__}: {error}")


def new_attempt_id() -> str:
    """Return a new attempt id: UTC time to the microsecond, then 32 random bits; ids sort by time."""
    return _id_of(datetime.now(UTC))


def _id_of(moment: datetime) -> str:
    return f"{moment:{_ID_TIME}}-{secrets.token_hex(4)}"


def _following_id(spool_root: Path, cell_id: str) -> str:
    """Return a new id that sorts after every attempt at the cell, even if the clock was set back in the meantime."""
    new = new_attempt_id()
    latest = max((attempt.attempt_id for attempt in cell_attempts(spool_root, cell_id)), default="")
    if latest < new:
        return new
    return _id_of(datetime.strptime(latest.partition("-")[0], _ID_TIME) + timedelta(microseconds=1))


def quarantine(spool_root: Path, attempt: Attempt, why: str) -> Path:
    """Move a damaged attempt to the spool's quarantine folder, and write the reason there; return its new path."""
    places = spool_root / QUARANTINE / attempt.cell_id
    target = places / attempt.attempt_id
    number = 2
    while target.exists():  # it was there before, and was restored from a copy
        target, number = places / f"{attempt.attempt_id}.{number}", number + 1
    places.mkdir(parents=True, exist_ok=True)
    attempt.path.rename(target)
    (target / "WHY.txt").unlink(missing_ok=True)  # writing would follow a link
    (target / "WHY.txt").write_text(f"{why}\n", encoding="utf-8")
    return target


def attempt_path(spool_root: Path, cell_id: str, attempt_id: str) -> Path:
    """Return the path of an attempt's folder in the spool."""
    return spool_root / cell_id[:_PREFIX_LENGTH] / cell_id / attempt_id


def scan_spool(spool_root: Path) -> Iterator[Attempt]:
    """Yield every attempt in the spool, ordered by cell and then by time; folders are listed, no file is read.

    A spool that does not exist yet is empty.
    """
    for prefix in _folders(spool_root):
        if len(prefix.name) == _PREFIX_LENGTH:  # other folders are no cells: trainings, quarantine
            for cell in _folders(prefix):
                yield from _attempts(cell)


def links_in(spool_root: Path) -> Iterator[Path]:
    """Yield the path of every symbolic link in place of a cell's or an attempt's folder; `scan_spool` skips them."""
    prefixes = [path for path in _folders(spool_root) if len(path.name) == _PREFIX_LENGTH]
    cells = [cell for prefix in prefixes for cell in _folders(prefix)]
    yield from (path for path in _links(spool_root) if len(path.name) == _PREFIX_LENGTH)
    for folder in (*prefixes, *cells):
        yield from _links(folder)


def cell_attempts(spool_root: Path, cell_id: str) -> Iterator[Attempt]:
    """Yield every attempt at one cell, by time."""
    cell = spool_root / cell_id[:_PREFIX_LENGTH] / cell_id
    if not cell.parent.is_symlink() and not cell.is_symlink():
        yield from _attempts(cell)


def deciding_statuses(attempts: Iterable[Attempt]) -> Iterator[AttemptStatus]:
    """Yield one status per cell: of its latest attempt with an outcome, or else of its latest attempt.

    An attempt that was interrupted or is not finished has no outcome, so a cell that is repeated keeps its old state.

    Args:
        attempts: Attempts; those of a cell are in order of time.
    """
    by_cell: dict[str, list[Attempt]] = {}
    for attempt in attempts:
        by_cell.setdefault(attempt.cell_id, []).append(attempt)
    for group in by_cell.values():
        latest = read_status(group[-1])
        earlier = (status for status in map(read_status, reversed(group)) if status.status not in NO_OUTCOME)
        yield next(earlier, latest)


def latest_status(spool_root: Path) -> dict[str, AttemptStatus]:
    """Return the status of every cell in the spool, by cell id.

    It is that of the cell's latest attempt that was finished and not interrupted, or else of its latest attempt.
    """
    return {status.cell_id: status for status in deciding_statuses(scan_spool(spool_root))}


def attempt_status(spool_root: Path, cell_id: str) -> AttemptStatus | None:
    """Return the status of one cell, that of its latest attempt with an outcome, or else of its latest attempt.

    An attempt that was interrupted or is unfinished has no outcome. None if the cell has no attempt.
    """
    return next(deciding_statuses(cell_attempts(spool_root, cell_id)), None)


def read_status(attempt: Attempt) -> AttemptStatus:
    """Return the status in an attempt's status.json, or 'damaged' if that file is invalid.

    An attempt without the file DONE is 'unfinished'.
    """
    status: str = UNFINISHED
    reason: str | None = None
    if attempt.finished:
        try:
            content = read_json(attempt.path / "status.json")
            _require(
                content, _OUTCOME if _is_of_another_version(content) else STATUS_KEYS, str(attempt.path / "status.json")
            )
            status, reason = content["status"], content["reason"]
        except SpoolError as error:
            status, reason = DAMAGED, str(error)
    return AttemptStatus(attempt.cell_id, attempt.attempt_id, attempt.path, status, reason)


def read_attempt(path: Path) -> AttemptRecord:
    """Check every file of a finished attempt against its digest in the file DONE, and read the JSON files.

    Raises:
        DamagedFile: DONE is missing or unreadable, or a file is missing, no regular file or changed; the message names
            it.
        SpoolError: A key is missing or of the wrong type, or another version wrote the files; the message names the
            file.
    """
    digests = read_digests(path / "DONE")
    missing = set(_JSON_FILES) - digests.keys()
    if missing or not digests.keys() <= ATTEMPT_FILES:
        raise SpoolError(f"{path / 'DONE'}: lists {sorted(digests)}; expected {', '.join(_JSON_FILES)} and the tables.")
    freed = freed_tables(path)
    for name, digest in digests.items():
        if name.removesuffix(".parquet") not in freed:
            check_digest(path / name, digest)
    status = _read_status(path)
    cell, env = (_read(path / name, keys) for name, keys in (("cell.json", CELL_KEYS), ("env.json", ENV_KEYS)))
    if not ATTEMPT_ID.fullmatch(path.name):
        raise SpoolError(f"{path}: is not the name of an attempt, such as {_id_of(datetime(2026, 1, 2, tzinfo=UTC))}.")
    if cell["cell_id"] != path.parent.name:
        raise SpoolError(f"{path / 'cell.json'}: cell_id {cell['cell_id']!r} is not its folder's name.")
    return AttemptRecord(
        attempt=Attempt(path.parent.name, path.name, path, finished=True),
        cell=cell,
        env=env,
        status=status,
        tables=tuple(table for table in TABLES if f"{table}.parquet" in digests and table not in freed),
        digests=digests,
        done_sha256=sha256(path / "DONE"),
        freed=freed,
    )


def free_tables(path: Path, rows: Mapping[str, int]) -> None:
    """Remove the Parquet files of some tables from a finished attempt, and record their numbers of rows in FREED.

    Args:
        path: The attempt's folder.
        rows: Number of rows by table, including tables whose files were removed before.
    """
    (path / f"{_FREED}.partial").unlink(missing_ok=True)  # writing would follow a link
    write_json(path / f"{_FREED}.partial", rows)
    (path / f"{_FREED}.partial").rename(path / _FREED)
    for table in rows:
        (path / f"{table}.parquet").unlink(missing_ok=True)


def freed_tables(path: Path) -> dict[str, int]:
    """Return the number of rows of each table whose file was removed from an attempt's folder, as listed in FREED.

    Raises:
        DamagedFile: FREED is invalid.
        SpoolError: FREED cannot be read.
    """
    note = path / _FREED
    if not os.path.lexists(note):
        return {}
    rows = read_json(note)
    for table, n in rows.items():
        if table not in TABLES:
            raise DamagedFile(f"{note}: no table {table!r}.{suggestion(table, TABLES)}")
        if type(n) is not int or not 0 <= n <= INT64:
            raise DamagedFile(f"{note}: the entry of {table} is not a number of rows.")
    return rows


def conform(table: str, rows: pa.Table, *, location: str) -> pa.Table:
    """Return `rows` with the columns of `table` in the schema's order and types.

    Args:
        table: A name in `schema.TABLES`.
        rows: The schema's columns, in any order, of types that can be cast without loss of range; nullable columns may
            be missing, and become null.
        location: File to name in errors.

    Raises:
        SpoolError: Unknown table; missing, unknown or ill-typed column; null in a column that is not nullable; lists of
            a probed token that differ in length; a metric that is not finite.
    """
    if table not in TABLES:
        raise SpoolError(f"{location}: no table {table!r}.{suggestion(table, TABLES)}")
    schema = TABLES[table]
    for name in rows.column_names:
        if name not in schema.names:
            raise SpoolError(f"{location}: unknown column {name!r}.{suggestion(name, schema.names)}")
    columns = [_conform_column(rows, field, location) for field in schema]
    conformed = pa.Table.from_arrays(columns, schema=schema)
    if table in ("probe", "sublayers", "scores"):
        _check_list_lengths(conformed, location)
    if table == "metrics" and not pc.all(pc.is_finite(conformed["value"]), min_count=0).as_py():
        raise SpoolError(f"{location}: column 'value' has entries that are not finite; leave undefined metrics out.")
    if table == "metrics" and (unknown := set(conformed["role"].to_pylist()) - set(ROLES)):
        raise SpoolError(f"{location}: unknown role {min(unknown)!r}.{suggestion(min(unknown), ROLES)}")
    return conformed


def _conform_column(rows: pa.Table, field: pa.Field, location: str) -> pa.ChunkedArray:
    count = rows.column_names.count(field.name)
    if count == 0 and field.nullable:
        return pa.chunked_array([pa.nulls(rows.num_rows, field.type)])
    if count != 1:
        raise SpoolError(f"{location}: needs exactly one column {field.name!r} ({field.type}).")
    column = rows[field.name]
    if column.null_count and not field.nullable:
        raise SpoolError(f"{location}: column {field.name!r} has {column.null_count} nulls; none is allowed.")
    try:
        return column.cast(field.type)
    except pa.ArrowException as error:
        raise SpoolError(f"{location}: column {field.name!r} ({column.type}) is not {field.type}: {error}") from error


def _check_list_lengths(rows: pa.Table, location: str) -> None:
    """Check that all lists in a row have the same length, since their entries correspond (for example, per block)."""
    lists = [field.name for field in rows.schema if pa.types.is_list(field.type)]
    for name in lists[1:]:
        if rows[name].null_count == rows.num_rows and rows.schema.field(name).nullable:  # of other rows
            continue
        expected, lengths = (pc.list_value_length(rows[column]) for column in (lists[0], name))
        if not expected.equals(lengths):
            raise SpoolError(f"{location}: lists {lists[0]!r} and {name!r} differ in length.")


def _attempts(cell: Path) -> Iterator[Attempt]:
    for path in _folders(cell):
        yield Attempt(cell.name, path.name, path, (path / "DONE").exists())


def _folders(path: Path) -> list[Path]:
    return _listed(path, lambda entry: entry.is_dir(follow_symlinks=False))


def _links(path: Path) -> list[Path]:
    return _listed(path, lambda entry: entry.is_symlink())


def _listed(path: Path, wanted: Callable[[os.DirEntry[str]], bool]) -> list[Path]:
    try:
        with os.scandir(path) as entries:
            return sorted(Path(entry.path) for entry in entries if wanted(entry))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(f"The spool folder {path} cannot be listed: {error.strerror}.") from error


def status_of(error: BaseException) -> str:
    """Return the status of an attempt that ended with this error: interrupted, oom, timeout or failed."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if is_out_of_memory(error):
        return "oom"
    return "timeout" if isinstance(error, TimeoutError) else "failed"


def _utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")


def _read_status(path: Path) -> dict[str, Any]:
    """Return the content of the status.json in an attempt's folder, after checking its version and keys."""
    status_path = path / "status.json"
    status = read_json(status_path)
    if _is_of_another_version(status):
        raise SpoolError(
            f"{status_path}: written by another version of ExitBench (spool schema {status['schema_version']}); this "
            f"one reads {SCHEMA_VERSION} only."
        )
    _require(status, STATUS_KEYS, str(status_path))
    return status


def _is_of_another_version(status: Mapping[str, Any]) -> bool:
    version = status.get("schema_version")
    return type(version) is int and version != SCHEMA_VERSION


def _read(path: Path, keys: Keys) -> dict[str, Any]:
    record = read_json(path)
    _require(record, keys, str(path))
    return record


def _require(record: Mapping[str, Any], keys: Keys, location: str) -> None:
    if fault := first_invalid_key(record, keys):
        raise SpoolError(f"{location}: {fault}")


def _log_tail(path: Path) -> str | None:
    if not path.exists():
        return None
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return abbreviate_home("\n".join(lines[-LOG_TAIL_LINES:]))


def _write_done(path: Path) -> None:
    digests = {file.name: sha256(file) for file in sorted(path.iterdir()) if file.name != OWNER_FILE}
    partial = path / "DONE.partial"
    with partial.open("w", encoding="utf-8") as file:
        json.dump(digests, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    partial.rename(path / "DONE")
