"""Classify DuckDB errors: the file is damaged, the machine has no room, or neither."""

from typing import Final

import duckdb
import pyarrow as pa
import sqlalchemy as sa

_DAMAGE: Final = ("Corrupt", "corrupt", "Could not read enough bytes", "checksum", "Failure while replaying WAL")
_NO_ROOM: Final = (
    duckdb.IOException,
    duckdb.OutOfMemoryException,
    duckdb.FatalException,
    duckdb.SerializationException,
)


def driver_error(error: BaseException) -> BaseException:
    """Return DuckDB's own error beneath SQLAlchemy's, or beneath the words that one was put into."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, sa.exc.StatementError) and cause.orig is not None:
            return cause.orig
        if isinstance(cause, duckdb.Error | pa.ArrowException):
            return cause
        cause = cause.__cause__
    return error


def is_damage(error: BaseException) -> bool:
    """Return whether an error says that the database is not what was written."""
    error = driver_error(error)
    return isinstance(error, duckdb.Error | pa.ArrowException) and any(sign in str(error) for sign in _DAMAGE)


def is_trouble(error: BaseException) -> bool:
    """Return whether an error is the file's or the machine's, and says nothing of what was to be written."""
    cause = driver_error(error)
    # A commit fails for want of room, or because a key is there twice.
    at_commit = isinstance(cause, duckdb.TransactionException) and "onstraint" not in str(cause)
    return isinstance(cause, _NO_ROOM) or at_commit or is_damage(error)
