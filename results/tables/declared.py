"""How a table is declared: all that DDL, files, checks and documents need to know of it."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        name: Its name.
        type: As DuckDB spells it.
        about: What it holds.
        key: Whether it is part of what tells rows apart.
        required: Whether whoever writes a row must say it.
        references: Table that has a row with this value as its key; None for most columns.
        added: Whether it is added where the database is filled, and no file of the spool has it.
        left_out: SQL over the row of what an export has instead where texts of data sets are left out; None for what
            quotes none.
        names_paths: Whether it may say where files lie on somebody's machine.
    """

    name: str
    type: str
    about: str
    key: bool = False
    required: bool = True
    references: str | None = None
    added: bool = False
    left_out: str | None = None
    names_paths: bool = False

    @property
    def is_nullable(self) -> bool:
        """Whether a row of a database may have NULL here."""
        return not self.required or "NULL" in (self.left_out or "")


@dataclass(frozen=True)
class Table:
    """A table of the database, and the file of the spool that it is filled from.

    Attributes:
        name: Its name.
        about: What it holds, in sentences.
        columns: In order.
        file: Name of the attempt's Parquet file, without its ending; None for what is filled from elsewhere.
        indexed: Whether its key is a primary key, which slows ingest down, or is only checked by `db check`.
        arrives_by: Columns by which rows come from elsewhere as one; empty for what comes with its attempt.
        local: Whether every database makes its rows itself, and takes none from elsewhere.
    """

    name: str
    about: str
    columns: tuple[Column, ...]
    file: str | None = None
    indexed: bool = True
    arrives_by: tuple[str, ...] = ()
    local: bool = False

    @property
    def key(self) -> tuple[str, ...]:
        """Columns that tell rows apart."""
        return tuple(column.name for column in self.columns if column.key)

    @property
    def is_of_attempts(self) -> bool:
        """Whether each row is of an attempt."""
        return any(column.references == "attempt" for column in self.columns)

    @property
    def grows_later(self) -> bool:
        """Whether an attempt may get more rows after it ended."""
        return self.is_of_attempts and bool(self.arrives_by)

    @property
    def sql(self) -> str:
        """SQL that creates the table."""
        lines = [f"{column.name} {_definition(column)}" for column in self.columns]
        if self.indexed:
            lines.append(f"PRIMARY KEY ({', '.join(self.key)})")
        body = ",\n    ".join(lines)
        return f"CREATE TABLE {self.name} (\n    {body}\n);"


def _definition(column: Column) -> str:
    # To look for patterns in recorded probabilities takes a quarter of the time of ingest and finds few.
    stored = " USING COMPRESSION uncompressed" if column.type == "FLOAT[]" else ""
    return f"{column.type}{stored}{'' if column.is_nullable else ' NOT NULL'}"


ATTEMPT_ID: Final = Column(
    "attempt_id", "VARCHAR", "the attempt at the cell, which sorts by time", key=True, references="attempt", added=True
)
DOC_KEY: Final = Column("doc_key", "VARCHAR", "key of the document", key=True)
