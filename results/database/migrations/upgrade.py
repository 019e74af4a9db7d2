"""Brings a database up to date for those who write: migrations, views, what earlier versions did not say."""

from datetime import UTC, datetime

import duckdb
import sqlalchemy as sa
from duckdb_engine import ConnectionWrapper
from sqlalchemy.pool import StaticPool

from exitbench import __version__
from exitbench.errors import UserError
from exitbench.results.database import migrations
from exitbench.results.database.catalogue import SCHEMA_VERSION, VIEW_SOURCE
from exitbench.results.database.foreign import read_version
from exitbench.results.database.migrations.column_comments import comment_on_columns
from exitbench.results.database.migrations.current import find, views_are_current, views_digest, views_script
from exitbench.results.database.published.rows import refresh as refresh_publications
from exitbench.results.database.tables import Catalogue, quoted, require_tables, spelled
from exitbench.results.files.arrow import driver_connection
from exitbench.results.files.canonical import canonical_json


def engine_over(duck: duckdb.DuckDBPyConnection) -> sa.Engine:
    """Return an engine over one open connection."""
    return sa.create_engine(
        "duckdb://", creator=lambda: ConnectionWrapper(duck), poolclass=StaticPool, json_serializer=canonical_json
    )


def bring_up_to_date(engine: sa.Engine, where: str) -> None:
    """Apply the migrations that are missing, make views anew where they differ, and fill in what is not said.

    Raises:
        UserError: The tables are not those of their schema, or there is something that no database of ours has.
    """
    scripts = migrations.migration_scripts()
    with engine.begin() as connection:
        name, found = find(driver_connection(connection))
        version = read_version(driver_connection(connection), name, found, where)
        require_tables(found.tables, version, where)
        if foreign := sorted(found.triggers | found.types):
            raise UserError(
                f"{where} has a trigger or type {spelled(foreign[0])}, which no database of ExitBench has. "
                "Rebuild it from its spool: `exitbench db rebuild`."
            )
        are_current = version == len(scripts) and views_are_current(driver_connection(connection), found)
        if version and not are_current:
            _drop_views(connection, found)
    for number, script in enumerate(scripts[version:], start=version + 1):
        with engine.begin() as connection:
            connection.exec_driver_sql(script)
            applied_at = datetime.now(UTC).replace(tzinfo=None)
            connection.execute(
                SCHEMA_VERSION.insert().values(version=number, applied_at=applied_at, tool=f"exitbench {__version__}")
            )
    with engine.begin() as connection:
        if not are_current:
            _create_views(connection)
        refresh_publications(connection)


def _drop_views(connection: sa.Connection, found: Catalogue) -> None:
    connection.execute(VIEW_SOURCE.delete())
    for view in found.views:
        connection.exec_driver_sql(f"DROP VIEW {quoted(view)}")
    for macro, kind in {(name, kind) for name, kind, *_ in found.macros}:
        connection.exec_driver_sql(f"DROP MACRO {'TABLE ' if kind == 'table_macro' else ''}{quoted(macro)}")


def _create_views(connection: sa.Connection) -> None:
    connection.exec_driver_sql(views_script())
    comment_on_columns(driver_connection(connection))
    connection.execute(VIEW_SOURCE.insert().values(sha256=views_digest()))
