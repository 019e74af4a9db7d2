"""The one way rows enter the database in daily use."""

from collections.abc import Callable
from pathlib import Path

from exitbench.results.database import open_database
from exitbench.results.load import IngestReport, load_spool

__all__ = ["IngestReport", "ingest"]


def ingest(spool_root: Path, database_path: Path, progress: Callable[[int, int], None] | None = None) -> IngestReport:
    """Add every finished attempt in the spool that the database does not have.

    One transaction an attempt; only one process at a time, by the database's file lock; doing it again adds nothing.
    Corrupt attempts are reported by name and left alone.

    Args:
        spool_root: The spool; may be growing meanwhile.
        database_path: The database; created when missing.
        progress: Called with (attempts seen, attempts in the spool) after each.

    Raises:
        UserError: As `open_database`.
    """
    with open_database(database_path, read_only=False) as database:
        return load_spool(database.engine, spool_root, progress)
