"""Garbage collection of a runs folder: what it holds that nobody needs any more."""

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
from exitbench.results.beside.derived import RESCORES, TAGS
from exitbench.results.database.connection import open_database
from exitbench.results.database.tables import quoted
from exitbench.results.files.arrow import driver_connection
from exitbench.results.files.atomic import SpoolError
from exitbench.results.ingest.snapshot import imported_attempts
from exitbench.results.maintenance.integrity import counted_rows, stored_rows
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
"""Tables whose files are large and that only a database needs. Outputs and fitted tensors serve other cells, and so do
tokens of given texts: full depth's are what every method's are compared with."""
_BEGINNING_S: Final = 10.0
_LEFT_S: Final = 3600.0
"""Something half-written of which nothing is younger than this is of a process that was killed."""
_PROCESS: Final = re.compile(r"-(\d+)$")
"""How names end of what one process writes."""


@dataclass(frozen=True)
class Garbage:
    """Something that can be freed.

    Attributes:
        path: The folder of an attempt, or the file or folder that it is.
        attempt_id: Of an attempt that the database forgets too; None for others.
    """

    kind: Kind
    path: Path
    size_bytes: int
    attempt_id: str | None = None


def find_garbage(spool_root: Path, path: Path, *, superseded: bool, traces: bool) -> list[Garbage]:
    """Return what can be freed; nothing is changed.

    What processes left that were killed, and what was quarantined, is not needed by anything.

    Args:
        spool_root: The spool.
        path: The database.
        superseded: Also attempts with a later one at the same cell that ended well and is whole in spool and database,
            with their rows; not those of which an import has the rows too, since the next ingest would add them again.
        traces: Also files of traces whose rows the database has, every one.

    Raises:
        UserError: Superseded attempts or traces are asked for, and there is no database that can be read.
    """
    attempts = list(scan_spool(spool_root))
    finished = [attempt for attempt in attempts if attempt.finished]
    dead = [attempt for attempt in attempts if not attempt.finished and _is_dead(attempt.path)]
    found = [Garbage("killed attempt", attempt.path, folder_bytes(attempt.path)) for attempt in dead]
    found += [_other("quarantined attempt", folder) for folder in sorted((spool_root / QUARANTINE).glob("*/*"))]
    found += [_other("leftover", left) for left in _half_written(spool_root, path)]
    if superseded or traces:
        stored = _Stored.read(path)
    old = _superseded(finished, stored, imported_attempts(spool_root)) if superseded else []
    found += [Garbage("superseded attempt", one.path, folder_bytes(one.path), one.attempt_id) for one in old]
    derived = [spool_root / kind.folder / one.attempt_id for kind in (RESCORES, TAGS) for one in old]
    found += [_other("superseded attempt", folder) for folder in derived if folder.is_dir()]
    if traces:
        found += _traces([attempt for attempt in finished if attempt not in old], stored)
    return found


def free(garbage: Sequence[Garbage], path: Path, progress: Callable[[int, int], None] | None = None) -> None:
    """Remove what `find_garbage` found.

    Raises:
        UserError: The database is in use, or something cannot be removed.
    """
    forgotten = [item.attempt_id for item in garbage if item.attempt_id is not None]
    if forgotten:
        _forget(path, forgotten)
    for done, item in enumerate(garbage, start=1):
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
            progress(done, len(garbage))


def _is_dead(folder: Path) -> bool:
    """Whether nobody writes an attempt; one that was just begun may not be locked yet."""
    return owner_of(folder) is None and time.time() - folder.stat().st_mtime > _BEGINNING_S


def _other(kind: Kind, path: Path) -> Garbage:
    files = path.rglob("*") if path.is_dir() else [path]
    return Garbage(kind, path, sum(file.stat().st_size for file in files if file.is_file()))


def _half_written(spool_root: Path, path: Path) -> Iterator[Path]:
    """What is renamed or removed when complete: records of the spool, copies of imports, databases being rebuilt."""
    hidden = ("trainings/.*", "vocabularies/.*", "imports/.*", "rescores/*/.*", ".importing-*", ".import-*")
    rebuilt = path.parent.glob(f".{path.name}.*/")
    yield from filter(_is_left, [*(left for glob in hidden for left in sorted(spool_root.glob(glob))), *rebuilt])


def _is_left(path: Path) -> bool:
    """Whether nobody writes a file or folder, as far as its name and its age tell."""
    process = _PROCESS.search(path.name)
    if process and _is_alive(int(process[1])):
        return False
    try:
        # A folder's own time says nothing of the files that are being filled in it.
        changed_s = max(entry.stat().st_mtime for entry in (path, *path.rglob("*")))
    except FileNotFoundError:  # put in its place at this moment
        return False
    return time.time() - changed_s > _LEFT_S


def _is_alive(pid: int) -> bool:
    """Whether there is such a process here; it need not be the one that wrote, since numbers are used again."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # of another user
        pass
    return True


@dataclass(frozen=True)
class _Stored:
    """What the database has of attempts, by id: the digest of DONE, and rows by table."""

    done: dict[str, str]
    rows: dict[str, dict[str, int]]

    @classmethod
    def read(cls, path: Path) -> "_Stored":
        with open_database(path) as database:
            rows = database.query("SELECT attempt_id, spool_sha256 FROM attempt").to_pylist()
            return cls({row["attempt_id"]: row["spool_sha256"] for row in rows}, stored_rows(database))

    def good(self, attempt: Attempt) -> AttemptRecord | None:
        """Return an attempt that ended well if its files are what was written and the database has every row."""
        try:
            record = read_attempt(attempt.path)
            ok = record.status["status"] == "ok" and self.done.get(attempt.attempt_id) == record.done_sha256
            return record if ok and counted_rows(record) == self.rows.get(attempt.attempt_id, {}) else None
        except SpoolError:
            return None  # `exitbench db check` names it


def _superseded(finished: Sequence[Attempt], stored: _Stored, imported: Set[str]) -> list[Attempt]:
    """Attempts before the latest good one of their cell."""
    cells: dict[str, list[Attempt]] = {}
    for attempt in sorted(finished, key=lambda attempt: attempt.attempt_id):
        cells.setdefault(attempt.cell_id, []).append(attempt)
    found: list[Attempt] = []
    for attempts in cells.values():
        later = (n for n in range(len(attempts) - 1, 0, -1) if read_status(attempts[n]).status == "ok")
        latest = next((n for n in later if stored.good(attempts[n])), 0)
        found += [attempt for attempt in attempts[:latest] if attempt.attempt_id not in imported]
    return found


def _traces(finished: Sequence[Attempt], stored: _Stored) -> Iterator[Garbage]:
    for attempt in finished:
        record = stored.good(attempt)
        here = _trace_tables(record) if record else []
        if here:
            size = sum((attempt.path / f"{table}.parquet").stat().st_size for table in here)
            yield Garbage("traces", attempt.path, size)


def _trace_tables(record: AttemptRecord) -> list[str]:
    """Return the tables of an attempt that are traces and serve no other cell."""
    scored = {"tokens"} if "choices" in record.tables else set()
    return [table for table in TRACES if table in record.tables and table not in scored]


def _trace_rows(path: Path) -> dict[str, int]:
    record = read_attempt(path)
    rows = counted_rows(record)
    return {table: rows.get(FILES[table].name, 0) for table in _trace_tables(record)}


def _forget(path: Path, attempt_ids: Sequence[str]) -> None:
    """Remove every row of attempts, in one transaction."""
    with open_database(path, read_only=False) as database, database.engine.begin() as connection:
        duck = driver_connection(connection)
        for table in (*tables_of_attempts(), "attempt"):
            duck.execute(f"DELETE FROM {quoted(table)} WHERE list_contains($1, attempt_id)", [list(attempt_ids)])
        for table, key in (("environment", "env_id"), ("hardware", "hw_id")):
            duck.execute(f"DELETE FROM {table} WHERE {key} NOT IN (SELECT {key} FROM attempt)")
