"""Natural keys of rows: which rows of a table belong together and come from elsewhere as one."""

from typing import Final

import pyarrow as pa
import sqlalchemy as sa

from exitbench.results.database.tables import quoted
from exitbench.results.files.arrow import driver_connection

KEYED: Final = {
    "training_run": ("weights_sha256",),
    "training_log": ("weights_sha256",),
    "token_text": ("tokenizer_sha256",),
    "perf_sample": ("perf_run_id",),
    "metric": ("attempt_id", "metric_version"),
    "sample_rescore": ("attempt_id", "metric_version"),
    "token_tag": ("attempt_id", "tagger"),
}
"""Tables that hang on something else than an attempt, or on more, and what on."""
KEYS: Final = {"attempt": ("attempt_id",), **KEYED}
"""What tells whether a row of a snapshot is new, by table; what hangs on an attempt is as new as that."""


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
