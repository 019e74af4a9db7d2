"""Whether a database is exactly as this version makes it: tables, views, macros, comments, and publications."""

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
    Column,
    catalogue_with,
    declared_tables,
    quoted,
    quoted_text,
    read_catalogue,
    require_columns,
    require_tables,
    spelled,
)
from exitbench.results.files.formats import content_id
from exitbench.results.tables import SCHEMA_VERSION, TABLES, schema_sql

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


_PACKAGE: Final = "exitbench.results.database"
_VERSION_COLUMNS: Final = {
    "version": Column("INTEGER", False, None, False),
    "applied_at": Column("TIMESTAMP", False, None, False),
    "tool": Column("VARCHAR", False, None, False),
}
"""Of the table that says of which schema a database is, in every version of ExitBench."""
_VERSION_TABLE: Final = "schema_version"
_ALWAYS_THERE: Final = frozenset({_VERSION_TABLE, "cell", "attempt"})
"""What every result database has; other programs too call a table `schema_version`."""
_ANYTHING: Final = """
    SELECT schema_name FROM system.main.duckdb_schemas()
    WHERE database_name = $database AND schema_name NOT IN ('main', 'information_schema', 'pg_catalog')
    UNION ALL SELECT sequence_name FROM system.main.duckdb_sequences() WHERE database_name = $database
    UNION ALL SELECT function_name FROM system.main.duckdb_functions()
    WHERE database_name = $database AND NOT internal
    UNION ALL SELECT type_name FROM system.main.duckdb_types() WHERE database_name = $database AND NOT internal
"""
"""Names of what a database may have besides tables and views of the schema `main`."""
_ADVICE: Final = (
    "`exitbench db rebuild` makes it anew from its spool. Results whose spool is elsewhere can be exported by the "
    "version that made the database (`exitbench export`)."
)


def is_up_to_date(duck: duckdb.DuckDBPyConnection, where: str) -> bool:
    """Whether views, macros and the tables beneath them are exactly this version's; more tables or views do no harm.

    Raises:
        UserError: As `has_these_tables`.
    """
    name, found = find(duck)
    return (
        has_these_tables(duck, name, found, where)
        and declared_tables().items() <= found.tables.items()
        and views_are_current(duck, found)
        and publications_are_current(duck)
    )


def has_these_tables(duck: duckdb.DuckDBPyConnection, database: str, catalogue: Catalogue, where: str) -> bool:
    """Return whether an attached database has the tables of this version; False if it is empty.

    Raises:
        UserError: It is not one of ExitBench, or of another version: says of which, and what to do.
    """
    if is_empty(duck, database, catalogue, where):
        return False
    table = _VERSION_TABLE
    require_columns(catalogue.tables[table], _VERSION_COLUMNS, f"{where}: table {table}")
    # Sorted, since max may be a macro of theirs.
    latest = duck.execute(
        f"SELECT version, tool FROM {quoted(database)}.main.{table} ORDER BY version DESC LIMIT 1"
    ).fetchone()
    if latest is None or latest[0] < 1:
        raise UserError(f"{where}: table {table} does not say of which schema the database is.")
    version, tool = latest
    if version != SCHEMA_VERSION:
        raise UserError(
            f"{where} is a result database of another version of ExitBench (schema {version}, made by "
            f"{spelled(tool)}); this one reads schema {SCHEMA_VERSION} only. {_ADVICE}"
        )
    try:
        require_tables(catalogue.tables, where)
    except UserError as fault:
        raise UserError(f"{fault} It was made by another version of ExitBench, or changed. {_ADVICE}") from fault
    return True


def is_empty(duck: duckdb.DuckDBPyConnection, database: str, catalogue: Catalogue, where: str) -> bool:
    """Return whether an attached database holds nothing; if it holds anything, it is one of ExitBench.

    Raises:
        UserError: It holds something and is not one of ExitBench.
    """
    if _VERSION_TABLE in catalogue.tables and catalogue.tables.keys() | catalogue.views.keys() >= _ALWAYS_THERE:
        return False
    if catalogue.tables or catalogue.views or duck.execute(_ANYTHING, {"database": database}).fetchall():
        raise UserError(f"{where} is a DuckDB database, but not one of ExitBench. Name another file.")
    return True


def find(duck: duckdb.DuckDBPyConnection) -> tuple[str, Catalogue]:
    """Return the name that the file has in its connection, and what is in it."""
    attached = duck.execute("SELECT database_name, path FROM system.main.duckdb_databases()").fetchall()
    (name,) = (name for name, path in attached if path is not None)
    return name, read_catalogue(duck, name)


def views_are_current(duck: duckdb.DuckDBPyConnection, found: Catalogue) -> bool:
    """Whether the views are those that the file says they are, and nothing that they call is called like another."""
    expected = catalogue_with(views_script(), found.storage)
    return (
        expected.views.items() <= found.views.items()
        and (found.macros, found.types) == (expected.macros, expected.types)
        and _said(duck, "view_source") == views_digest()
    )


def publications_are_current(duck: duckdb.DuckDBPyConnection) -> bool:
    """Whether the database has what this version of ExitBench knows of publications."""
    return _said(duck, "published_source") == publications_digest()


def _said(duck: duckdb.DuckDBPyConnection, table: str) -> str | None:
    """The digest that a table of one row has."""
    rows = duck.execute(f"SELECT sha256 FROM {table}").fetchall()
    return rows[0][0] if len(rows) == 1 else None


def views_script() -> str:
    """Return the views and macros, as SQL."""
    return (files(_PACKAGE) / "views.sql").read_text(encoding="utf-8")


def views_digest() -> str:
    """Return what the table `view_source` says where the views and their comments are this version's."""
    return hashlib.sha256("".join((views_script(), *comments_source())).encode()).hexdigest()


def version() -> str:
    """Return a digest of all that makes tables, views, and the rows of publications."""
    return content_id([schema_sql(), views_script(), *comments_source(), publications_digest()])
