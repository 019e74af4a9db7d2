"""Descriptions of tables, views and their columns as comments in the database: whoever opens it reads them there.

A view's column is what `columns.toml` says of that view, else of every view, else what the tables say whose rows the
view shows.
"""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Final

import duckdb

from exitbench.results.database.tables import quoted, quoted_text
from exitbench.results.tables import TABLES

SHARED: Final = "every_view"
"""The section of columns that mean one thing wherever they are."""
ROWS_OF: Final = "rows_of"
"""The section that says of which tables a view shows rows."""
_COLUMNS: Final = """
    SELECT c.table_name, c.column_name
    FROM duckdb_columns() AS c
    JOIN duckdb_views() AS v ON v.view_oid = c.table_oid AND v.database_name = c.database_name
    WHERE NOT v.internal AND v.database_name = current_database()
"""


def comments_source() -> list[str]:
    """Return the texts that comments are made of."""
    return [_columns_toml(), *(statement for table in TABLES for statement in _on_table(table))]


@cache
def sections() -> Mapping[str, Mapping[str, Any]]:
    """Return the sections of `columns.toml`: of every view that needs one, `SHARED` and `ROWS_OF`."""
    parsed: Mapping[str, Mapping[str, Any]] = tomllib.loads(_columns_toml())
    return parsed


def described(view: str, column: str) -> str | None:
    """Return what a view's column is; None where nothing says it."""
    own, shared = sections().get(view, {}), sections()[SHARED]
    of_tables = (one.about for table in shown_tables(view) for one in TABLES[table].columns if one.name == column)
    text: str | None = own.get(column) or shared.get(column) or next(of_tables, None)
    return text


def shown_tables(view: str) -> Sequence[str]:
    """Return the tables of which a view shows rows, as far as they describe its columns."""
    tables: Sequence[str] = sections()[ROWS_OF].get(view, ())
    return tables


def comment_on_everything(duck: duckdb.DuckDBPyConnection) -> None:
    """Write the comments of a database with all its tables and views."""
    columns: Sequence[tuple[str, str]] = duck.execute(_COLUMNS).fetchall()
    for table in TABLES:
        for statement in _on_table(table):
            duck.execute(statement)
    for view, column in columns:
        if (text := described(view, column)) is not None:
            duck.execute(_on_column(view, column, text))


def _columns_toml() -> str:
    return (files("exitbench.results.database") / "columns.toml").read_text(encoding="utf-8")


def _on_table(name: str) -> Iterator[str]:
    yield f"COMMENT ON TABLE {quoted(name)} IS {quoted_text(TABLES[name].about)}"
    yield from (_on_column(name, column.name, column.about) for column in TABLES[name].columns)


def _on_column(relation: str, column: str, text: str) -> str:
    return f"COMMENT ON COLUMN {quoted(relation)}.{quoted(column)} IS {quoted_text(text)}"
