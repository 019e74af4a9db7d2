"""What a runs folder holds that nobody needs any more."""

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from exitbench.errors import UserError
from exitbench.results.arrow import driver_connection
from exitbench.results.check import counted_rows, stored_rows
from exitbench.results.database import open_database
from exitbench.results.load import DATABASE_TABLE
from exitbench.results.owner import owner_of
from exitbench.results.rescores import RESCORES
from exitbench.results.spool import (
    QUARANTINE,
    Attempt,
    SpoolError,
    free_tables,
    freed_tables,
    read_attempt,
    read_status,
    scan_spool,
)
from exitbench.results.status import folder_bytes

Kind = Literal["killed attempt", "quarantined attempt", "leftover", "superseded attempt", "traces"]

TRACES: Final = ("tokens", "probe", "scores", "timings", "device")
"""Tables whose files are large and that only a database needs. Outputs and fitted tensors serve other cells."""
_BEGINNING_S: Final = 10.0
_LEFT_S: Final = 3600.0
"""A half-written folder older than this is of a process that was killed."""


@dataclass(frozen=True)
class Garbage:
    """Something that can be freed.

    Attributes:
        path: The folder, of an attempt or of what else it is.
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
        superseded: Also attempts with a later one at the same cell that ended well, with their rows.
        traces: Also files of traces whose rows the database has, every one.

    Raises:
        UserError: Traces are asked for, and there is no database that can be read.
    """
    attempts = list(scan_spool(spool_root))
    dead = [attempt for attempt in attempts if not attempt.finished and _is_dead(attempt.path)]
    found = [Garbage("killed attempt", attempt.path, folder_bytes(attempt.path)) for attempt in dead]
    found += [_other("quarantined attempt", folder) for folder in sorted((spool_root / QUARANTINE).glob("*/*"))]
    found += [_other("leftover", folder) for folder in _half_written(spool_root, path)]
    old = _superseded(attempts) if superseded else []
    found += [Garbage("superseded attempt", one.path, folder_bytes(one.path), one.attempt_id) for one in old]
    rescored = [spool_root / RESCORES / one.attempt_id for one in old]
    found += [_other("superseded attempt", folder) for folder in rescored if folder.is_dir()]
    if traces:
        rest = [attempt for attempt in attempts if attempt.finished and attempt not in old]
        found += _traces(rest, path)
    return found


def free(garbage: Sequence[Garbage], path: Path, progress: Callable[[int, int], None] | None = None) -> None:
    """Remove what `find_garbage` found.

    Args:
        garbage: What to free.
        path: The database, which forgets superseded attempts.
        progress: Called with (done, total).

    Raises:
        UserError: The database is in use, or something cannot be removed.
    """
    forgotten = [item.attempt_id for item in garbage if item.attempt_id is not None]
    if forgotten and path.exists():
        _forget(path, forgotten)
    for done, item in enumerate(garbage, start=1):
        try:
            if item.kind == "traces":
                free_tables(item.path, {**freed_tables(item.path), **_trace_rows(item.path)})
            else:
                shutil.rmtree(item.path)
        except OSError as error:
            raise UserError(f"{item.path}: cannot be removed: {error.strerror}.") from error
        if progress:
            progress(done, len(garbage))


def _is_dead(folder: Path) -> bool:
    """Whether nobody writes an attempt; one that was just begun may not be locked yet."""
    return owner_of(folder) is None and time.time() - folder.stat().st_mtime > _BEGINNING_S


def _other(kind: Kind, folder: Path) -> Garbage:
    return Garbage(kind, folder, sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()))


def _half_written(spool_root: Path, path: Path) -> Iterator[Path]:
    """Folders that are renamed when complete, and databases that were being rebuilt."""
    hidden = [*spool_root.glob("trainings/.*"), *spool_root.glob("imports/.*"), *spool_root.glob("rescores/*/.*")]
    for folder in (*hidden, *path.parent.glob(f".{path.name}.*/")):
        if folder.is_dir() and time.time() - folder.stat().st_mtime > _LEFT_S:
            yield folder


def _superseded(attempts: Sequence[Attempt]) -> list[Attempt]:
    """Finished attempts before the latest good one of their cell."""
    good = {a.cell_id: a.attempt_id for a in attempts if a.finished and read_status(a).status == "ok"}
    return [a for a in attempts if a.finished and a.attempt_id < good.get(a.cell_id, "")]


def _traces(attempts: Sequence[Attempt], path: Path) -> Iterator[Garbage]:
    with open_database(path) as database:
        stored = stored_rows(database)
        rows = database.query("SELECT attempt_id, spool_sha256 FROM attempt").to_pylist()
    digests = {row["attempt_id"]: row["spool_sha256"] for row in rows}
    for attempt in attempts:
        try:
            record = read_attempt(attempt.path)
            ok = record.status["status"] == "ok" and digests.get(attempt.attempt_id) == record.done_sha256
            here = [table for table in TRACES if table in record.tables]
            if ok and here and counted_rows(record) == stored.get(attempt.attempt_id, {}):
                size = sum((attempt.path / f"{table}.parquet").stat().st_size for table in here)
                yield Garbage("traces", attempt.path, size)
        except SpoolError:
            continue  # `exitbench db check` names it


def _trace_rows(path: Path) -> dict[str, int]:
    record = read_attempt(path)
    rows = counted_rows(record)
    return {table: rows.get(DATABASE_TABLE[table], 0) for table in TRACES if table in record.tables}


def _forget(path: Path, attempt_ids: Sequence[str]) -> None:
    """Remove every row of attempts, in one transaction."""
    with open_database(path, read_only=False) as database, database.engine.begin() as connection:
        duck = driver_connection(connection)
        own = "SELECT table_name FROM duckdb_columns() WHERE column_name = 'attempt_id' AND NOT internal"
        views = "SELECT view_name FROM duckdb_views() WHERE NOT internal"
        for (table,) in duck.execute(f"{own} AND table_name NOT IN ({views})").fetchall():
            duck.execute(f"DELETE FROM {table} WHERE list_contains($1, attempt_id)", [list(attempt_ids)])
        for table, key in (("environment", "env_id"), ("hardware", "hw_id")):
            duck.execute(f"DELETE FROM {table} WHERE {key} NOT IN (SELECT {key} FROM attempt)")
