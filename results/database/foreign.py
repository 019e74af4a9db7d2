"""Copy untrusted databases row by row into a new one: nothing but rows comes along, nothing of theirs is run.

A DuckDB file may carry views, macros, triggers, expressions of columns and a log that is replayed when it is opened.
So a file is attached for reading where nothing else can be reached, and of it only declared tables and columns are
selected, by our names.
"""

from pathlib import Path
from typing import Final

import duckdb

from exitbench.errors import UserError
from exitbench.results.database.sandbox import fresh_database
from exitbench.results.database.tables import (
    Catalogue,
    Column,
    Columns,
    declared_tables,
    quoted,
    quoted_text,
    read_catalogue,
    require_columns,
    require_known,
    require_plausible,
    require_tables,
    spelled,
)
from exitbench.results.tables import SCHEMA_VERSION, TABLES, schema_sql

_THEIRS: Final = "theirs"
_VERSION_COLUMNS: Final = {
    "version": Column("INTEGER", False, None, False),
    "applied_at": Column("TIMESTAMP", False, None, False),
    "tool": Column("VARCHAR", False, None, False),
}
"""Of the table that says of which schema a database is, in every version of ExitBench."""
_SCHEMA_VERSION: Final = "schema_version"
_ALWAYS_THERE: Final = frozenset({_SCHEMA_VERSION, "cell", "attempt"})
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


def copy_database(source: Path, target: Path) -> None:
    """Write the rows of a database into a new one, without views.

    Args:
        source: The database; is only read.
        target: In a folder of one's own; must not exist.

    Raises:
        UserError: As `has_these_tables`; or it has a table that no result database has: names the first.
        duckdb.Error: It is damaged or in use, or there is no room.
    """
    with fresh_database(target, [source]) as duck:
        duck.execute(f"ATTACH {quoted_text(str(source))} AS {_THEIRS} (READ_ONLY, TYPE duckdb)")
        catalogue = read_catalogue(duck, _THEIRS)
        if not has_these_tables(duck, _THEIRS, catalogue, str(source)):
            return  # whoever opens it to be written fills it
        require_known(catalogue.tables, str(source))
        for table, rows in catalogue.sizes.items():
            require_plausible(rows, source.stat().st_size, f"{source}: table {table}")
        duck.execute(schema_sql())
        for table, columns in declared_tables().items():
            if table == _SCHEMA_VERSION or not TABLES[table].local:
                _copy_table(duck, table, columns)


def has_these_tables(duck: duckdb.DuckDBPyConnection, database: str, catalogue: Catalogue, where: str) -> bool:
    """Return whether an attached database has the tables of this version; False if it is empty.

    Args:
        duck: A connection.
        database: The name that the database is attached by.
        catalogue: What it has.
        where: Its file, for messages.

    Raises:
        UserError: It is not one of ExitBench, or of another version: says of which, and what to do.
    """
    if is_empty(duck, database, catalogue, where):
        return False
    table = _SCHEMA_VERSION
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
