"""Ingest: the one way rows enter the database in daily use."""

from collections.abc import Callable
from pathlib import Path

from exitbench.results.database.access_lock import yield_to_waiters
from exitbench.results.database.connection import Database, open_database
from exitbench.results.database.patience import patiently
from exitbench.results.ingest.load import IngestReport, SpoolLoader

__all__ = ["IngestReport", "ingest"]


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
