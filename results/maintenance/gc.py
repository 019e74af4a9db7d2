"""Garbage collection of a runs folder: find and remove files that are not needed any more."""

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from exitbench.errors import UserError
from exitbench.results.analysis.status import folder_bytes
from exitbench.results.database.connection import open_database
from exitbench.results.database.tables import quoted
from exitbench.results.files.arrow import driver_connection
from exitbench.results.files.atomic import SpoolError
from exitbench.results.ingest.snapshot import imported_attempts
from exitbench.results.maintenance.integrity import counted_rows, stored_rows
from exitbench.results.side_records.derived import RESCORES, TAGS
from exitbench.results.spool.attempts import (
    QUARANTINE,
    Attempt,
    AttemptRecord,
    free_tables,
    freed_tables,
    read_attempt,
    read_status,
    scan_spool,
)
from exitbench.results.spool.heartbeat import owner_of
from exitbench.results.tables import FILES, tables_of_attempts

Kind = Literal["killed attempt", "quarantined attempt", "leftover", "superseded attempt", "traces"]

TRACES: Final = (
    *("tokens", "sequence_trace", "probe", "sublayers", "layer_pairs", "prompts", "scores", "timings", "token_times"),
    *("device", "energy", "energy_domains"),
)
"""Tables with large files that only a database needs. Outputs and fitted tensors are used by other cells, and so are
tokens of given texts: full depth's are what every method's are compared with.
"""
_BEGINNING_S: Final = 10.0
_LEFT_S: Final = 3600.0
"""Partial files and folders older than this belong to a process that was killed."""
_PROCESS: Final = re.compile(r"-(\d+)$")
"""Suffix of names that belong to one process."""


@dataclass(frozen=True)
class Garbage:
    """File or folder that can be removed, or the traces (files with a row per token or reading) in an attempt's folder.

    Attributes:
        kind: Why it can be removed.
        path: The file or folder; for traces, the attempt's folder.
        attempt_id: Attempt whose rows are to be deleted from the database too; None if there are none to delete.
    """

    kind: Kind
    path: Path
    size_bytes: int
    attempt_id: str | None = None


def find_garbage(spool_root: Path, path: Path, *, superseded: bool, traces: bool) -> list[Garbage]:
    """Return the files and folders that can be removed; nothing is changed.

    Files of killed processes, and quarantined attempts, are never needed and always included.

    Args:
        spool_root: The spool.
        path: The database.
        superseded: Whether to include attempts, and their rows, if a later successful attempt at the same cell is
            complete in spool and database. Attempts that an imported snapshot also has are kept, since the next ingest
            would add them again.
        traces: Whether to include files of traces whose rows are all in the database.

    Raises:
        UserError: Superseded attempts or traces are requested, and there is no readable database.
    """
    attempts = list(scan_spool(spool_root))
    finished = [attempt for attempt in attempts if attempt.finished]
    dead = [attempt for attempt in attempts if not attempt.finished and _is_dead(attempt.path)]
    garbage = [Garbage("killed attempt", attempt.path, folder_bytes(attempt.path)) for attempt in dead]
    garbage += [_garbage_at("quarantined attempt", folder) for folder in sorted((spool_root / QUARANTINE).glob("*/*"))]
    garbage += [_garbage_at("leftover", leftover) for leftover in _leftovers(spool_root, path)]
    if superseded or traces:
        stored = _StoredAttempts.read(path)
    old = _superseded(finished, stored, imported_attempts(spool_root)) if superseded else []
    garbage += [
        Garbage("superseded attempt", old_attempt.path, folder_bytes(old_attempt.path), old_attempt.attempt_id)
        for old_attempt in old
    ]
    derived = [spool_root / kind.folder / old_attempt.attempt_id for kind in (RESCORES, TAGS) for old_attempt in old]
    garbage += [_garbage_at("superseded attempt", folder) for folder in derived if folder.is_dir()]
    if traces:
        garbage += _traces([attempt for attempt in finished if attempt not in old], stored)
    return garbage


def remove_garbage(garbage: Sequence[Garbage], path: Path, progress: Callable[[int, int], None] | None = None) -> None:
    """Remove the files returned by `find_garbage`, and the rows of superseded attempts from the database at `path`.

    `progress` is called with (entries removed, entries in `garbage`).

    Raises:
        UserError: The database is in use, or a file cannot be removed.
    """
    forgotten = [item.attempt_id for item in garbage if item.attempt_id is not None]
    if forgotten:
        _forget(path, forgotten)
    for n_removed, item in enumerate(garbage, start=1):
        try:
            if item.kind == "traces":
                free_tables(item.path, {**freed_tables(item.path), **_trace_rows(item.path)})
            elif item.path.is_dir():
                shutil.rmtree(item.path)
            else:
                item.path.unlink()
        except OSError as error:
            raise UserError(f"{item.path}: cannot be removed: {error.strerror}.") from error
        if progress:
            progress(n_removed, len(garbage))


def _is_dead(folder: Path) -> bool:
    """Return whether no process writes an unfinished attempt any more.

    False for a folder that is a few seconds old, since its process may not have locked it yet.
    """
    return owner_of(folder) is None and time.time() - folder.stat().st_mtime > _BEGINNING_S


def _garbage_at(kind: Kind, path: Path) -> Garbage:
    files = path.rglob("*") if path.is_dir() else [path]
    return Garbage(kind, path, sum(file.stat().st_size for file in files if file.is_file()))


def _leftovers(spool_root: Path, path: Path) -> Iterator[Path]:
    """Yield temporary files and folders that killed processes left: of records, imports and rebuilt databases."""
    hidden = ("trainings/.*", "vocabularies/.*", "imports/.*", "rescores/*/.*", ".importing-*", ".import-*")
    rebuilt = path.parent.glob(f".{path.name}.*/")
    yield from filter(
        _is_abandoned, [*(leftover for glob in hidden for leftover in sorted(spool_root.glob(glob))), *rebuilt]
    )


def _is_abandoned(path: Path) -> bool:
    """Return whether no process writes a temporary file or folder any more, judged by its name and its age."""
    process = _PROCESS.search(path.name)
    if process and _is_alive(int(process[1])):
        return False
    try:
        # A folder's own time does not change while files in it are written.
        changed_s = max(entry.stat().st_mtime for entry in (path, *path.rglob("*")))
    except FileNotFoundError:  # moved to its target at this moment
        return False
    return time.time() - changed_s > _LEFT_S


def _is_alive(pid: int) -> bool:
    """Return whether a process with this id exists; it need not be the writer, since ids are reused."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # a process of another user
        pass
    return True


@dataclass(frozen=True)
class _StoredAttempts:
    """Contents of the database by attempt id: the SHA-256 of the DONE file, and the number of rows by table."""

    done_sha256: dict[str, str]
    rows: dict[str, dict[str, int]]

    @classmethod
    def read(cls, path: Path) -> "_StoredAttempts":
        with open_database(path) as database:
            rows = database.query("SELECT attempt_id, spool_sha256 FROM attempt").to_pylist()
            return cls({row["attempt_id"]: row["spool_sha256"] for row in rows}, stored_rows(database))

    def good(self, attempt: Attempt) -> AttemptRecord | None:
        """Return an attempt's record if it was successful, its files are unchanged, and all its rows are stored.

        Otherwise return None.
        """
        try:
            record = read_attempt(attempt.path)
            ok = record.status["status"] == "ok" and self.done_sha256.get(attempt.attempt_id) == record.done_sha256
            return record if ok and counted_rows(record) == self.rows.get(attempt.attempt_id, {}) else None
        except SpoolError:
            return None  # `exitbench db check` names it


def _superseded(finished: Sequence[Attempt], stored: _StoredAttempts, imported: Set[str]) -> list[Attempt]:
    """Return the attempts older than the latest good attempt at the same cell, without those in an imported snapshot.

    Good means successful, unchanged, and complete in the database (`_StoredAttempts.good`).
    """
    cells: dict[str, list[Attempt]] = {}
    for attempt in sorted(finished, key=lambda attempt: attempt.attempt_id):
        cells.setdefault(attempt.cell_id, []).append(attempt)
    superseded: list[Attempt] = []
    for attempts in cells.values():
        later = (n for n in range(len(attempts) - 1, 0, -1) if read_status(attempts[n]).status == "ok")
        latest = next((n for n in later if stored.good(attempts[n])), 0)
        superseded += [attempt for attempt in attempts[:latest] if attempt.attempt_id not in imported]
    return superseded


def _traces(finished: Sequence[Attempt], stored: _StoredAttempts) -> Iterator[Garbage]:
    for attempt in finished:
        record = stored.good(attempt)
        here = _trace_tables(record) if record else []
        if here:
            size = sum((attempt.path / f"{table}.parquet").stat().st_size for table in here)
            yield Garbage("traces", attempt.path, size)


def _trace_tables(record: AttemptRecord) -> list[str]:
    """Return the names of an attempt's tables that are traces (listed in `TRACES`) and not needed by other cells."""
    scored = {"tokens"} if "choices" in record.tables else set()
    return [table for table in TRACES if table in record.tables and table not in scored]


def _trace_rows(path: Path) -> dict[str, int]:
    record = read_attempt(path)
    rows = counted_rows(record)
    return {table: rows.get(FILES[table].name, 0) for table in _trace_tables(record)}


def _forget(path: Path, attempt_ids: Sequence[str]) -> None:
    """Delete all rows of the attempts from the database at `path`, in one transaction."""
    with open_database(path, read_only=False) as database, database.engine.begin() as connection:
        duck = driver_connection(connection)
        for table in (*tables_of_attempts(), "attempt"):
            duck.execute(f"DELETE FROM {quoted(table)} WHERE list_contains($1, attempt_id)", [list(attempt_ids)])
        for table, key in (("environment", "env_id"), ("hardware", "hw_id")):
            duck.execute(f"DELETE FROM {table} WHERE {key} NOT IN (SELECT {key} FROM attempt)")
