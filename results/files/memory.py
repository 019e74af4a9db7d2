"""In-memory DuckDB databases."""

from __future__ import annotations

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
    for statement in connection.execute(NO_PROGRESS_BAR).fetchall():
        connection.execute(*statement)
    return connection
