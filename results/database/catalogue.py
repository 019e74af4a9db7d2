"""SQLAlchemy Core tables of what is written row by row (all else is written through Arrow), and keys of stored rows."""

from typing import Any, Final

import pyarrow as pa
import sqlalchemy as sa

from exitbench.results.database.tables import quoted
from exitbench.results.files.arrow import driver_connection
from exitbench.results.tables import KEYS, TABLES

METADATA: Final = sa.MetaData()

_TYPES: Final[dict[str, type[sa.types.TypeEngine[Any]]]] = {
    "VARCHAR": sa.Text,
    "BOOLEAN": sa.Boolean,
    "SMALLINT": sa.SmallInteger,
    "INTEGER": sa.Integer,
    "BIGINT": sa.BigInteger,
    "HUGEINT": sa.Numeric,
    "FLOAT": sa.Float,
    "DOUBLE": sa.Double,
    "TIMESTAMP": sa.DateTime,
}


def sql_type(name: str) -> sa.types.TypeEngine[Any]:
    """Return SQLAlchemy's type for one of DuckDB's, by its name; NullType for what tables and views do not have."""
    if name.endswith("[]"):
        return sa.ARRAY(sql_type(name[:-2]))
    return sa.JSON(none_as_null=True) if name == "JSON" else _TYPES.get(name, sa.types.NullType)()


def _table(name: str) -> sa.Table:
    columns = (
        sa.Column(
            column.name,
            sql_type(column.type),
            primary_key=column.key,
            nullable=column.is_nullable,
            autoincrement=False,
        )
        for column in TABLES[name].columns
    )
    return sa.Table(name, METADATA, *columns)


SCHEMA_VERSION: Final = _table("schema_version")
VIEW_SOURCE: Final = _table("view_source")
ENVIRONMENT: Final = _table("environment")
HARDWARE: Final = _table("hardware")
MODEL_ARTIFACT: Final = _table("model_artifact")
DATASET_ARTIFACT: Final = _table("dataset_artifact")
TRAINING_RUN: Final = _table("training_run")
CELL: Final = _table("cell")
ATTEMPT: Final = _table("attempt")
ATTEMPT_FILE: Final = _table("attempt_file")
PUBLISHED_RESULT: Final = _table("published_result")
PUBLISHED_SOURCE: Final = _table("published_source")


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
