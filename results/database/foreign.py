"""Copy untrusted databases row by row into a new one: nothing but rows comes along, nothing of theirs is run.

A DuckDB file may carry views, macros, triggers, expressions of columns and a log that is replayed when it is opened.
So a file is attached for reading where nothing else can be reached, and of it only tables and columns that our
migrations create are selected, by our names.
"""

from pathlib import Path
from typing import Final

import duckdb

from exitbench.errors import UserError
from exitbench.results.database import migrations
from exitbench.results.database.sandbox import fresh_database
from exitbench.results.database.tables import (
    Catalogue,
    Column,
    Columns,
    quoted,
    quoted_text,
    read_catalogue,
    require_columns,
    require_known,
    require_plausible,
    require_tables,
    schema_version,
    tables_of,
)

_THEIRS: Final = "theirs"
_VERSION_COLUMNS: Final = {
    "version": Column("INTEGER", False, None, False),
    "applied_at": Column("TIMESTAMP", False, None, False),
    "tool": Column("VARCHAR", False, None, False),
}
"""Of the table that says of which schema a database is, in every schema."""
_SCHEMA_VERSION: Final = "schema_version"
_ALWAYS_THERE: Final = frozenset({_SCHEMA_VERSION, "cell", "attempt"})
"""What every schema has; other programs too call a table `schema_version`."""
_ANYTHING: Final = """
    SELECT schema_name FROM system.main.duckdb_schemas()
    WHERE database_name = $database AND schema_name NOT IN ('main', 'information_schema', 'pg_catalog')
    UNION ALL SELECT sequence_name FROM system.main.duckdb_sequences() WHERE database_name = $database
    UNION ALL SELECT function_name FROM system.main.duckdb_functions()
    WHERE database_name = $database AND NOT internal
    UNION ALL SELECT type_name FROM system.main.duckdb_types() WHERE database_name = $database AND NOT internal
"""
"""Names of what a database may have besides tables and views of the schema `main`."""
_MADE_HERE: Final = ("view_source", "published_source", "published_result")
"""Tables that a database is given when it is opened to be written."""


def copy_database(source: Path, target: Path) -> None:
    """Write the rows of a database into a new one of the same schema, without views.

    Args:
        source: The database; is only read.
        target: In a folder of one's own; must not exist.

    Raises:
        UserError: It is not a database of ExitBench, or of a newer version, or has other tables than the schema that
            it claims: names the first.
        duckdb.Error: It is damaged or in use, or there is no room.
    """
    with fresh_database(target, [source]) as duck:
        duck.execute(f"ATTACH {quoted_text(str(source))} AS {_THEIRS} (READ_ONLY, TYPE duckdb)")
        catalogue = read_catalogue(duck, _THEIRS)
        version = read_version(duck, _THEIRS, catalogue, str(source))
        require_known(catalogue.tables, version, str(source))
        require_tables(catalogue.tables, version, str(source))
        for table, rows in catalogue.sizes.items():
            require_plausible(rows, source.stat().st_size, f"{source}: table {table}")
        for script in migrations.migration_scripts()[:version]:
            duck.execute(script)
        for table, columns in tables_of(version).items():
            if table not in _MADE_HERE:
                _copy_table(duck, table, columns)


def read_version(duck: duckdb.DuckDBPyConnection, database: str, catalogue: Catalogue, where: str) -> int:
    """Return the schema that an attached database says it is of, 0 for an empty one.

    Args:
        duck: A connection.
        database: The name that the database is attached by.
        catalogue: What it has.
        where: Its file, for messages.

    Raises:
        UserError: It is not one of ExitBench, or of a schema that this version does not know.
    """
    if is_empty(duck, database, catalogue, where):
        return 0
    table, newest = _SCHEMA_VERSION, schema_version()
    require_columns(catalogue.tables[table], _VERSION_COLUMNS, f"{where}: table {table}")
    # Sorted, since max may be a macro of theirs.
    latest = duck.execute(
        f"SELECT version FROM {quoted(database)}.main.{table} ORDER BY version DESC LIMIT 1"
    ).fetchone()
    if latest is None or latest[0] < 1:
        raise UserError(f"{where}: table {table} does not say of which schema the database is.")
    version: int = latest[0]
    if version > newest:
        raise UserError(
            f"{where} has schema {version}; this version of ExitBench knows up to {newest}. "
            "Use the newer version, or rebuild the database from its spool."
        )
    return version


def is_empty(duck: duckdb.DuckDBPyConnection, database: str, catalogue: Catalogue, where: str) -> bool:
    """Return whether an attached database holds nothing; if it holds anything, it is one of ExitBench.

    Args:
        duck: A connection.
        database: The name that the database is attached by.
        catalogue: What it has.
        where: Its file, for messages.

    Raises:
        UserError: It holds something and is not one of ExitBench.
    """
    if _SCHEMA_VERSION in catalogue.tables and catalogue.tables.keys() | catalogue.views.keys() >= _ALWAYS_THERE:
        return False
    if catalogue.tables or catalogue.views or duck.execute(_ANYTHING, {"database": database}).fetchall():
        raise UserError(f"{where} is a DuckDB database, but not one of ExitBench. Name another file.")
    return True


def _copy_table(duck: duckdb.DuckDBPyConnection, table: str, columns: Columns) -> None:
    names = ", ".join(map(quoted, columns))
    values = ", ".join(_value(name, column) for name, column in columns.items())
    duck.execute(f"INSERT INTO {quoted(table)} ({names}) SELECT {values} FROM {_THEIRS}.main.{quoted(table)}")


def _value(name: str, column: Column) -> str:
    """A column as it is; of JSON, that a file's bytes say what they claim is checked by casting."""
    return f"{quoted(name)}::VARCHAR" if column.type == "JSON" else quoted(name)
