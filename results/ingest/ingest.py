"""Ingest, the one way rows enter the database in daily use, and rebuilding a database from its spool."""

import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from exitbench.errors import UserError
from exitbench.results.database.access import AccessLock, DatabaseInUse, acquire, holder, patiently, yield_to_waiters
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
from exitbench.results.database.current import find, is_empty
from exitbench.results.files.duckdb_files import require_duckdb_file
from exitbench.results.ingest.load import IngestReport, SpoolLoader, load_spool
from exitbench.terminal import number_of


def ingest(
    spool_root: Path,
    database_path: Path,
    progress: Callable[[int, int], None] | None = None,
    *,
    say: Callable[[str], None] | None = None,
) -> IngestReport:
    """Add every finished attempt in the spool that the database does not have.

    An attempt is added whole or not at all; only one process writes at a time, by the database's file lock, and lets
    go of it as soon as somebody waits; doing it again adds nothing. Damaged attempts are reported and moved to the
    spool's quarantine.

    Args:
        spool_root: The spool; may be growing meanwhile.
        database_path: The database; created when missing.
        progress: Called with (attempts seen, attempts in the spool) after each.
        say: Told whom it waits for, which it then does as long as `patiently` does; without it, `open_database`'s wait.

    Raises:
        UserError: As `open_database`.
    """
    loader = SpoolLoader(spool_root, progress)

    def opened() -> Database:
        return open_database(database_path, read_only=False)

    while not loader.done:
        with opened() if say is None else patiently(opened, say) as database:
            loader.load(database.engine, until=database.has_waiters)
        yield_to_waiters(database_path)
    return loader.report


_REBUILD_WAIT_S: Final = 60.0
_SHOWN: Final = 5


def rebuild(
    spool_root: Path, path: Path, progress: Callable[[int, int], None] | None = None, *, forget: bool = False
) -> IngestReport:
    """Build the database anew from the spool beside `path`, then put it in place of the old one.

    Readers keep the old one until they open it again; it may be damaged. What another process ingests meanwhile is
    found by the next ingest, since the spool keeps it.

    Args:
        spool_root: The spool.
        path: The database; need not exist, and may be of another version.
        progress: Called with (attempts seen, attempts in the spool).
        forget: Whether the new database may lack attempts that the old one has.

    Raises:
        UserError: As `open_database`; or what is there was not made by ExitBench, or has attempts that the new one
            would lack: it stays.
    """
    require_duckdb_file(path)
    if path.is_symlink():  # to another disk: the link stays
        path = path.resolve()
    create_folder(path.parent)
    with TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        beside = Path(folder) / path.name
        with open_database(beside, read_only=False) as database:
            report = load_spool(database.engine, spool_root, progress)
        require_complete(beside)
        # Held open while it is replaced, so that no writer is left with a log beside the new file.
        with _connect_or_lock(path) as old:
            if isinstance(old, Database):
                _require_replaceable(old, beside, report, forget)
            log_of(path).unlink(missing_ok=True)
            beside.replace(path)
    return report


def _require_replaceable(old: Database, new: Path, report: IngestReport, forget: bool) -> None:
    """Check that a database is one of ExitBench, and unless told to forget them that none of its attempts is lost."""
    name, catalogue = find(old.duck)
    if is_empty(old.duck, name, catalogue, str(old.path)) or forget:
        return
    if "attempt" not in catalogue.tables:
        raise UserError(f"{old.path} is kept: it has no table attempt. Add --force to replace it.")
    _require_all(old, new, report)


def _require_all(old: Database, new: Path, report: IngestReport) -> None:
    """Check that no attempt is lost: one that was read well when it was ingested may be damaged in the spool by now."""
    before = set(old.query("SELECT attempt_id AS a FROM attempt")["a"].to_pylist())
    with open_database(new) as database:
        lost = before - set(database.query("SELECT attempt_id AS a FROM attempt")["a"].to_pylist())
    if lost:
        why = "\n  ".join(report.quarantined[:_SHOWN])
        raise UserError(
            f"{old.path} is kept: it has {number_of(len(lost), 'attempt')} that cannot be read from the spool any "
            f"more, such as {min(lost)}. `exitbench export` saves them; add --force to do without them."
            + (f"\n  {why}" if why else "")
        )


def _connect_or_lock(path: Path) -> "Database | AccessLock":
    """Hold the database alone, or the lock at it where it is too damaged to be opened."""
    try:
        return connect(path, read_only=False, wait_s=_REBUILD_WAIT_S)
    except DamagedDatabase:
        lock = acquire(path, alone=True, deadline=time.monotonic() + WAIT_S)
        if lock is None:
            raise DatabaseInUse(path, holder(path), WAIT_S) from None
        return lock
