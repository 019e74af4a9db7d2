"""What the database holds, told by the schema itself: tables and views with their columns, types and comments."""

import re
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from exitbench.results.database import open_database

_PACKAGE: Final = "exitbench.results"
_VIEW: Final = re.compile(r"^CREATE VIEW (\w+) AS\n.*?;$(?=\nCOMMENT)", re.MULTILINE | re.DOTALL)
_TABLE: Final = re.compile(r"((?:^--.*\n)*)^CREATE TABLE (\w+) \(", re.MULTILINE)
_COLUMNS: Final = """
    SELECT c.column_name, c.data_type, c.is_nullable, list_contains(k.constraint_column_names, c.column_name) AS is_key
    FROM duckdb_columns() AS c
    LEFT JOIN duckdb_constraints() AS k ON k.table_name = c.table_name AND k.constraint_type = 'PRIMARY KEY'
    WHERE c.table_name = ? ORDER BY c.column_index
"""


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
        name: Its name.
        type: DuckDB's type.
        nullable: Whether it may be NULL; of a view it is not known and said to be.
        key: Whether it is part of the primary key.
    """

    name: str
    type: str
    nullable: bool
    key: bool


@dataclass(frozen=True)
class Relation:
    """A table or view.

    Attributes:
        name: Its name.
        comment: What it holds and what its columns mean.
        columns: In order.
        sql: What created a view; empty for a table.
    """

    name: str
    comment: str
    columns: tuple[Column, ...]
    sql: str


def described_views() -> tuple[Relation, ...]:
    """Return every view in the order of views.sql, which goes from the general to the special."""
    script = (files(_PACKAGE) / "views.sql").read_text(encoding="utf-8")
    created = {match[1]: match[0] for match in _VIEW.finditer(script)}
    found = _relations("SELECT view_name, comment FROM duckdb_views() WHERE NOT internal", created)
    return tuple(found[name] for name in created)


def described_tables() -> tuple[Relation, ...]:
    """Return every table, by name; its comment is the one above it in the migrations."""
    scripts = sorted(
        (f for f in files(f"{_PACKAGE}.migrations").iterdir() if f.name[-4:] == ".sql"), key=lambda f: f.name
    )
    comments: dict[str, str] = {}
    for script in scripts:
        for match in _TABLE.finditer(script.read_text(encoding="utf-8")):
            comments[match[2]] = " ".join(line.removeprefix("--").strip() for line in match[1].splitlines())
    found = _relations("SELECT table_name, NULL FROM duckdb_tables()", {})
    return tuple(
        Relation(name, comments.get(name, ""), relation.columns, "") for name, relation in sorted(found.items())
    )


def _relations(query: str, created: dict[str, str]) -> dict[str, Relation]:
    with TemporaryDirectory() as folder, open_database(Path(folder) / "empty.duckdb", read_only=False) as database:
        rows = [tuple(row.values()) for row in database.query(query).to_pylist()]
        return {
            name: Relation(
                name,
                comment or "",
                tuple(Column(*row.values()) for row in database.query(_COLUMNS, [name]).to_pylist()),
                created.get(name, ""),
            )
            for name, comment in rows
        }
