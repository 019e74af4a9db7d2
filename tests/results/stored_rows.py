"""Rows of a database or of a lake, for comparison."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from exitbench.results.database.connection import Database, open_database
from exitbench.results.database.tables import declared_tables, quoted
from exitbench.results.tables import TABLES

RowsByTable = dict[str, list[str]]


def query_rows(
    database: Database, sql: str, parameters: Sequence[Any] | Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Return the rows of a query. `Database.query` plans a query twice, which takes most of the time for few rows."""
    names, rows = database.rows(sql, parameters or None)
    return [dict(zip(names, row, strict=True)) for row in rows]


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
