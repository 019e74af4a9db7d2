"""Insert rows into DuckDB through Arrow, which SQLAlchemy does not support."""

import glob
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import sqlalchemy as sa

from exitbench.errors import UserError


def driver_connection(connection: sa.Connection) -> Any:
    """Return DuckDB's own connection under SQLAlchemy's."""
    return connection.connection.driver_connection


def insert_rows(connection: sa.Connection, table: str, rows: pa.Table, key: str, value: str) -> None:
    """Add rows to a database table, matched by column names, all with the same value in the column ``key``."""
    duck = driver_connection(connection)
    duck.register("incoming_rows", rows)
    duck.execute(f"INSERT INTO {table} BY NAME SELECT $1::VARCHAR AS {key}, * FROM incoming_rows", [value])
    duck.unregister("incoming_rows")


def parquet_path(path: Path) -> str:
    """Return a pattern that matches this file only, for ``read_parquet``, which takes patterns and not paths.

    It also reads folders such as ``a=1`` as columns, unless ``hive_partitioning=false`` is given.

    Raises:
        UserError: DuckDB has no pattern that matches this path.
    """
    pattern = glob.escape(str(path))
    if "\\" in pattern and pattern != str(path):
        raise UserError(f"{path}: DuckDB cannot read files of a path with both a backslash and one of * ? [.")
    return pattern


def lists(values_NL: np.ndarray, kind: pa.DataType) -> pa.Array:
    """Return the rows of an array as an Arrow list column."""
    offsets = np.arange(len(values_NL) + 1, dtype=np.int32) * values_NL.shape[1]
    flat = pa.array(np.ascontiguousarray(values_NL).ravel()).cast(kind.value_type)
    return pa.ListArray.from_arrays(offsets, flat, type=kind)
