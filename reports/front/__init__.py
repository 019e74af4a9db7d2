"""First screen of the page: what ran, and the recommended settings."""

from dataclasses import dataclass
from pathlib import Path

from exitbench.reports.frame import Frame, Row
from exitbench.results.database.connection import Database

_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Front:
    """Rows for the page's first screen that no table shows: results of title.sql (runs) and exports.sql (suites)."""

    runs: tuple[Row, ...]
    exports: tuple[Row, ...]


def read_front(database: Database) -> Front:
    """Return the rows for the page's first screen, by running the queries title.sql and exports.sql."""
    return Front(
        *(Frame.query(database, (_HERE / name).read_text("utf-8")).rows for name in ("title.sql", "exports.sql"))
    )
