"""Rows into DuckDB through Arrow, which SQLAlchemy does not know."""

from typing import Any

import pyarrow as pa
import sqlalchemy as sa


def driver_connection(connection: sa.Connection) -> Any:
    """Return DuckDB's own connection beneath SQLAlchemy's."""
    return connection.connection.driver_connection


def insert_rows(connection: sa.Connection, table: str, rows: pa.Table, key: str, value: str) -> None:
    """Add rows to a database table by the names of their columns, all with one value of the column ``key``."""
    duck = driver_connection(connection)
    duck.register("incoming_rows", rows)
    duck.execute(f"INSERT INTO {table} BY NAME SELECT $1::VARCHAR AS {key}, * FROM incoming_rows", [value])
    duck.unregister("incoming_rows")
