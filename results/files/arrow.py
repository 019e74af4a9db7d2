"""Arrow with DuckDB: insert rows (which SQLAlchemy cannot do from Arrow), quote file paths, build list columns."""

import glob
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import sqlalchemy as sa

from exitbench.errors import UserError


def driver_connection(connection: sa.Connection) -> Any:
    """Return the DuckDB connection that a SQLAlchemy connection wraps."""
    return connection.connection.driver_connection


def insert_rows(connection: sa.Connection, table: str, rows: pa.Table, key: str, value: str) -> None:
    """Add rows to a database table, matched by column names; column ``key`` gets the same value in every row."""
    duck = driver_connection(connection)
    duck.register("incoming_rows", rows)
    duck.execute(f"INSERT INTO {table} BY NAME SELECT $1::VARCHAR AS {key}, * FROM incoming_rows", [value])
    duck.unregister("incoming_rows")


def parquet_path(path: Path) -> str:
    """Return a glob pattern that matches only this file, for DuckDB's ``read_parquet``, which expects patterns.

    ``read_parquet`` also turns folder names such as ``a=1`` into columns, unless ``hive_partitioning=false`` is given.

    Raises:
        UserError: DuckDB has no pattern that matches this path.
    """
    pattern = glob.escape(str(path))
    if "\\" in pattern and pattern != str(path):
        raise UserError(f"{path}: DuckDB cannot read files of a path with both a backslash and one of * ? [.")
    return pattern


def lists(values_NL: np.ndarray, kind: pa.DataType) -> pa.Array:
    """Return an Arrow column of list type `kind` with one list per row of an array [N, L]."""
    offsets = np.arange(len(values_NL) + 1, dtype=np.int32) * values_NL.shape[1]
    flat = pa.array(np.ascontiguousarray(values_NL).ravel()).cast(kind.value_type)
    return pa.ListArray.from_arrays(offsets, flat, type=kind)
