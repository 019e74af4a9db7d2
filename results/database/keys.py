"""Natural keys of rows: which rows of a table belong together and come from elsewhere as one."""

import pyarrow as pa
import sqlalchemy as sa

from exitbench.results.database.tables import quoted
from exitbench.results.files.arrow import driver_connection
from exitbench.results.tables import KEYS


def key_rows(engine: sa.Engine, table: str) -> pa.Table:
    """Return the keys (`KEYS`) of a table's rows, each once."""
    with engine.connect() as connection:
        duck = driver_connection(connection)
        keys: pa.Table = duck.sql(
            f"SELECT DISTINCT {', '.join(map(quoted, KEYS[table]))} FROM {quoted(table)}"
        ).to_arrow_table()
    return keys


def known_keys(engine: sa.Engine, table: str) -> frozenset[str]:
    """Return the keys of the rows of a table that has one column of them."""
    (column,) = KEYS[table]
    return frozenset(key_rows(engine, table)[column].to_pylist())
