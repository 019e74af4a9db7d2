"""Open a result database (read-only by default, or for writing with upgraded views); reject files with other tables.

A reader never changes the file: a file whose views or macros are not exactly this version's is rejected, and nothing
that another program left in it is run. DuckDB allows many readers or one writer per file and enforces it with a file
lock; further processes wait for a limited time. The database is derived from the spool, so any problem with it can be
solved by `rebuild` of `results/ingest/ingest.py`.

Third-party files are read in a sandbox, which has access to these files only.
"""

from __future__ import annotations

import glob
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import duckdb

from exitbench.errors import UserError
from exitbench.results.database.access import (
    POLL_S,
    AccessLock,
    DatabaseInUse,
    acquire,
    has_waiters,
    holder,
    is_verified,
    leave_mark,
    mark_verified_in_process,
    was_marked,
)
from exitbench.results.database.current import is_up_to_date, version
from exitbench.results.database.tables import quoted_text
from exitbench.results.files.duckdb_files import (
    driver_error,
    in_file,
    in_memory,
    is_damage,
    is_ours,
    is_system_error,
    lock_settings,
    require_duckdb_file,
)

if TYPE_CHECKING:  # half a second that readers do not need
    import pyarrow as pa
    import sqlalchemy as sa

Result = TypeVar("Result")

WAIT_S: Final = 10.0
"""Seconds to wait for another process to release the database."""

_PATIENCE_S: Final = 0.5
"""Seconds for which a writer, waiting for current readers, blocks new ones."""

_STARVED_S: Final = 5.0
_LAST_PATIENCE_S: Final = 2.0
"""The same once the writer has waited for `_STARVED_S`, since readers with long queries may leave no gap."""

_NO_EXTENSIONS: Final[dict[str, Any]] = {"autoinstall_known_extensions": False, "autoload_known_extensions": False}
"""Configuration of every connection: no extension is downloaded or loaded because a file requests it."""
# The lists of probed tokens make DuckDB's default row group of 122,880 rows larger than most attempts. Only full row
# groups are written directly to the file. All other rows are written to the log first, then to the file, and again when
# partial row groups are merged.
_ROW_GROUP_ROWS: Final = 8_192
# The oldest DuckDB that can read a new database: users have older command-line tools than our libraries.
_STORAGE_VERSION: Final = "v1.2.0"
_LOGS: Final = ("", ".wal", ".wal.checkpoint", ".wal.recovery")
"""Files that DuckDB keeps next to a database, by the suffix of their names."""

# Rows are looked up by their keys, so threads need not preserve an order.
_WRITER_CONFIG: Final[dict[str, Any]] = {
    **_NO_EXTENSIONS,
    "preserve_insertion_order": False,
}
# A reader can neither write files nor read files other than the database, nor download or load extensions.
_READER_CONFIG: Final[dict[str, Any]] = {
    **_NO_EXTENSIONS,
    "enable_external_access": False,
    "python_enable_replacements": False,
}


class DamagedDatabase(UserError):
    """Raised if a damaged file is recognized as a database of ExitBench, which can be rebuilt from the spool."""


@dataclass(frozen=True)
class Database:
    """Open result database; close it, or use it as a context manager.

    Attributes:
        path: The database file.
        duck: The only DuckDB connection to the file.
        lock: Access lock that is released when the database is closed.
        folder: Temporary folder that the connection reads, if any; deleted when the database is closed.
        is_ours: True if tables and views are known to be those of this version of ExitBench.
        fault: Function that returns the message to show for an error of DuckDB.
    """

    path: Path
    duck: duckdb.DuckDBPyConnection
    lock: AccessLock
    folder: TemporaryDirectory[str] | None = None
    is_ours: bool = False
    fault: Callable[[BaseException], str] = str

    @cached_property
    def engine(self) -> sa.Engine:
        """SQLAlchemy engine over the same connection, for writers."""
        from exitbench.results.database.catalogue import engine_over

        return engine_over(self.duck)

    def query(self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] | None = None) -> pa.Table:
        """Run one SQL query and return its rows.

        Args:
            sql: DuckDB SQL with `?` or `$name` as parameters.
            parameters: Values of the parameters.

        Raises:
            UserError: DuckDB rejects the query; the message is DuckDB's.
        """
        try:
            return self.duck.sql(sql, params=parameters).to_arrow_table()
        except duckdb.Error as error:
            raise UserError(f"The query failed: {self.fault(error)}") from error

    def rows(
        self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] | None = None
    ) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
        """Run one SQL query that returns few rows; return the column names, and the rows as tuples.

        DuckDB plans the query once here, but twice in `query`. On a small database, planning takes longer than running.
        Arguments as in `query`.

        Raises:
            UserError: As for `query`.
        """
        try:
            answer = self.duck.execute(sql, parameters)
            return tuple(column[0] for column in answer.description or ()), answer.fetchall()
        except duckdb.Error as error:
            raise UserError(f"The query failed: {self.fault(error)}") from error

    def has_waiters(self) -> bool:
        """Return whether another process waits for this one to close the database."""
        return has_waiters(self.path)

    def close(self) -> None:
        """Close the file and release the lock."""
        self.duck.close()
        if self.is_ours:
            mark_verified_in_process(self.path, version())
            leave_mark(self.path, version())
        self.lock.release()
        if self.folder is not None:
            self.folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
        if error is not None and is_damage(error):
            raise _damaged(self.path, str(driver_error(error))) from error
        if error is not None and is_system_error(error) and not isinstance(error, UserError):
            raise _open_error(self.path, error) from error


def open_database(path: Path, read_only: bool = True, wait_s: float = WAIT_S) -> Database:
    """Open the result database at `path`; for a writer, create the file or upgrade its views first.

    Args:
        path: The file. For a reader it must exist and is not changed; a writer creates it.
        read_only: True for a connection that can read only the database and cannot write anything.
        wait_s: Maximum wait in seconds while another process has the database open.

    Raises:
        UserError: The file does not exist, is no database of ExitBench, or has tables of another version or (for a
            reader) other views. Or another process locks it for longer than `wait_s`, or its folder cannot be written.
    """
    if read_only:
        return _open_reader(path, wait_s)
    database = connect(path, read_only=False, wait_s=wait_s)
    if not is_verified(path, version()):
        _or_close(database, _upgrade_schema)
    return replace(database, is_ours=True)


def _upgrade_schema(database: Database) -> None:
    from exitbench.results.database.catalogue import upgrade_schema

    upgrade_schema(database.engine, str(database.path))


def log_of(path: Path) -> Path:
    """Return the path of a database's write-ahead log; a database that was closed properly has no such file."""
    return path.with_name(f"{path.name}.wal")


def require_complete(path: Path) -> None:
    """Raise `UserError` if a closed database has a write-ahead log: some changes could not be written to the file."""
    if log_of(path).exists():
        raise UserError(f"{path} cannot be written completely: No space left on device, or a similar error.")


def _create(path: Path) -> None:
    """Create an empty database, completely or not at all; the caller holds the exclusive lock."""
    partial = path.with_name(f".{path.name}.new")
    for leftover in (partial, log_of(partial), log_of(path)):
        leftover.unlink(missing_ok=True)
    try:
        with Database(partial, _connection(partial, False, 0.0), AccessLock(None)) as database:
            _upgrade_schema(database)
        require_complete(partial)
        partial.replace(path)
        mark_verified_in_process(path, version())
    finally:
        partial.unlink(missing_ok=True)
        log_of(partial).unlink(missing_ok=True)


def _open_reader(path: Path, wait_s: float) -> Database:
    if not path.exists():
        raise UserError(f"There is no database at {path}. Run a suite first, or rebuild it from its spool.")
    database = connect(path, read_only=True, wait_s=wait_s)
    if is_verified(path, version()):
        return database
    if _or_close(database, lambda opened: is_up_to_date(opened.duck, str(opened.path))):
        mark_verified_in_process(path, version())
        return database
    database.close()
    raise UserError(
        f"{path} has views of another version of ExitBench. `exitbench db rebuild` rebuilds it from its spool, and so "
        "does the next run or import into it. Of a database from elsewhere, request a snapshot (`exitbench export`)."
    )


def check_path(path: Path) -> None:
    """Check that DuckDB can store a database at a path.

    Raises:
        UserError: The path contains a ``?``. DuckDB would take it for the query of a URL, and put the suffix of its log
            before it.
    """
    if "?" in str(path.absolute()):
        raise UserError(f"{path.absolute()}: DuckDB does not support a path with ? in it. Choose another name.")


def connect(path: Path, *, read_only: bool, wait_s: float) -> Database:
    """Acquire the access lock and open a database file; wait up to `wait_s` seconds for other processes.

    A reader (`read_only`) releases the lock as soon as the file is open, a writer when it closes the file.

    Raises:
        UserError: As for `open_database`, except that tables and views are not checked.
    """
    check_path(path)
    require_duckdb_file(path)
    create_folder(path.parent)
    started_s = time.monotonic()
    deadline = started_s + wait_s
    while True:
        patience_s = _PATIENCE_S if time.monotonic() - started_s < _STARVED_S else _LAST_PATIENCE_S
        lock = acquire(path, exclusive=not read_only, deadline=deadline)
        if lock is None:
            raise DatabaseInUse(path, holder(path), wait_s, is_ours=True)
        try:
            if not read_only and not path.exists():
                _create(path)
            duck = _connection(path, read_only, min(deadline, time.monotonic() + patience_s))
        except duckdb.Error as error:
            lock.release()
            if not _is_locked(error):
                raise _open_error(path, error) from error
            if time.monotonic() >= deadline:
                raise _in_use(path, error, wait_s) from error
            time.sleep(_PATIENCE_S)  # let other processes go first, so that a long reader does not keep them waiting
        except BaseException:
            lock.release()
            raise
        else:
            if read_only:
                lock.release()
            return Database(path, duck, lock)


def _connection(path: Path, read_only: bool, deadline: float) -> duckdb.DuckDBPyConnection:
    """Open a database file and return the connection; while another process locks the file, retry until `deadline`."""
    while True:
        try:
            return in_file(path, **_READER_CONFIG) if read_only else _attached(path)
        except duckdb.Error as error:
            if not _is_locked(error) or time.monotonic() >= deadline:
                raise
            time.sleep(POLL_S)


def _attached(path: Path) -> duckdb.DuckDBPyConnection:
    """Return a writer's connection: an in-memory DuckDB database to which the file is attached."""
    duck = in_memory(**_WRITER_CONFIG)
    try:
        lock_settings(duck)
        # Only ATTACH can set the row group size and, for a new file, the storage version.
        stored = f"ROW_GROUP_SIZE {_ROW_GROUP_ROWS}"
        if not path.exists():  # an existing file keeps its version, which cannot be lowered
            stored += f", STORAGE_VERSION '{_STORAGE_VERSION}'"
        duck.execute(f"ATTACH {quoted_text(str(path))} AS results (TYPE duckdb, {stored})")
        duck.execute("USE results")
    except BaseException:
        duck.close()
        raise
    return duck


def _is_locked(error: BaseException) -> bool:
    return "Could not set lock" in str(driver_error(error))


def _in_use(path: Path, error: BaseException, wait_s: float) -> DatabaseInUse:
    process = re.search(r"PID (\d+)", str(driver_error(error)))
    return DatabaseInUse(path, f"process {process[1]}" if process else "another process", wait_s)


def _open_error(path: Path, error: BaseException) -> UserError:
    message = str(driver_error(error))
    if "not a valid DuckDB database file" in message and path.stat().st_size == 0:
        return _damaged(path, "it is empty.")
    return _damaged(path, message) if is_damage(error) else UserError(f"{path} cannot be opened or written: {message}")


def _damaged(path: Path, message: str) -> UserError:
    if not is_ours(path) and not was_marked(path):
        return UserError(
            f"{path} is damaged: {message}\nIt cannot be identified as a database of ExitBench, so it is not changed. "
            "Name another file, or move this one."
        )
    return DamagedDatabase(
        f"{path} is damaged: {message}\nResults in the spool are not lost: `exitbench db rebuild` rebuilds it."
    )


def create_folder(folder: Path) -> None:
    """Create a folder and its parents, unless they exist.

    Raises:
        UserError: The folder cannot be created.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"The folder {folder} cannot be created: {error.strerror}.") from error


def _or_close(database: Database, action: Callable[[Database], Result]) -> Result:
    try:
        return action(database)
    except BaseException as error:
        database.close()
        if is_system_error(error):
            raise _open_error(database.path, error) from error
        raise


def sandbox(
    readable: Iterable[Path], folder: Path, folders: Iterable[Path] = (), settings: Iterable[str] = ()
) -> duckdb.DuckDBPyConnection:
    """Return an in-memory DuckDB connection that can access only the given files and folders, with settings locked.

    Args:
        readable: Third-party files to read; for databases, the logs that DuckDB keeps next to them are included.
        folder: Private folder to write to, also for data that does not fit into memory.
        folders: Third-party folders to read.
        settings: Further DuckDB settings, as NAME = VALUE.
    """
    # DuckDB first checks whether a pattern is allowed, and then each file that matches it.
    names = [name for path in map(str, readable) for name in (path, glob.escape(path))]
    files = [quoted_text(name + end) for name in names for end in _LOGS]
    duck = in_memory(**_NO_EXTENSIONS, python_enable_replacements=False)
    for setting in (
        f"temp_directory = {quoted_text(str(folder / 'spilled'))}",
        f"allowed_paths = [{', '.join(files)}]",
        f"allowed_directories = [{', '.join(quoted_text(str(each)) for each in (folder, *folders))}]",
        *settings,
        "enable_external_access = false",
        "lock_configuration = true",
    ):
        duck.execute(f"SET {setting}")
    return duck
