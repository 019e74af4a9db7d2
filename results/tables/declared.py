"""Declaration of a database table: all that SQL schema, spool files, checks and documentation are generated from."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Column:
    """Declaration of a column of a database table.

    Attributes:
        name: Name of the column.
        type: Type as DuckDB writes it.
        description: Description of its values.
        key: True if the column is part of the table's key.
        required: True if every writer of a row must give a value.
        references: Table whose key the column contains; None for most columns.
        added: True if the value is added when the database is filled, so that the spool's files lack the column.
        redacted_sql: SQL expression over the row for the value in an export without texts of data sets; None for
            columns that quote no such texts.
        names_paths: True if the values may contain file paths of a user's machine.
    """

    name: str
    type: str
    description: str
    key: bool = False
    required: bool = True
    references: str | None = None
    added: bool = False
    redacted_sql: str | None = None
    names_paths: bool = False

    @property
    def is_nullable(self) -> bool:
        """True if rows of a database may have NULL in this column."""
        return not self.required or "NULL" in (self.redacted_sql or "")


@dataclass(frozen=True)
class Table:
    """Declaration of a database table, and of the file in the spool from which it is filled.

    Attributes:
        name: Name of the table.
        description: Description of its rows, in sentences.
        columns: Columns in order.
        file: Name of the attempt's Parquet file, without suffix; None for tables filled from other sources.
        indexed: True if the key is a primary key, which slows ingest down; otherwise only `db check` checks the key.
        import_key: Columns that identify a group of rows that are imported together, such as a rescore; empty if rows
            are imported together with their attempt.
        local: True if every database creates its own rows and imports none.
    """

    name: str
    description: str
    columns: tuple[Column, ...]
    file: str | None = None
    indexed: bool = True
    import_key: tuple[str, ...] = ()
    local: bool = False

    @property
    def key(self) -> tuple[str, ...]:
        """Names of the key columns."""
        return tuple(column.name for column in self.columns if column.key)

    @property
    def is_of_attempts(self) -> bool:
        """True if each row belongs to an attempt."""
        return any(column.references == "attempt" for column in self.columns)

    @property
    def grows_later(self) -> bool:
        """True if rows of an attempt may be added after the attempt ended, such as rescores."""
        return self.is_of_attempts and bool(self.import_key)

    @property
    def sql(self) -> str:
        """SQL statement that creates the table."""
        lines = [f"{column.name} {_definition(column)}" for column in self.columns]
        if self.indexed:
            lines.append(f"PRIMARY KEY ({', '.join(self.key)})")
        body = ",\n    ".join(lines)
        return f"CREATE TABLE {self.name} (\n    {body}\n);"


def _definition(column: Column) -> str:
    # Searching for patterns in recorded probabilities takes a quarter of the time of ingest and finds few.
    stored = " USING COMPRESSION uncompressed" if column.type == "FLOAT[]" else ""
    return f"{column.type}{stored}{'' if column.is_nullable else ' NOT NULL'}"


ATTEMPT_ID: Final = Column(
    "attempt_id",
    "VARCHAR",
    "id of the attempt at the cell; ids sort by time",
    key=True,
    references="attempt",
    added=True,
)
DOC_KEY: Final = Column("doc_key", "VARCHAR", "key of the document", key=True)
