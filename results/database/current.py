"""Check that a database is as this version creates it: tables, views, macros, comments, and results of papers."""

import hashlib
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Final

import duckdb

from exitbench.errors import UserError
from exitbench.results.database.published import digest as publications_digest
from exitbench.results.database.tables import (
    Catalogue,
    ColumnDefinition,
    catalogue_with,
    declared_tables,
    printable,
    quoted,
    quoted_text,
    read_catalogue,
    require_columns,
    require_tables,
)
from exitbench.results.files.formats import content_id
from exitbench.results.tables import SCHEMA_VERSION, TABLES, schema_sql

SHARED: Final = "every_view"
"""Section of columns with the same meaning in all views."""
ROWS_OF: Final = "rows_of"
"""Section that names the tables whose rows a view shows."""
_COLUMNS: Final = """
    SELECT c.table_name, c.column_name
    FROM duckdb_columns() AS c
    JOIN duckdb_views() AS v ON v.view_oid = c.table_oid AND v.database_name = c.database_name
    WHERE NOT v.internal AND v.database_name = current_database()
"""


@cache
def comments_source() -> tuple[str, ...]:
    """Return the texts that define all comments: a TOML file for views' columns, and SQL statements for tables."""
    return (_columns_toml(), *(statement for table in TABLES for statement in _on_table(table)))


@cache
def sections() -> Mapping[str, Mapping[str, Any]]:
    """Return the parsed `columns.toml`: descriptions of columns by view, and the sections `SHARED` and `ROWS_OF`.

    `SHARED` describes columns that many views have; `ROWS_OF` names the tables whose rows a view shows.
    """
    parsed: Mapping[str, Mapping[str, Any]] = tomllib.loads(_columns_toml())
    return parsed


def column_description(view: str, column: str) -> str | None:
    """Return the description of a view's column; None if there is none.

    It is the one declared for this view, else the one shared by all views. Otherwise it is that of the column of this
    name in a table whose rows the view shows.
    """
    view_columns, shared = sections().get(view, {}), sections()[SHARED]
    of_tables = (
        entry.description for table in shown_tables(view) for entry in TABLES[table].columns if entry.name == column
    )
    text: str | None = view_columns.get(column) or shared.get(column) or next(of_tables, None)
    return text


def shown_tables(view: str) -> Sequence[str]:
    """Return the names of tables whose rows a view shows and whose column descriptions therefore apply to the view."""
    tables: Sequence[str] = sections()[ROWS_OF].get(view, ())
    return tables


def comment_on_everything(duck: duckdb.DuckDBPyConnection) -> None:
    """Write the descriptions of all tables and of the columns of tables and views into a database, as SQL comments."""
    columns: Sequence[tuple[str, str]] = duck.execute(_COLUMNS).fetchall()
    for table in TABLES:
        for statement in _on_table(table):
            duck.execute(statement)
    for view, column in columns:
        if (text := column_description(view, column)) is not None:
            duck.execute(_on_column(view, column, text))


def _columns_toml() -> str:
    return (files("exitbench.results.database") / "columns.toml").read_text(encoding="utf-8")


def _on_table(name: str) -> Iterator[str]:
    yield f"COMMENT ON TABLE {quoted(name)} IS {quoted_text(TABLES[name].description)}"
    yield from (_on_column(name, column.name, column.description) for column in TABLES[name].columns)


def _on_column(relation: str, column: str, text: str) -> str:
    return f"COMMENT ON COLUMN {quoted(relation)}.{quoted(column)} IS {quoted_text(text)}"


_PACKAGE: Final = "exitbench.results.database"
_VERSION_COLUMNS: Final = {
    "version": ColumnDefinition("INTEGER", False, None, False),
    "applied_at": ColumnDefinition("TIMESTAMP", False, None, False),
    "tool": ColumnDefinition("VARCHAR", False, None, False),
}
"""Columns of the table with the schema version, the same in every version of ExitBench."""
_VERSION_TABLE: Final = "schema_version"
_DIFFERENCES: Final = "2"
"""Version of the computation of `quality_difference`; databases with rows of another version compute them again."""
_ALWAYS_THERE: Final = frozenset({_VERSION_TABLE, "cell", "attempt"})
"""Tables of every result database; other programs also have a table named `schema_version`."""
_ANYTHING: Final = """
    SELECT schema_name FROM system.main.duckdb_schemas()
    WHERE database_name = $database AND schema_name NOT IN ('main', 'information_schema', 'pg_catalog')
    UNION ALL SELECT sequence_name FROM system.main.duckdb_sequences() WHERE database_name = $database
    UNION ALL SELECT function_name FROM system.main.duckdb_functions()
    WHERE database_name = $database AND NOT internal
    UNION ALL SELECT type_name FROM system.main.duckdb_types() WHERE database_name = $database AND NOT internal
"""
"""Names of objects other than tables and views of the schema `main`."""
_ADVICE: Final = (
    "`exitbench db rebuild` rebuilds it from its spool. Results whose spool is elsewhere can be exported by the "
    "version that created the database (`exitbench export`)."
)


def is_up_to_date(duck: duckdb.DuckDBPyConnection, location: str) -> bool:
    """Return whether a database's tables, views, macros and published results are those of this version of ExitBench.

    Extra tables are allowed. `location` names the database in messages.

    Raises:
        UserError: As for `has_these_tables`.
    """
    name, contents = name_and_catalogue(duck)
    return (
        has_these_tables(duck, name, contents, location)
        and declared_tables().items() <= contents.tables.items()
        and views_are_current(duck, contents)
        and publications_are_current(duck)
    )


def has_these_tables(duck: duckdb.DuckDBPyConnection, database: str, catalogue: Catalogue, location: str) -> bool:
    """Return True if an attached database has the tables of this version, or False if it is empty.

    Args:
        duck: The connection.
        database: Name of the database in the connection.
        catalogue: Contents of the database.
        location: Name of the database in messages.

    Raises:
        UserError: The database is of another program or another version; the message says which, and what to do.
    """
    if is_empty(duck, database, catalogue, location):
        return False
    table = _VERSION_TABLE
    require_columns(catalogue.tables[table], _VERSION_COLUMNS, f"{location}: table {table}")
    # Sorted, not with max, which the database may define as a macro.
    latest = duck.execute(
        f"SELECT version, tool FROM {quoted(database)}.main.{table} ORDER BY version DESC LIMIT 1"
    ).fetchone()
    if latest is None or latest[0] < 1:
        raise UserError(f"{location}: table {table} does not contain the schema version of the database.")
    version, tool = latest
    if version != SCHEMA_VERSION:
        raise UserError(
            f"{location} is a result database of another version of ExitBench (schema {version}, made by "
            f"{printable(tool)}); this one reads schema {SCHEMA_VERSION} only. {_ADVICE}"
        )
    try:
        require_tables(catalogue.tables, location)
    except UserError as fault:
        raise UserError(f"{fault} It was created by another version of ExitBench, or changed. {_ADVICE}") from fault
    return True


def is_empty(duck: duckdb.DuckDBPyConnection, database: str, catalogue: Catalogue, location: str) -> bool:
    """Return True if an attached database is empty, or False if it is a database of ExitBench.

    Arguments as in `has_these_tables`.

    Raises:
        UserError: The database is neither empty nor one of ExitBench.
    """
    if _VERSION_TABLE in catalogue.tables and catalogue.tables.keys() | catalogue.views.keys() >= _ALWAYS_THERE:
        return False
    if catalogue.tables or catalogue.views or duck.execute(_ANYTHING, {"database": database}).fetchall():
        raise UserError(f"{location} is a DuckDB database, but not one of ExitBench. Name another file.")
    return True


def name_and_catalogue(duck: duckdb.DuckDBPyConnection) -> tuple[str, Catalogue]:
    """Return the name under which a connection has opened its database file, and the contents of the database."""
    attached = duck.execute("SELECT database_name, path FROM system.main.duckdb_databases()").fetchall()
    (name,) = (name for name, path in attached if path is not None)
    return name, read_catalogue(duck, name)


def views_are_current(duck: duckdb.DuckDBPyConnection, contents: Catalogue) -> bool:
    """Return whether a database's views, macros and comments are those of this version of ExitBench.

    Extra views are allowed. Extra macros or types are not, since they could shadow a name that the views use.

    Args:
        duck: Connection to the database.
        contents: Catalogue of the database, as from `name_and_catalogue`.
    """
    expected = catalogue_with(views_script(), contents.storage)
    return (
        expected.views.items() <= contents.views.items()
        and (contents.macros, contents.types) == (expected.macros, expected.types)
        and _stored_digest(duck, "view_source") == views_digest()
    )


def publications_are_current(duck: duckdb.DuckDBPyConnection) -> bool:
    """Return whether table `published_result` (values printed in papers) has the rows of this version of ExitBench."""
    return _stored_digest(duck, "published_source") == publications_digest()


def _stored_digest(duck: duckdb.DuckDBPyConnection, table: str) -> str | None:
    """Return the digest stored in a table of one row; None if the table has no row or several."""
    rows = duck.execute(f"SELECT sha256 FROM {table}").fetchall()
    return rows[0][0] if len(rows) == 1 else None


def views_script() -> str:
    """Return the SQL script that creates all views and macros."""
    return (files(_PACKAGE) / "views.sql").read_text(encoding="utf-8")


def views_digest() -> str:
    """Return the digest of this version's views, macros, comments and differences, as stored in `view_source`."""
    return hashlib.sha256("".join((views_script(), *comments_source(), _DIFFERENCES)).encode()).hexdigest()


def version() -> str:
    """Return a digest of all tables, views, macros, comments and published results that this version creates."""
    return content_id([schema_sql(), views_digest(), publications_digest()])
