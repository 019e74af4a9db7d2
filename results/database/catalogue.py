"""SQLAlchemy over the database: tables written row by row, keys of stored rows, and what writers bring up to date."""

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
    find,
    has_these_tables,
    publications_are_current,
    views_are_current,
    views_digest,
    views_script,
)
from exitbench.results.database.tables import Catalogue, quoted, spelled
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
    """Return SQLAlchemy's type for one of DuckDB's, by its name; NullType for what tables and views do not have."""
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
PUBLISHED_RESULT: Final = _table("published_result")
PUBLISHED_SOURCE: Final = _table("published_source")


def key_rows(engine: sa.Engine, table: str) -> pa.Table:
    """Return the keys (`KEYS`) of a table's rows, each once."""
    with engine.connect() as connection:
        duck = driver_connection(connection)
        keys: pa.Table = duck.sql(
            f"SELECT DISTINCT {', '.join(map(quoted, KEYS[table]))} FROM {quoted(table)}"
        ).to_arrow_table()
    return keys


def known_keys(engine: sa.Engine, table: str) -> frozenset[str]:
    """Return the keys of the rows of a table that has one column of them."""
    (column,) = KEYS[table]
    return frozenset(key_rows(engine, table)[column].to_pylist())


def engine_over(duck: duckdb.DuckDBPyConnection) -> sa.Engine:
    """Return an engine over one open connection."""
    return sa.create_engine(
        "duckdb://", creator=lambda: ConnectionWrapper(duck), poolclass=StaticPool, json_serializer=canonical_json
    )


def bring_up_to_date(engine: sa.Engine, where: str) -> None:
    """Create the tables of an empty database, and make views again where they differ.

    Raises:
        UserError: The tables are not this version's, or there is something that no database of ours has.
    """
    with engine.begin() as connection:
        name, found = find(driver_connection(connection))
        has_tables = has_these_tables(driver_connection(connection), name, found, where)
        if foreign := sorted(found.triggers | found.types):
            raise UserError(
                f"{where} has a trigger or type {spelled(foreign[0])}, which no database of ExitBench has. "
                "Rebuild it from its spool: `exitbench db rebuild`."
            )
        are_current = has_tables and views_are_current(driver_connection(connection), found)
        if not has_tables:
            _create_tables(connection)
        elif not are_current:
            _drop_views(connection, found)
    with engine.begin() as connection:
        if not are_current:
            _create_views(connection)
        _refresh_publications(connection)


def _create_tables(connection: sa.Connection) -> None:
    connection.exec_driver_sql(schema_sql())
    created_at = datetime.now(UTC).replace(tzinfo=None)
    connection.execute(
        SCHEMA_VERSION.insert().values(version=VERSION, applied_at=created_at, tool=f"exitbench {__version__}")
    )


def _drop_views(connection: sa.Connection, found: Catalogue) -> None:
    connection.execute(VIEW_SOURCE.delete())
    for view in found.views:
        connection.exec_driver_sql(f"DROP VIEW {quoted(view)}")
    for macro, kind in {(name, kind) for name, kind, *_ in found.macros}:
        connection.exec_driver_sql(f"DROP MACRO {'TABLE ' if kind == 'table_macro' else ''}{quoted(macro)}")


def _create_views(connection: sa.Connection) -> None:
    connection.exec_driver_sql(views_script())
    comment_on_everything(driver_connection(connection))
    connection.execute(VIEW_SOURCE.insert().values(sha256=views_digest()))


def _refresh_publications(connection: sa.Connection) -> None:
    """Replace what the database has of publications, where it is not current."""
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
def _published_rows(of: str) -> pa.Table:
    """The rows of the sources of one digest."""
    return pa.Table.from_pylist(published.published_rows())
