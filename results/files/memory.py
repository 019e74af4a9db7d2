"""Databases of DuckDB in memory."""

from __future__ import annotations

from typing import Any

import duckdb


def in_memory(**config: Any) -> duckdb.DuckDBPyConnection:
    """Return a connection to an empty database in memory that draws no progress bar among what we print.

    Args:
        **config: Settings that DuckDB takes only when it starts.
    """
    connection = duckdb.connect(config=config)
    connection.execute("SET enable_progress_bar = false")  # refused as a setting to start with
    return connection
