"""Whether a database is exactly as this version makes it: tables, views, macros, and what it knows of publications."""

import hashlib
from importlib.resources import files

import duckdb

from exitbench.results.database.comments import comments_source
from exitbench.results.database.foreign import has_these_tables
from exitbench.results.database.published import digest as publications_digest
from exitbench.results.database.tables import Catalogue, catalogue_with, declared_tables, read_catalogue
from exitbench.results.files.canonical import content_id
from exitbench.results.tables import schema_sql

_PACKAGE = "exitbench.results.database"


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
