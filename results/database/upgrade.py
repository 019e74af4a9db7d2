"""Bring a database up to date for those who write: tables of a new one, views, publications."""

from datetime import UTC, datetime

import duckdb
import sqlalchemy as sa
from duckdb_engine import ConnectionWrapper
from sqlalchemy.pool import StaticPool

from exitbench import __version__
from exitbench.errors import UserError
from exitbench.results.database.catalogue import SCHEMA_VERSION, VIEW_SOURCE
from exitbench.results.database.current import (
    comment_on_everything,
    find,
    has_these_tables,
    views_are_current,
    views_digest,
    views_script,
)
from exitbench.results.database.published.rows import refresh as refresh_publications
from exitbench.results.database.tables import Catalogue, quoted, spelled
from exitbench.results.files.arrow import driver_connection
from exitbench.results.files.formats import canonical_json
from exitbench.results.tables import SCHEMA_VERSION as VERSION
from exitbench.results.tables import schema_sql


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
        refresh_publications(connection)


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
