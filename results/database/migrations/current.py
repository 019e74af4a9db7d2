"""Whether a database is exactly as this version makes it: tables, views, macros, and what it knows of publications."""

import hashlib
from importlib.resources import files

import duckdb

from exitbench.results.database import migrations
from exitbench.results.database.foreign import read_version
from exitbench.results.database.migrations.column_comments import comments_script
from exitbench.results.database.published import digest as publications_digest
from exitbench.results.database.tables import Catalogue, catalogue_with, read_catalogue, schema_version
from exitbench.results.files.canonical import content_id

_PACKAGE = "exitbench.results.database"


def is_up_to_date(duck: duckdb.DuckDBPyConnection, where: str) -> bool:
    """Whether views, macros and the tables beneath them are exactly this version's; more tables or views do no harm."""
    name, found = find(duck)
    return (
        read_version(duck, name, found, where) == schema_version()
        and catalogue_with(views_script(), found.storage).tables.items() <= found.tables.items()
        and views_are_current(duck, found)
        and publications_are_current(duck)
    )


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
    return hashlib.sha256((views_script() + comments_script()).encode()).hexdigest()


def version() -> str:
    """Return a digest of all that makes tables, views, and the rows of publications."""
    return content_id([*migrations.migration_scripts(), views_script(), comments_script(), publications_digest()])
