"""SQLAlchemy access to the database: tables written row by row, keys of stored rows, and upgrades of views."""

from datetime import UTC, datetime
from functools import cache
from typing import Any, Final

import duckdb
import pyarrow as pa
import sqlalchemy as sa
from duckdb_engine import ConnectionWrapper
from sqlalchemy.pool import StaticPool

from exitbench import __version__
from exitbench.errors import UserError
from exitbench.results.database import published
from exitbench.results.database.current import (
    comment_on_everything,
    has_these_tables,
    name_and_catalogue,
    publications_are_current,
    views_are_current,
    views_digest,
    views_script,
)
from exitbench.results.database.differences import fill_differences
from exitbench.results.database.tables import Catalogue, printable, quoted
from exitbench.results.files.arrow import driver_connection
from exitbench.results.files.formats import canonical_json
from exitbench.results.tables import KEYS, TABLES, schema_sql
from exitbench.results.tables import SCHEMA_VERSION as VERSION

METADATA: Final = sa.MetaData()

_TYPES: Final[dict[str, type[sa.types.TypeEngine[Any]]]] = {
    "VARCHAR": sa.Text,
    "BOOLEAN": sa.Boolean,
    "SMALLINT": sa.SmallInteger,
    "INTEGER": sa.Integer,
    "BIGINT": sa.BigInteger,
    "HUGEINT": sa.Numeric,
    "FLOAT": sa.Float,
    "DOUBLE": sa.Double,
    "TIMESTAMP": sa.DateTime,
}


def sql_type(name: str) -> sa.types.TypeEngine[Any]:
    """Return SQLAlchemy's type for the name of a DuckDB type; NullType for types that no table or view uses."""
    if name.endswith("[]"):
        return sa.ARRAY(sql_type(name[:-2]))
    return sa.JSON(none_as_null=True) if name == "JSON" else _TYPES.get(name, sa.types.NullType)()


def _table(name: str) -> sa.Table:
    columns = (
        sa.Column(
            column.name,
            sql_type(column.type),
            primary_key=column.key,
            nullable=column.is_nullable,
            autoincrement=False,
        )
        for column in TABLES[name].columns
    )
    return sa.Table(name, METADATA, *columns)


SCHEMA_VERSION: Final = _table("schema_version")
VIEW_SOURCE: Final = _table("view_source")
ENVIRONMENT: Final = _table("environment")
HARDWARE: Final = _table("hardware")
MODEL_ARTIFACT: Final = _table("model_artifact")
DATASET_ARTIFACT: Final = _table("dataset_artifact")
TRAINING_RUN: Final = _table("training_run")
CELL: Final = _table("cell")
ATTEMPT: Final = _table("attempt")
ATTEMPT_FILE: Final = _table("attempt_file")
QUALITY_DIFFERENCE: Final = _table("quality_difference")
PUBLISHED_RESULT: Final = _table("published_result")
PUBLISHED_SOURCE: Final = _table("published_source")


def key_rows(engine: sa.Engine, table: str) -> pa.Table:
    """Return the distinct keys in a database table, one row per key, with the key columns that `KEYS` lists."""
    with engine.connect() as connection:
        duck = driver_connection(connection)
        keys: pa.Table = duck.sql(
            f"SELECT DISTINCT {', '.join(map(quoted, KEYS[table]))} FROM {quoted(table)}"
        ).to_arrow_table()
    return keys


def known_keys(engine: sa.Engine, table: str) -> frozenset[str]:
    """Return the distinct values of a table's key column in `KEYS`; the table must have exactly one."""
    (column,) = KEYS[table]
    return frozenset(key_rows(engine, table)[column].to_pylist())


def engine_over(duck: duckdb.DuckDBPyConnection) -> sa.Engine:
    """Return an SQLAlchemy engine whose connections all use the given open DuckDB connection."""
    return sa.create_engine(
        "duckdb://", creator=lambda: ConnectionWrapper(duck), poolclass=StaticPool, json_serializer=canonical_json
    )


def upgrade_schema(engine: sa.Engine, location: str) -> None:
    """Create tables and views in an empty database; in any other, recreate views that differ from this version's.

    Stored differences are then computed again, and the published results updated. `location` names the database in
    messages.

    Raises:
        UserError: The tables are not this version's, or the database contains a trigger or a type.
    """
    with engine.begin() as connection:
        name, contents = name_and_catalogue(driver_connection(connection))
        has_tables = has_these_tables(driver_connection(connection), name, contents, location)
        if foreign := sorted(contents.triggers | contents.types):
            raise UserError(
                f"{location} has a trigger or type {printable(foreign[0])}, which no database of ExitBench has. "
                "Rebuild it from its spool: `exitbench db rebuild`."
            )
        are_current = has_tables and views_are_current(driver_connection(connection), contents)
        if not has_tables:
            _create_tables(connection)
        elif not are_current:
            _drop_views(connection, contents)
    with engine.begin() as connection:
        if not are_current:
            _create_views(connection)
            if has_tables:
                connection.execute(QUALITY_DIFFERENCE.delete())
                fill_differences(connection)
        _refresh_publications(connection)


def _create_tables(connection: sa.Connection) -> None:
    connection.exec_driver_sql(schema_sql())
    created_at = datetime.now(UTC).replace(tzinfo=None)
    connection.execute(
        SCHEMA_VERSION.insert().values(version=VERSION, applied_at=created_at, tool=f"exitbench {__version__}")
    )


def _drop_views(connection: sa.Connection, contents: Catalogue) -> None:
    connection.execute(VIEW_SOURCE.delete())
    for view in contents.views:
        connection.exec_driver_sql(f"DROP VIEW {quoted(view)}")
    for macro, kind in {(name, kind) for name, kind, *_ in contents.macros}:
        connection.exec_driver_sql(f"DROP MACRO {'TABLE ' if kind == 'table_macro' else ''}{quoted(macro)}")


def _create_views(connection: sa.Connection) -> None:
    connection.exec_driver_sql(views_script())
    comment_on_everything(driver_connection(connection))
    connection.execute(VIEW_SOURCE.insert().values(sha256=views_digest()))


def _refresh_publications(connection: sa.Connection) -> None:
    """Replace the rows of `published_result` if they differ from the bundled source files."""
    duck = driver_connection(connection)
    if publications_are_current(duck):
        return
    connection.execute(PUBLISHED_RESULT.delete())
    duck.register("published_incoming", _published_rows(published.digest()))
    duck.execute(f"INSERT INTO {PUBLISHED_RESULT.name} BY NAME SELECT * FROM published_incoming")
    duck.unregister("published_incoming")
    connection.execute(PUBLISHED_SOURCE.delete())
    connection.execute(PUBLISHED_SOURCE.insert().values(sha256=published.digest()))


@cache
def _published_rows(_digest: str) -> pa.Table:
    """Return the rows of `published_result`, cached by the digest of the source files."""
    return pa.Table.from_pylist(published.published_rows())
