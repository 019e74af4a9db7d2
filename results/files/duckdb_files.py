"""DuckDB: open connections, recognize database files by their content, and classify errors."""

from __future__ import annotations

import codecs
import mmap
import stat
import sys
from pathlib import Path
from typing import Any, Final

import duckdb

from exitbench.errors import UserError

NO_PROGRESS_BAR = "SELECT 'SET enable_progress_bar = false' WHERE current_setting('enable_progress_bar')"
"""Returns the statement that disables the bar if it is enabled; in a notebook without ipywidgets it cannot be set."""


def in_memory(**config: Any) -> duckdb.DuckDBPyConnection:
    """Return a connection to an empty in-memory DuckDB database, with the progress bar disabled.

    Args:
        **config: Settings that DuckDB accepts only at start.
    """
    connection = duckdb.connect(config=config)
    _draw_no_bar(connection)
    return connection


def in_file(path: Path, **config: Any) -> duckdb.DuckDBPyConnection:
    """Return a read-only connection to a DuckDB file, with the progress bar disabled and all settings locked.

    Raises:
        duckdb.Error: The file cannot be opened.
    """
    connection = duckdb.connect(str(path), read_only=True, config=config)
    lock_settings(connection)
    return connection


def lock_settings(connection: duckdb.DuckDBPyConnection) -> None:
    """Disable the progress bar and lock a connection's settings; do nothing if they are locked already."""
    if not connection.execute("SELECT current_setting('lock_configuration')").fetchall()[0][0]:
        _draw_no_bar(connection)
        connection.execute("SET lock_configuration = true")


def _draw_no_bar(connection: duckdb.DuckDBPyConnection) -> None:
    for statement in connection.execute(NO_PROGRESS_BAR).fetchall():
        connection.execute(*statement)


_MAGIC_AT, _MAGIC = 8, b"DUCK"
_HEADER_BYTES: Final = 3 * 4096
"""A shorter file contains no rows."""
_START_BYTES: Final = 4096
_PROGRAMS: Final = {b"SQLite format 3\0": "a SQLite database", b"PAR1": "a Parquet file", b"\x1f\x8b": "a gzip file"}
_SEPARATED: Final = {".csv": "a CSV file", ".tsv": "a TSV file"}
_OUR_NAMES: Final = (b"schema_version", b"spool_sha256")
"""A table and a column of every result database; DuckDB stores their names uncompressed."""


def is_duckdb_file(path: Path) -> bool:
    """Return whether a regular file starts with the signature of DuckDB files.

    Raises:
        OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        return file.read(_MAGIC_AT + len(_MAGIC))[_MAGIC_AT:] == _MAGIC


def require_duckdb_file(path: Path) -> None:
    """Check that a path does not exist, is an empty file, or starts with the signature of DuckDB files.

    Raises:
        UserError: The path is anything else; the message says what.
    """
    try:
        status = path.stat()
    except FileNotFoundError:
        if path.is_symlink():
            raise _refusal(path, "a link to a file that does not exist") from None
        return
    except OSError:
        return  # opening it reports the error
    if not stat.S_ISREG(status.st_mode):
        raise _refusal(path, "a folder" if stat.S_ISDIR(status.st_mode) else "a pipe, a socket or a device")
    try:
        if not status.st_size or is_duckdb_file(path):
            return
        raise _refusal(path, _kind(path))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error


def is_ours(path: Path) -> bool:
    """Return whether a damaged DuckDB file contains names from ExitBench's schema, or is too short to contain a row."""
    if path.stat().st_size <= _HEADER_BYTES:
        return True
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return all(content.find(name) >= 0 for name in _OUR_NAMES)


def _kind(path: Path) -> str | None:
    """Return the format of a file for a message, such as ``a CSV file``; None if the format is not recognized."""
    with path.open("rb") as file:
        start = file.read(_START_BYTES)
    for magic, name in _PROGRAMS.items():
        if start.startswith(magic):
            return name
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(start)  # its last character may be incomplete
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else _SEPARATED.get(path.suffix.lower(), "a text file")


def _refusal(path: Path, kind: str | None) -> UserError:
    what = f"{kind}, not a DuckDB database" if kind else "not a DuckDB database"
    return UserError(f"{path} is {what}; it is not changed. Name a result database, or a file that does not exist.")


_DAMAGE: Final = ("Corrupt", "corrupt", "Could not read enough bytes", "checksum", "Failure while replaying WAL")
_NO_ROOM: Final = (
    duckdb.IOException,
    duckdb.OutOfMemoryException,
    duckdb.FatalException,
    duckdb.SerializationException,
)


def driver_error(error: BaseException) -> BaseException:
    """Return the DuckDB or Arrow error among an error's causes, such as one that SQLAlchemy wraps; else the error."""
    cause: BaseException | None = error
    while cause is not None:
        if _is_of(cause, "sqlalchemy.exc", "StatementError") and cause.orig is not None:  # type: ignore[attr-defined]
            return cause.orig  # type: ignore[attr-defined,no-any-return]
        if _is_drivers(cause):
            return cause
        cause = cause.__cause__
    return error


def is_damage(error: BaseException) -> bool:
    """Return whether an error indicates that the database file is damaged."""
    error = driver_error(error)
    return _is_drivers(error) and any(sign in str(error) for sign in _DAMAGE)


def is_system_error(error: BaseException) -> bool:
    """Return whether an error is caused by the file or the machine (damage, full disk), not by the written data."""
    cause = driver_error(error)
    # A commit fails for lack of space, or because a key is duplicated.
    at_commit = isinstance(cause, duckdb.TransactionException) and "onstraint" not in str(cause)
    return isinstance(cause, _NO_ROOM) or at_commit or is_damage(error)


def _is_drivers(error: BaseException) -> bool:
    return isinstance(error, duckdb.Error) or _is_of(error, "pyarrow", "ArrowException")


def _is_of(error: BaseException, module: str, name: str) -> bool:
    """Return whether an error is an instance of a module's class; False if the module has not been imported."""
    library = sys.modules.get(module)
    return library is not None and isinstance(error, getattr(library, name))
