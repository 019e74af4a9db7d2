"""Schema documentation from the schema itself: tables and views with their columns, types and comments."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from exitbench.results.database.connection import open_database
from exitbench.results.database.migrations import migration_scripts

_PACKAGE: Final = "exitbench.results.database"
_SHARED: Final = "run_names"
"""The view whose columns most others have."""
_VIEW: Final = re.compile(r"^CREATE VIEW (\w+) AS\n.*?;$(?=\nCOMMENT)", re.MULTILINE | re.DOTALL)
_MACRO: Final = re.compile(
    r"^CREATE OR REPLACE MACRO (\w+\(.*?\)) AS\n.*?^COMMENT ON MACRO \w+ IS '(.*?[^'])';$", re.MULTILINE | re.DOTALL
)
_TABLE: Final = re.compile(r"((?:^--.*\n)*)^CREATE TABLE (\w+) \(", re.MULTILINE)
_ABOUT: Final = {
    "schema_version": "One row per migration that was applied.",
    "view_source": "One row.",
    "published_source": "One row.",
    "environment": "One row per software environment: interpreter, packages, commit, variables.",
    "hardware": "One row per machine.",
    "model_artifact": "One row per model: digests of weights, configuration and tokenizer, and its shape.",
    "dataset_artifact": "One row per task on one set of documents.",
    "cell": "One row per cell: what was asked.",
    "attempt": "One row per attempt at a cell, whatever became of it.",
    "attempt_file": "Digests of spool files.",
    "sample": "One row per attempt and document: the answer and its scores.",
    "metric": "One row per attempt, metric and metric version.",
    "timing_sample": "One row per document, round, arm and phase of a timing attempt: raw times.",
    "token_exit": "One row per attempt, document and token: where it was emitted.",
    "document_exit": "One row per attempt and document with generated tokens.",
    "document_probe": "One row per attempt and document with probed tokens.",
    "quality_difference": "One row per attempt and part of its documents: the paired difference to full depth.",
    "sequence_block": "One row per attempt, document and block asked, of encoders: what it said.",
    "choice_token": "One row per attempt, document, choice and token: where it was scored.",
    "probe_token": "One row per attempt, document and probed token.",
    "score_token": "One row per attempt, document and probed token of a scores attempt.",
    "fit_curve": "One row per attempt and epoch of a fit.",
    "calibration_step": "One row per attempt and level tried.",
    "training_run": "One row per trained model: its recipe and training card.",
    "token_text": "One row per tokenizer and token id.",
    "training_log": "One row per step, block (NULL: the whole model) and metric of a training.",
}
_COLUMNS: Final = """
    SELECT
        c.column_name, c.data_type, c.is_nullable, list_contains(k.constraint_column_names, c.column_name) AS is_key,
        coalesce(c.comment, '') AS comment
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
        comment: What a view's column is; empty for a table's.
    """

    name: str
    type: str
    nullable: bool
    key: bool
    comment: str


@dataclass(frozen=True)
class Relation:
    """A table or view.

    Attributes:
        name: Its name.
        comment: What it holds.
        columns: In order.
        sql: What created a view; empty for a table.
    """

    name: str
    comment: str
    columns: tuple[Column, ...]
    sql: str


@cache
def described_views() -> tuple[Relation, ...]:
    """Return every view in the order of views.sql, which goes from the general to the special."""
    script = (files(_PACKAGE) / "views.sql").read_text(encoding="utf-8")
    created = {match[1]: match[0] for match in _VIEW.finditer(script)}
    relations = _relations("SELECT view_name, comment FROM duckdb_views() WHERE NOT internal", created)
    return tuple(relations[name] for name in created)


def described_macros() -> dict[str, str]:
    """Return what every macro that goes with the views does, by its name and parameters."""
    script = (files(_PACKAGE) / "views.sql").read_text(encoding="utf-8")
    return {match[1]: " ".join(match[2].replace("''", "'").split()) for match in _MACRO.finditer(script)}


@cache
def described_tables() -> tuple[Relation, ...]:
    """Return every table, by name; its comment is what is known below and what stands above it in the migrations."""
    above: dict[str, str] = {}
    for script in migration_scripts():
        for match in _TABLE.finditer(script):
            above[match[2]] = " ".join(line.removeprefix("--").strip() for line in match[1].splitlines())
    relations = _relations("SELECT table_name, NULL FROM duckdb_tables()", {})
    return tuple(
        Relation(name, f"{_ABOUT.get(name, '')} {above.get(name, '')}".strip(), relation.columns, "")
        for name, relation in sorted(relations.items())
    )


def schema_markdown() -> str:
    """Return a document on all of it: a picture, every view, every table."""
    views, tables = described_views(), described_tables()
    shared = [column.name for column in next(view for view in views if view.name == _SHARED).columns]
    parts = [
        "# The result database",
        "Made by `exitbench sql --schema`; do not edit. Ask the views: a view's name and columns stay, tables may\n"
        "change with a migration. Any DuckDB reads the file; `exitbench sql` cannot change it.",
        "## How the tables hang together",
        "```mermaid\nerDiagram\n" + "\n".join(f"    {line}" for line in _references(tables)) + "\n```",
        "## Views",
        *(_chapter(view, shared) for view in views),
        "## Macros",
        *(f"`{name}`: {comment}" for name, comment in described_macros().items()),
        "## Tables",
        *(_chapter(table, []) for table in tables),
    ]
    return "\n\n".join(parts) + "\n"


def _references(tables: Sequence[Relation]) -> list[str]:
    """Return the references between tables: columns that are the whole key of another table of rows."""
    keys = {table.name: [column.name for column in table.columns if column.key] for table in tables}
    # Tables of one row have no key by which another refers to them.
    owners = {key[0]: name for name, key in keys.items() if len(key) == 1 < len(_column_names(tables, name))}
    return [
        f"{owners[column.name]} ||--o{{ {table.name} : {column.name}"
        for table in tables
        for column in table.columns
        if owners.get(column.name, table.name) != table.name
    ]


def _column_names(relations: Sequence[Relation], name: str) -> list[str]:
    return [column.name for relation in relations if relation.name == name for column in relation.columns]


def _chapter(relation: Relation, shared: Sequence[str]) -> str:
    """Return the text on a table or view; columns that most views begin with are told once."""
    columns = relation.columns
    names = [column.name for column in columns]
    # `params` is the last of every view.
    inherits = relation.name != _SHARED and bool(shared) and [*names[: len(shared) - 1], names[-1]] == list(shared)
    lines = [f"### {relation.name}", "", " ".join(relation.comment.split()), ""]
    if inherits:
        lines += [f"Beside the columns of `{_SHARED}`:", ""]
    lines += ["| column | type | |", "|---|---|---|"]
    for column in columns[len(shared) - 1 : -1] if inherits else columns:
        mark = "key" if column.key else "" if column.nullable or relation.sql else "never NULL"
        lines.append(f"| {column.name} | {column.type} | {column.comment or mark} |")
    return "\n".join(lines)


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
