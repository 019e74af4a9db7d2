"""``exitbench sql``: one read-only query over the result database."""

import sys
from argparse import Namespace

import duckdb

from exitbench.errors import UserError
from exitbench.harness.commands.folders import Runs
from exitbench.harness.commands.rows import FORMATS
from exitbench.results.database import open_database

_READING = ("SELECT", "EXPLAIN")


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
    FORMATS[arguments.format](table.column_names, rows)
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
