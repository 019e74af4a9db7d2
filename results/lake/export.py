"""Lake export: append the rows that a database has and a lake lacks.

Texts that quote third-party data are left out, as in a snapshot (`results/ingest/snapshot.py`).
"""

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import deltalake
import duckdb
import pyarrow as pa
from deltalake.exceptions import CommitFailedError

from exitbench.errors import UserError
from exitbench.results.database.tables import declared_tables, quoted, quoted_text
from exitbench.results.files.formats import canonical_json
from exitbench.results.ingest.snapshot import licensed_labels, select_rows, without_paths
from exitbench.results.lake import tables

_BATCH: Final = 25
"""Attempts per commit: more would take more memory, fewer more commits."""
_BATCH_ROWS: Final = 30_720
_CONFLICTS: Final = 50
"""Maximum number of conflicts with exporters of the same attempts."""


@dataclass(frozen=True)
class ExportReport:
    """Result of an export to a lake.

    Attributes:
        added: Number of attempts that the lake lacked and that were appended.
        existing: Number of attempts that the lake had already.
        texts_left_out_of: Labels of the data sets whose texts were omitted for their licences.
    """

    added: int
    existing: int
    texts_left_out_of: tuple[str, ...]


def export_lake(
    duck: duckdb.DuckDBPyConnection, lake: str, redistributable: Collection[str] | None = None
) -> ExportReport:
    """Append to a lake those rows of a database that the lake lacks.

    An export may be killed and repeated at any moment, and other processes may export to the lake at the same time.

    Args:
        duck: An open, up-to-date database.
        lake: A directory or s3://BUCKET/PREFIX; created if it does not exist.
        redistributable: Tasks whose records may be redistributed; None omits nothing.

    Raises:
        UserError: The lake cannot be read or written, or is no lake. Attempts appended before are kept.
    """
    tables.require_lake(lake)
    licensed = licensed_labels(duck, redistributable)
    exported = listed.row_keys() if (listed := tables.open_table(lake, "attempt")) is not None else set()
    attempts = duck.execute("SELECT attempt_id FROM attempt ORDER BY ALL").fetchall()
    new = [attempt for attempt in attempts if attempt not in exported]
    of_attempts = [name for name, key in tables.key_columns().items() if key == ("attempt_id",) and name != "attempt"]
    for name in sorted(set(tables.key_columns()) - {*of_attempts, "attempt"}):
        _append(duck, lake, name, select_rows(name, licensed))
    for start in range(0, len(new), _BATCH):
        batch = ", ".join(quoted_text(attempt) for (attempt,) in new[start : start + _BATCH])
        for name in (*of_attempts, "attempt"):
            _append(duck, lake, name, f"FROM ({select_rows(name, licensed)}) WHERE attempt_id IN ({batch})")
    return ExportReport(len(new), len(attempts) - len(new), tuple(sorted(licensed)))


def _append(duck: duckdb.DuckDBPyConnection, lake: str, name: str, rows: str) -> None:
    """Append to a lake's table, in one commit, those rows of a query whose keys the table lacks.

    Each key is an application transaction of Delta Lake: if two exporters append the same key at once, the second one's
    commit fails, and it checks the table again.
    """
    columns = tables.key_columns()[name]
    keys = set(duck.execute(f"SELECT DISTINCT {', '.join(columns)} FROM ({rows})").fetchall())
    for _ in range(_CONFLICTS):
        table = tables.open_table(lake, name) if keys else None
        if not (new := sorted(keys - table.row_keys() if table is not None else keys)):
            return
        if table is None:
            tables.create_table(lake, name)
            continue
        duck.register("new", pa.table([*map(list, zip(*new, strict=True))], names=list(columns)))
        transactions = [deltalake.Transaction(canonical_json(key), 1) for key in new]
        with tables.as_user_errors(table.url), suppress(CommitFailedError):
            deltalake.write_deltalake(
                *(table.delta, _reader(duck, name, f"FROM ({rows}) SEMI JOIN new USING ({', '.join(columns)})")),
                mode="append",
                writer_properties=deltalake.WriterProperties(compression="ZSTD", max_row_group_size=4 * _BATCH_ROWS),
                commit_properties=deltalake.CommitProperties(None, _CONFLICTS, transactions),
                post_commithook_properties=deltalake.PostCommitHookProperties(False, cleanup_expired_logs=False),
            )
            return
    raise UserError(f"{tables.table_url(lake, name)}: {_CONFLICTS} conflicts with other exporters. Try again.")


def _reader(duck: duckdb.DuckDBPyConnection, name: str, source: str) -> pa.RecordBatchReader:
    """Return a reader of rows to append to a lake's table: JSON becomes text, home folders in messages are abbreviated.

    Args:
        duck: The connection.
        name: Name of the table.
        source: SQL FROM clause that selects the rows.
    """
    types = {column: declared.type.replace("JSON", "VARCHAR") for column, declared in declared_tables()[name].items()}
    columns = ", ".join(f"{quoted(column)}::{duck_type} AS {quoted(column)}" for column, duck_type in types.items())
    reader = duck.sql(f"SELECT {columns} {source}").to_arrow_reader(_BATCH_ROWS)
    if name != "attempt":
        return reader
    rows = [without_paths(name, row) for batch in reader for row in batch.to_pylist()]
    return pa.Table.from_pylist(rows, reader.schema).to_reader()
