"""Documentation of the database, generated from its schema: tables and views with columns, types and comments."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from exitbench.results.database.connection import open_database
from exitbench.results.database.current import views_script
from exitbench.results.tables import REFERENCES, TABLES
from exitbench.results.tables.declared import Column, Table

_SHARED: Final = "run_names"
"""View whose columns most other views share."""
_VIEW: Final = re.compile(r"^CREATE VIEW (\w+) AS\n.*?;$(?=\nCOMMENT)", re.MULTILINE | re.DOTALL)
_MACRO: Final = re.compile(
    r"^CREATE OR REPLACE MACRO (\w+\(.*?\)) AS\n.*?^COMMENT ON MACRO \w+ IS '(.*?[^'])';$", re.MULTILINE | re.DOTALL
)
_COLUMNS: Final = """
    SELECT column_name, data_type, coalesce(comment, '')
    FROM duckdb_columns() WHERE table_name = ? ORDER BY column_index
"""


@dataclass(frozen=True)
class View:
    """Documentation of a view.

    Attributes:
        name: Name of the view.
        description: Description of its rows.
        columns: Columns in order.
        sql: Statement that creates the view.
    """

    name: str
    description: str
    columns: tuple[Column, ...]
    sql: str


@cache
def described_views() -> tuple[View, ...]:
    """Return the documentation of every view, in the order of views.sql, from general to special."""
    created = {match[1]: match[0] for match in _VIEW.finditer(views_script())}
    with TemporaryDirectory() as folder, open_database(Path(folder) / "empty.duckdb", read_only=False) as database:
        comments = dict(database.rows("SELECT view_name, comment FROM duckdb_views() WHERE NOT internal")[1])
        return tuple(
            View(name, comments[name] or "", tuple(Column(*row) for row in database.rows(_COLUMNS, [name])[1]), sql)
            for name, sql in created.items()
        )


def described_macros() -> dict[str, str]:
    """Return the description of every macro in views.sql, by signature, such as ``is_measurable(low, high)``."""
    return {match[1]: " ".join(match[2].replace("''", "'").split()) for match in _MACRO.finditer(views_script())}


def schema_markdown() -> str:
    """Return the documentation of the database in Markdown: a diagram, and every view, macro and table."""
    views, tables = described_views(), sorted(TABLES.values(), key=lambda table: table.name)
    shared = [column.name for column in next(view for view in views if view.name == _SHARED).columns]
    parts = [
        "# The result database",
        "Made by `exitbench sql --schema`; do not edit. Ask the views: a view's name and columns stay, tables may\n"
        "change with a version. Any DuckDB reads the file; `exitbench sql` cannot change it.",
        "## How the tables hang together",
        "```mermaid\nerDiagram\n"
        + "".join(f"    {owner} ||--o{{ {table} : {column}\n" for table, column, owner in sorted(REFERENCES))
        + "```",
        "## Views",
        *(_chapter(view, shared) for view in views),
        "## Macros",
        *(f"`{name}`: {comment}" for name, comment in described_macros().items()),
        "## Tables",
        *(_chapter(table, []) for table in tables),
    ]
    return "\n\n".join(parts) + "\n"


def _chapter(relation: View | Table, shared: Sequence[str]) -> str:
    """Return the Markdown section on a table or view; a view's columns in `shared` are not listed again.

    `shared` has the columns of the view `run_names`; it is empty for tables.
    """
    columns = relation.columns
    names = [column.name for column in columns]
    # `params` is the last column of every view.
    inherits = relation.name != _SHARED and bool(shared) and [*names[: len(shared) - 1], names[-1]] == list(shared)
    lines = [f"### {relation.name}", "", " ".join(relation.description.split()), ""]
    if inherits:
        lines += [f"In addition to the columns of `{_SHARED}`:", ""]
    lines += ["| column | type | |", "|---|---|---|"]
    for column in columns[len(shared) - 1 : -1] if inherits else columns:
        needed = "" if isinstance(relation, View) or column.is_nullable else " NOT NULL"
        mark = " key" if column.key else needed
        lines.append(f"| {column.name} | {column.type}{mark} | {column.description} |")
    return "\n".join(lines)
