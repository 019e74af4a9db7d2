"""DuckDB connections: databases in memory, and files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb

NO_PROGRESS_BAR = "SELECT 'SET enable_progress_bar = false' WHERE current_setting('enable_progress_bar')"
"""Gives the statement that turns it off, if it is on: in a notebook without ipywidgets it is off, and cannot be set."""


def in_memory(**config: Any) -> duckdb.DuckDBPyConnection:
    """Return a connection to an empty database in memory that draws no progress bar among what we print.

    Args:
        **config: Settings that DuckDB takes only when it starts.
    """
    connection = duckdb.connect(config=config)
    _draw_no_bar(connection)
    return connection


def in_file(path: Path, **config: Any) -> duckdb.DuckDBPyConnection:
    """Return a connection that reads a file of DuckDB's, draws no progress bar and takes no more settings.

    Args:
        path: The file.
        **config: Settings that DuckDB takes only when it starts.

    Raises:
        duckdb.Error: It cannot be opened.
    """
    connection = duckdb.connect(str(path), read_only=True, config=config)
    lock_settings(connection)
    return connection


def lock_settings(connection: duckdb.DuckDBPyConnection) -> None:
    """Take no settings from now on; a second connection to an open file finds them locked."""
    if not connection.execute("SELECT current_setting('lock_configuration')").fetchall()[0][0]:
        _draw_no_bar(connection)
        connection.execute("SET lock_configuration = true")


def _draw_no_bar(connection: duckdb.DuckDBPyConnection) -> None:
    for statement in connection.execute(NO_PROGRESS_BAR).fetchall():
        connection.execute(*statement)
