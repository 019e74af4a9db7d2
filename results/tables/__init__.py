"""Every table of the result database, declared once: name, columns, types, keys, references and descriptions.

These declarations define the DDL (`schema_sql`), SQLAlchemy's tables, and the schemas of the spool's Parquet files.
They also define from which file ingest fills each table, what `db check` and imports check, what exports omit, and the
tables in `exitbench sql --schema`. A new table or column is declared here; a new column is also named in the views that
show it.
Times are UTC; ids that end in _id are the SHA-256 of canonical JSON, except attempt_id, which sorts by time.
"""

from collections.abc import Mapping
from typing import Final

from exitbench.results.tables.answers import ANSWERS
from exitbench.results.tables.catalogue import CATALOGUE
from exitbench.results.tables.declared import Column as Column
from exitbench.results.tables.declared import Table as Table
from exitbench.results.tables.preparation import PREPARATION
from exitbench.results.tables.readings import READINGS
from exitbench.results.tables.traces import TRACES
from exitbench.results.tables.upkeep import UPKEEP

SCHEMA_VERSION: Final = 1
"""Version of the tables. A database or snapshot of any other version is rejected."""

_EVERY: Final = (*CATALOGUE, *ANSWERS, *TRACES, *READINGS, *PREPARATION, *UPKEEP)
TABLES: Final[Mapping[str, Table]] = {table.name: table for table in _EVERY}
"""All tables by name."""
FILES: Final[Mapping[str, Table]] = {table.file: table for table in _EVERY if table.file is not None}
"""Tables that are filled from an attempt's Parquet files, by the file's name without suffix."""
REFERENCES: Final = tuple(
    (table.name, column.name, column.references)
    for table in _EVERY
    for column in table.columns
    if column.references is not None
)
"""Foreign keys: table, its column, and the table whose key the column contains."""
ARTIFACTS: Final = tuple(
    dict.fromkeys(owner for name, _, owner in REFERENCES if name in ("attempt", "cell") and owner != "cell")
)
"""Tables that attempts and cells share: machines, environments, models, data."""
KEYS: Final[Mapping[str, tuple[str, ...]]] = {table.name: table.import_key for table in _EVERY if table.import_key}
"""Columns that decide, per table, whether imported rows are new; rows of other tables are new if their attempt is."""


def schema_sql() -> str:
    """Return the SQL script that creates every table of the result database."""
    return "\n\n".join(table.sql for table in _EVERY)


def tables_of_attempts() -> list[str]:
    """Return the names of all tables whose rows each belong to one attempt, sorted."""
    return sorted(table.name for table in _EVERY if table.is_of_attempts)
