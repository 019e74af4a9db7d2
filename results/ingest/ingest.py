"""Ingest: add the attempts in the spool to the database, or rebuild the database from the spool."""

import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from exitbench.errors import UserError
from exitbench.results.database.access import (
    AccessLock,
    DatabaseInUse,
    acquire,
    holder,
    retry_while_in_use,
    yield_to_waiters,
)
from exitbench.results.database.connection import (
    WAIT_S,
    DamagedDatabase,
    Database,
    connect,
    create_folder,
    log_of,
    open_database,
    require_complete,
)
from exitbench.results.database.current import is_empty, name_and_catalogue
from exitbench.results.files.duckdb_files import require_duckdb_file
from exitbench.results.ingest.load import IngestReport, SpoolLoader
from exitbench.terminal import number_of


def ingest(
    spool_root: Path,
    database_path: Path,
    progress: Callable[[int, int], None] | None = None,
    *,
    on_wait: Callable[[str], None] | None = None,
) -> IngestReport:
    """Add to the database every finished attempt in the spool that it lacks.

    An attempt is added completely or not at all. Only one process writes at a time; it releases the database when
    another process waits. Damaged attempts are reported and moved to the spool's quarantine.

    Args:
        spool_root: The spool; attempts may be in progress.
        database_path: The database; created if missing.
        progress: Called after each group of attempts with (attempts seen, attempts in the spool).
        on_wait: Called with a message if another process has the database open. The wait for that process is then
            unlimited if it runs ExitBench, else `PATIENCE_S`. Without `on_wait`, the wait is at most `WAIT_S` seconds.

    Raises:
        UserError: As for `open_database`.
    """
    loader = SpoolLoader(spool_root, progress)

    def opened() -> Database:
        return open_database(database_path, read_only=False)

    while not loader.finished:
        with opened() if on_wait is None else retry_while_in_use(opened, on_wait) as database:
            loader.load(database.engine, until=database.has_waiters)
        yield_to_waiters(database_path)
    return loader.report


_REBUILD_WAIT_S: Final = 60.0
_MAX_SHOWN_ATTEMPTS: Final = 5


def rebuild(
    spool_root: Path, path: Path, progress: Callable[[int, int], None] | None = None, *, forget: bool = False
) -> IngestReport:
    """Build a new database from the spool, next to the old one at `path`, then replace the old one.

    The old one may be damaged; readers that have it open continue to read it. Attempts that another process ingests in
    the meantime are added by the next ingest, since the spool keeps them.

    Args:
        spool_root: The spool.
        path: The database; it need not exist, and may be of another version.
        progress: Called with (attempts seen, attempts in the spool).
        forget: True if the new database may lack attempts of the old one.

    Raises:
        UserError: As for `open_database`. Or the existing file is kept, since it is no database of ExitBench or has
            attempts that the new one would lack.
    """
    require_duckdb_file(path)
    if path.is_symlink():  # a link to another disk is kept
        path = path.resolve()
    create_folder(path.parent)
    with TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        new = Path(folder) / path.name
        loader = SpoolLoader(spool_root, progress)
        with open_database(new, read_only=False) as database:
            loader.load(database.engine)
        require_complete(new)
        # Open while it is replaced, so that no writer is left with a log next to the new file.
        with _connect_or_lock(path) as old:
            if isinstance(old, Database):
                _require_replaceable(old, new, loader.report, forget)
            log_of(path).unlink(missing_ok=True)
            new.replace(path)
    return loader.report


def _require_replaceable(old: Database, new: Path, report: IngestReport, forget: bool) -> None:
    """Check that the old database is of ExitBench or empty and, unless `forget`, that the new one lacks no attempt.

    Raises:
        UserError: The old database must be kept.
    """
    name, catalogue = name_and_catalogue(old.duck)
    if is_empty(old.duck, name, catalogue, str(old.path)) or forget:
        return
    if "attempt" not in catalogue.tables:
        raise UserError(f"{old.path} is not replaced: it has no table attempt. Add --force to replace it.")
    _require_all(old, new, report)


def _require_all(old: Database, new: Path, report: IngestReport) -> None:
    """Raise UserError if the new database lacks an attempt of the old one, such as one since damaged in the spool."""
    before = set(old.query("SELECT attempt_id AS a FROM attempt")["a"].to_pylist())
    with open_database(new) as database:
        lost = before - set(database.query("SELECT attempt_id AS a FROM attempt")["a"].to_pylist())
    if lost:
        why = "\n  ".join(report.quarantined[:_MAX_SHOWN_ATTEMPTS])
        raise UserError(
            f"{old.path} is not replaced: it has {number_of(len(lost), 'attempt')} that the spool no longer has, "
            f"such as {min(lost)}. `exitbench export` saves them; add --force to discard them."
            + (f"\n  {why}" if why else "")
        )


def _connect_or_lock(path: Path) -> "Database | AccessLock":
    """Return a database opened for writing, or only its exclusive access lock if the file is too damaged to open."""
    try:
        return connect(path, read_only=False, wait_s=_REBUILD_WAIT_S)
    except DamagedDatabase:
        lock = acquire(path, exclusive=True, deadline=time.monotonic() + WAIT_S)
        if lock is None:
            raise DatabaseInUse(path, holder(path), WAIT_S) from None
        return lock
