"""What the columns of views are (`columns.toml`), as comments in the database: whoever opens it reads them there."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Final

import duckdb

from exitbench.results.database.tables import quoted, quoted_text

SHARED: Final = "every_view"
"""The table of columns that mean one thing wherever they are."""
_COLUMNS: Final = """
    SELECT c.table_name, c.column_name
    FROM duckdb_columns() AS c
    JOIN duckdb_views() AS v ON v.view_oid = c.table_oid AND v.database_name = c.database_name
    WHERE NOT v.internal AND v.database_name = current_database()
"""


def comments_script() -> str:
    """Return the text that comments are made of."""
    return (files("exitbench.results.database") / "columns.toml").read_text(encoding="utf-8")


@cache
def told_columns() -> Mapping[str, Mapping[str, str]]:
    """Return the meaning of columns by view, and under `SHARED` of those of every view."""
    told: Mapping[str, Mapping[str, str]] = tomllib.loads(comments_script())
    return told


def comment_on_columns(duck: duckdb.DuckDBPyConnection) -> None:
    """Say of every column of every view what it is."""
    found: Sequence[tuple[str, str]] = duck.execute(_COLUMNS).fetchall()
    for statement in _statements(found):
        duck.execute(statement)


def _statements(columns: Sequence[tuple[str, str]]) -> Iterator[str]:
    told = told_columns()
    for view, column in columns:
        meaning = told.get(view, {}).get(column) or told[SHARED].get(column)
        if meaning is not None:
            yield f"COMMENT ON COLUMN {quoted(view)}.{quoted(column)} IS {quoted_text(meaning)}"
