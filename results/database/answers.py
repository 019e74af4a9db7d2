"""Stream query results batch by batch: only the current batch is in memory."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from threading import Thread
from typing import Any, Final, TypeVar

import duckdb
import pyarrow as pa

from exitbench.errors import UserError
from exitbench.results.database.connection import Database
from exitbench.results.files.duckdb_files import in_memory

Result = TypeVar("Result")

BATCH_ROWS: Final = 10_000
"""Number of rows fetched at a time."""

_NOT_IN_PYTHON: Final = (OverflowError, ValueError, pa.ArrowException)
_GRACE_S: Final = 2.0
_POLL_S: Final = 0.02


@dataclass(frozen=True)
class QueryResult:
    """Result of a query, streamed in batches.

    Attributes:
        schema: Names and Arrow types of the columns; repeated names become NAME_1, and so on.
        batches: The rows; can be iterated once.
    """

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield the rows as Python values; values that Python cannot represent become DuckDB's text."""
        for batch in self.batches:
            yield from zip(*map(_values, batch.columns), strict=True)


@contextmanager
def answer(database: Database, sql: str, parameters: Mapping[str, Any]) -> Iterator[QueryResult]:
    """Run a query and yield its result, which can be read until the context ends.

    `parameters` has the value of each `$name` in the query, by name.

    Raises:
        UserError: DuckDB rejects the query or fails at a row; the message is DuckDB's.
        KeyboardInterrupt: The user interrupted; the query is cancelled at once.
    """
    duck = database.duck
    reader = _run(database, lambda: duck.sql(sql, params=dict(parameters)).to_arrow_reader(BATCH_ROWS))
    try:
        schema = pa.schema(map(pa.Field.with_name, reader.schema, _distinct(reader.schema.names)))
        yield QueryResult(schema, _batches(database, reader, schema))
    finally:
        reader.close()


def _values(column: pa.Array) -> list[Any]:
    try:
        return list(column.to_pylist())
    except _NOT_IN_PYTHON:
        return _with_texts(column)


def _with_texts(column: pa.Array) -> list[Any]:
    """Return a column's values, with DuckDB's text for those that Python lacks: DATE 'infinity', years over 9999."""
    with in_memory() as duck:
        texts = duck.from_arrow(pa.table({"v": column})).project("v::VARCHAR").fetchall()
    values: list[Any] = []
    for value, (text,) in zip(column, texts, strict=True):
        try:
            values.append(value.as_py())
        except _NOT_IN_PYTHON:
            values.append(text)
    return values


def _distinct(names: Sequence[str]) -> list[str]:
    """Return column names made unique: a repeated name gets a numeric suffix."""
    distinct: list[str] = []
    for name in names:
        numbered = (f"{name}_{n}" for n in count(1))
        distinct.append(name if name not in distinct else next(n for n in numbered if n not in {*names, *distinct}))
    return distinct


def _batches(database: Database, reader: pa.RecordBatchReader, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    def following() -> pa.RecordBatch | None:
        try:
            return reader.read_next_batch()
        except StopIteration:
            return None

    while (batch := _run(database, following)) is not None:
        yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)


def _run(database: Database, call: Callable[[], Result]) -> Result:
    """Return the result of a DuckDB call, made in another thread, so that this thread can react to an interrupt."""
    future: Future[Result] = Future()

    def work() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    try:
        Thread(target=work, daemon=True).start()
        return future.result()
    except (duckdb.Error, pa.ArrowException, OSError) as error:
        raise UserError(f"The query failed: {database.fault(error)}") from error
    except KeyboardInterrupt:
        deadline = time.monotonic() + _GRACE_S
        while not future.done() and time.monotonic() < deadline:
            database.duck.interrupt()  # repeated: before the query has started there is nothing to interrupt
            wait([future], _POLL_S)
        raise
