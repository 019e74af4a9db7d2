"""Tables, views and macros that a database has, and the tables that it should have.

Names of tables and columns in SQL come from here, never from a file: third-party files may use any names.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import duckdb

from exitbench.errors import UserError
from exitbench.results.files.duckdb_files import in_memory
from exitbench.results.tables import TABLES, schema_sql

_MAX_SHOWN_CHARS: Final = 60
_SETS: Final = re.compile(r"\b(?:EXCLUDE|REPLACE) \(")
# Catalogue functions by their full names, and no other functions: a macro of the database may shadow any.
_OF: Final = "WHERE database_name = $database AND schema_name = 'main'"
_TABLES: Final = f"SELECT table_name FROM system.main.duckdb_tables() {_OF}"
_COLUMNS: Final = f"""
    SELECT table_name, column_name, data_type, is_nullable, column_default, is_generated
    FROM system.main.duckdb_columns() {_OF}
"""
_VIEWS: Final = f"SELECT view_name, sql FROM system.main.duckdb_views() {_OF}"
_MACROS: Final = """
    SELECT function_name, function_type, parameters, macro_definition FROM system.main.duckdb_functions()
    WHERE database_name = $database AND NOT internal
"""
_TYPES: Final = "SELECT type_name FROM system.main.duckdb_types() WHERE database_name = $database AND NOT internal"
_TRIGGERS: Final = "SELECT trigger_name FROM system.main.duckdb_triggers() WHERE database_name = $database"
_STORAGE: Final = "SELECT tags FROM system.main.duckdb_databases() WHERE database_name = $database"


class ColumnDefinition(NamedTuple):
    """Definition of a table's column, as declared by ExitBench or as stored in a database.

    Attributes:
        type: Type as DuckDB writes it.
        nullable: True if the column may be NULL, and so may be missing in the source of rows.
        default: SQL expression of the default value; None for every declared column.
        generated: True if the column is computed, not stored; False for every declared column.
    """

    type: str
    nullable: bool
    default: str | None
    generated: bool


Columns = Mapping[str, ColumnDefinition]


@dataclass(frozen=True)
class Catalogue:
    """User-defined contents of a database.

    Attributes:
        tables: Columns by name, in order, of every table of the schema `main`.
        views: SQL of every view of the schema `main`, by name.
        macros: Name, type, parameters and definition of every macro.
        types: Names of types.
        triggers: Names of triggers.
        storage: Oldest version of DuckDB that can read the file, such as v1.2.0.
    """

    tables: Mapping[str, Columns]
    views: Mapping[str, str]
    macros: frozenset[tuple[str, str, tuple[str, ...], str]]
    types: frozenset[str]
    triggers: frozenset[str]
    storage: str


def quoted(name: str) -> str:
    """Return a name as a quoted SQL identifier, whatever characters it contains."""
    return '"' + name.replace('"', '""') + '"'


def quoted_text(text: str) -> str:
    """Return a text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def printable(name: str) -> str:
    """Return a third-party name for a message: quoted, shortened, without control characters."""
    return ascii(name if len(name) <= _MAX_SHOWN_CHARS else f"{name[:_MAX_SHOWN_CHARS]}...")


@cache
def declared_tables() -> Mapping[str, Columns]:
    """Return the declared columns of every table that a result database must have, by table name."""
    return {
        table.name: {
            column.name: ColumnDefinition(column.type, column.is_nullable, None, False) for column in table.columns
        }
        for table in TABLES.values()
    }


def read_catalogue(duck: duckdb.DuckDBPyConnection, database: str) -> Catalogue:
    """Return the tables, views, macros, types and triggers of an attached database, without running any view or macro.

    `database` is the name under which the connection has attached it.
    """

    def rows(query: str) -> list[tuple[Any, ...]]:
        return duck.execute(query, {"database": database}).fetchall()

    tables: dict[str, dict[str, ColumnDefinition]] = {name: {} for (name,) in rows(_TABLES)}
    for table, column, *about in rows(_COLUMNS):
        if table in tables:  # otherwise a column of a view
            tables[table][column] = ColumnDefinition(*about)
    macros = frozenset((name, kind, tuple(parameters), sql) for name, kind, parameters, sql in rows(_MACROS))
    types, triggers = (frozenset(name for (name,) in rows(query)) for query in (_TYPES, _TRIGGERS))
    ((tags,),) = rows(_STORAGE)
    storage = tags.get("storage_version", "").removesuffix("+")
    views = {name: _sorted(sql) for name, sql in rows(_VIEWS)}
    return Catalogue(tables, views, macros, types, triggers, storage)


def _sorted(sql: str) -> str:
    """Return a view's SQL with the columns of EXCLUDE and REPLACE sorted, which DuckDB writes in varying order."""
    parts, end = [], 0
    for match in _SETS.finditer(sql):
        if match.start() >= end:  # otherwise inside a set that is already sorted
            entries, closing = _entries(sql, match.end())
            parts += [sql[end : match.end()], ", ".join(sorted(entries))]
            end = closing
    return "".join((*parts, sql[end:]))


def _entries(sql: str, start: int) -> tuple[list[str], int]:
    """Return the comma-separated entries from `start` to the closing parenthesis, and the parenthesis's position."""
    entries, depth, is_quoted = [], 0, False
    for at in range(start, len(sql)):
        character = sql[at]
        if character == "'":
            is_quoted = not is_quoted
        elif not is_quoted:
            depth += (character == "(") - (character == ")")
            if depth < 0 or (character == "," and depth == 0):
                entries.append(sql[start:at].strip())
                start = at + 1
            if depth < 0:
                return entries, at
    return [*entries, sql[start:]], len(sql)


def require_tables(tables: Mapping[str, Columns], location: str) -> None:
    """Check that every declared table is among `tables` and has the declared columns; `location` is for messages.

    Raises:
        UserError: A table is missing or differs from its declaration; the message names it.
    """
    for table, expected in declared_tables().items():
        if table not in tables:
            raise UserError(f"{location} has no table {table}.")
        require_columns(tables[table], expected, f"{location}: table {table}")


def require_columns(columns: Columns, expected: Columns, location: str) -> None:
    """Check that a table has exactly the expected columns; `location` names the table in messages.

    Raises:
        UserError: A column is unknown, missing, of another type or computed; the message names it.
    """
    for name in columns:
        if name not in expected:
            raise UserError(f"{location} has a column {printable(name)}. Allowed: {', '.join(expected)}.")
    for name, column in expected.items():
        if name not in columns:
            raise UserError(f"{location} has no column {name}.")
        if columns[name].generated or columns[name].default is not None:
            raise UserError(f"{location}: column {name} has an expression; only stored values are read.")
        if columns[name].type != column.type:
            raise UserError(f"{location}: column {name} is {printable(columns[name].type)}, not {column.type}.")


@cache
def catalogue_with(views: str, storage: str) -> Catalogue:
    """Return the contents of a new database with the declared tables, and with the views and macros of a script.

    Args:
        views: SQL script that creates views and macros.
        storage: Oldest DuckDB version that can read the database; the stored text of a view depends on it.
    """
    with TemporaryDirectory(prefix="exitbench-") as folder:
        path = quoted_text(str(Path(folder) / "expected.duckdb"))
        with in_memory() as duck:
            duck.execute(f"ATTACH {path} AS expected (STORAGE_VERSION {quoted_text(storage)})")
            duck.execute("USE expected; BEGIN")  # a commit takes longer than all statements
            for script in (schema_sql(), views):
                duck.execute(script)
            duck.execute("COMMIT")
        with in_memory() as duck:
            duck.execute(f"ATTACH {path} AS expected (READ_ONLY)")
            return read_catalogue(duck, "expected")
