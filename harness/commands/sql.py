"""``exitbench sql``: one read-only query over the result database."""

import csv
import json
import sys
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

import duckdb

from exitbench.errors import UserError
from exitbench.harness.commands.folders import Runs
from exitbench.results.database import open_database

_READING = ("SELECT", "EXPLAIN")

Row = Sequence[Any]


def sql(arguments: Namespace) -> int:
    """Print the rows of a query.

    Raises:
        UserError: The query is not one statement that only reads, or DuckDB does not accept it.
    """
    query = sys.stdin.read() if arguments.query == "-" else arguments.query
    require_reading(query)
    with open_database(arguments.database or Runs(arguments.runs).database) as database:
        table = database.query(query)
    rows = list(zip(*(column.to_pylist() for column in table.columns), strict=True))
    _FORMATS[arguments.format](table.column_names, rows)
    return 0


def require_reading(query: str) -> None:
    """Check that a query is one statement and only reads; the connection could not write anyway.

    Raises:
        UserError: It is not.
    """
    try:
        statements = duckdb.extract_statements(query)
    except duckdb.Error as error:
        raise UserError(f"The query failed: {error}") from None
    kinds = [statement.type.name for statement in statements]
    if len(kinds) != 1:
        raise UserError(f"{len(kinds)} statements were given; exactly one is allowed.")
    if kinds[0] not in _READING:
        raise UserError(f"{kinds[0]} is refused: the database is read-only here. Allowed: {', '.join(_READING)}.")


def _print_table(names: Row, rows: Sequence[Row]) -> None:
    cells = [[_text(value) for value in row] for row in (names, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    numeric = [bool(rows) and all(isinstance(row[n], int | float | None) for row in rows) for n in range(len(names))]
    lines = [
        "  ".join(
            c.rjust(w) if right else c.ljust(w) for c, w, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in cells
    ]
    print("\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]]))


def _print_csv(names: Row, rows: Sequence[Row]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerows([names, *([_csv_value(value) for value in row] for row in rows)])


def _print_json(names: Row, rows: Sequence[Row]) -> None:
    print(json.dumps([dict(zip(names, row, strict=True)) for row in rows], default=str, ensure_ascii=False, indent=1))


def _text(value: Any) -> str:
    """A value for a terminal: control characters, which a model may have written, are spelled out."""
    text = "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _csv_value(value: Any) -> Any:
    return json.dumps(value, default=str, ensure_ascii=False) if isinstance(value, list | dict) else value


_FORMATS = {"table": _print_table, "csv": _print_csv, "json": _print_json}
