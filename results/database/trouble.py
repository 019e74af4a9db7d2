"""Classify DuckDB errors: the file is damaged, the machine has no room, or neither."""

import sys
from typing import Final

import duckdb

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
        if _is_of(cause, "sqlalchemy.exc", "StatementError") and cause.orig is not None:  # type: ignore[attr-defined]
            return cause.orig  # type: ignore[attr-defined,no-any-return]
        if _is_drivers(cause):
            return cause
        cause = cause.__cause__
    return error


def is_damage(error: BaseException) -> bool:
    """Return whether an error says that the database is not what was written."""
    error = driver_error(error)
    return _is_drivers(error) and any(sign in str(error) for sign in _DAMAGE)


def is_trouble(error: BaseException) -> bool:
    """Return whether an error is the file's or the machine's, and says nothing of what was to be written."""
    cause = driver_error(error)
    # A commit fails for want of room, or because a key is there twice.
    at_commit = isinstance(cause, duckdb.TransactionException) and "onstraint" not in str(cause)
    return isinstance(cause, _NO_ROOM) or at_commit or is_damage(error)


def _is_drivers(error: BaseException) -> bool:
    return isinstance(error, duckdb.Error) or _is_of(error, "pyarrow", "ArrowException")


def _is_of(error: BaseException, module: str, name: str) -> bool:
    """Whether an error is of a class of a library, which nobody can have raised that has not imported it."""
    library = sys.modules.get(module)
    return library is not None and isinstance(error, getattr(library, name))
