"""All rows of a database or of a lake, for comparison."""

from pathlib import Path

from exitbench.results.database.connection import Database, open_database
from exitbench.results.database.tables import declared_tables, quoted
from exitbench.results.tables import TABLES

RowsByTable = dict[str, list[str]]


def rows_by_table(stored: Path | Database) -> RowsByTable:
    """Return the sorted rows of every table except `schema_version`, which has the date of creation.

    They are texts, since NaN is not equal to itself.
    """
    if isinstance(stored, Path):
        with open_database(stored) as opened:
            return rows_by_table(opened)
    names = [name for name in declared_tables() if name != "schema_version"]
    return {name: sorted(map(repr, stored.rows(f"FROM {quoted(name)}")[1])) for name in names}


def imported_rows(stored: Path | Database) -> RowsByTable:
    """Return the rows of the tables that an import fills."""
    return {name: rows for name, rows in rows_by_table(stored).items() if not TABLES[name].local}
