"""Open the DuckDB file (read-only by default), its views brought up to date; one with other tables is refused.

Whoever only reads never changes the file: one whose views or macros are not exactly this version's is refused, and
nothing that another program left in it is run. DuckDB allows many readers or one writer per file and holds a file lock
to see to it; whoever comes second waits for a bounded time. The database is derived from the spool, so any trouble with
it ends at `rebuild` of `results/ingest/ingest.py`.

Files of others are read in a sandbox, which reaches them and nothing else.
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
    remember,
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
    is_trouble,
    lock_settings,
    require_duckdb_file,
)

if TYPE_CHECKING:  # half a second that whoever only reads does without
    import pyarrow as pa
    import sqlalchemy as sa

Result = TypeVar("Result")

WAIT_S: Final = 10.0
"""How long to wait for another process to let go of the database."""

_PATIENCE_S: Final = 0.5
"""How long a writer lets newcomers wait for the readers that were there before it."""

_STARVED_S: Final = 5.0
_LAST_PATIENCE_S: Final = 2.0
"""How long it does so once it has waited for `_STARVED_S` itself, since readers of long queries leave no gap."""

_NO_EXTENSIONS: Final[dict[str, Any]] = {"autoinstall_known_extensions": False, "autoload_known_extensions": False}
"""Configuration of every connection: what DuckDB lacks is neither fetched nor loaded because a file asks for it."""
# A probed token's lists make DuckDB's default of 122,880 rows a row group larger than most attempts; and what fills a
# row group is written straight into the file. Everything else is written into its log first, then into the file, and
# once more when row groups that are not full are joined.
_ROW_GROUP_ROWS: Final = 8_192
# The oldest DuckDB that can read a new database: people have older command lines than we have libraries.
_STORAGE_VERSION: Final = "v1.2.0"
_LOGS: Final = ("", ".wal", ".wal.checkpoint", ".wal.recovery")
"""What DuckDB keeps beside a database, by the end of its name."""

# Rows are found by their keys, so that threads need not wait for each other to keep an order.
_WRITER_CONFIG: Final[dict[str, Any]] = {
    **_NO_EXTENSIONS,
    "preserve_insertion_order": False,
}
# A reader can neither write files nor read others than the database, nor fetch or load extensions.
_READER_CONFIG: Final[dict[str, Any]] = {
    **_NO_EXTENSIONS,
    "enable_external_access": False,
    "python_enable_replacements": False,
}


class DamagedDatabase(UserError):
    """The file was a database of ExitBench and is not whole any more."""


@dataclass(frozen=True)
class Database:
    """An open database; close it, or use it as a context manager.

    Attributes:
        path: The file.
        duck: The one connection.
        lock: Released when the database is closed.
        folder: Temporary folder that the connection reads, if it has one; deleted when the database is closed.
        is_ours: Whether tables and views are known to be this version's.
        fault: What to say of an error of DuckDB's.
    """

    path: Path
    duck: duckdb.DuckDBPyConnection
    lock: AccessLock
    folder: TemporaryDirectory[str] | None = None
    is_ours: bool = False
    fault: Callable[[BaseException], str] = str

    @cached_property
    def engine(self) -> sa.Engine:
        """SQLAlchemy over the one connection, for those who write."""
        from exitbench.results.database.catalogue import engine_over

        return engine_over(self.duck)

    def query(self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] | None = None) -> pa.Table:
        """Run one SQL query and return its rows.

        Args:
            sql: DuckDB SQL; `?` or `$name` stand for parameters.
            parameters: Their values.

        Raises:
            UserError: DuckDB does not accept the query; carries DuckDB's message.
        """
        try:
            return self.duck.sql(sql, params=parameters).to_arrow_table()
        except duckdb.Error as error:
            raise UserError(f"The query failed: {self.fault(error)}") from error

    def rows(
        self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] | None = None
    ) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
        """Run one SQL query of few rows and return names of its columns, and its rows.

        DuckDB plans it once; for `query` twice, which takes longer than to run it where the database is small.

        Raises:
            UserError: As `query`.
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
        """Close the file and let others in."""
        self.duck.close()
        if self.is_ours:
            remember(self.path, version())
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
        if error is not None and is_trouble(error) and not isinstance(error, UserError):
            raise _open_error(self.path, error) from error


def open_database(path: Path, read_only: bool = True, wait_s: float = WAIT_S) -> Database:
    """Open the database at `path`; for a writer it is created or its views are brought up to date first.

    Args:
        path: The file. A reader needs it to exist, and leaves it as it is; a writer creates it.
        read_only: Whether nothing but the database can be read and nothing at all be written.
        wait_s: How long to wait while another process has it open.

    Raises:
        UserError: No such database, not a DuckDB file, not an ExitBench database, one with tables of another version,
            for a reader one with other views, locked by another process for longer than `wait_s`, or a folder that
            cannot be written.
    """
    if read_only:
        return _open_reader(path, wait_s)
    database = connect(path, read_only=False, wait_s=wait_s)
    if not is_verified(path, version()):
        _or_close(database, _bring_up_to_date)
    return replace(database, is_ours=True)


def _bring_up_to_date(database: Database) -> None:
    from exitbench.results.database.catalogue import bring_up_to_date

    bring_up_to_date(database.engine, str(database.path))


def log_of(path: Path) -> Path:
    """DuckDB's log of what is not in the file yet; there is none beside a file that was closed in order."""
    return path.with_name(f"{path.name}.wal")


def require_complete(path: Path) -> None:
    """Raise where DuckDB left a log beside a file that was closed."""
    if log_of(path).exists():
        raise UserError(f"{path} cannot be written: No space left on device, or something like it.")


def _create(path: Path) -> None:
    """Make an empty database, whole or not at all; whoever calls holds the lock alone."""
    beside = path.with_name(f".{path.name}.new")
    for left in (beside, log_of(beside), log_of(path)):
        left.unlink(missing_ok=True)
    try:
        with Database(beside, _connection(beside, False, 0.0), AccessLock(None)) as database:
            _bring_up_to_date(database)
        require_complete(beside)
        beside.replace(path)
        remember(path, version())
    finally:
        beside.unlink(missing_ok=True)
        log_of(beside).unlink(missing_ok=True)


def _open_reader(path: Path, wait_s: float) -> Database:
    if not path.exists():
        raise UserError(f"There is no database at {path}. Run a suite first, or rebuild it from its spool.")
    database = connect(path, read_only=True, wait_s=wait_s)
    if is_verified(path, version()):
        return database
    if _or_close(database, lambda opened: is_up_to_date(opened.duck, str(opened.path))):
        remember(path, version())
        return database
    database.close()
    raise UserError(
        f"{path} has other views than this version of ExitBench makes. `exitbench db rebuild` makes it again from its "
        "spool, and so does the next run or import into it. Of somebody else's, have a snapshot (`exitbench export`)."
    )


def check_path(path: Path) -> None:
    """Check that DuckDB can keep a database at a path.

    Raises:
        UserError: A ``?`` is in it, before which DuckDB would put the ending of its log, as in a URL.
    """
    if "?" in str(path.absolute()):
        raise UserError(f"{path.absolute()}: DuckDB keeps no database at a path with ? in it. Allowed: another name.")


def connect(path: Path, *, read_only: bool, wait_s: float) -> Database:
    """Open the file under the access lock; a reader releases it once open, a writer when it closes.

    Raises:
        UserError: As `open_database`, except that tables and views are not looked at.
    """
    check_path(path)
    require_duckdb_file(path)
    create_folder(path.parent)
    started_s = time.monotonic()
    deadline = started_s + wait_s
    while True:
        patience_s = _PATIENCE_S if time.monotonic() - started_s < _STARVED_S else _LAST_PATIENCE_S
        lock = acquire(path, alone=not read_only, deadline=deadline)
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
            time.sleep(_PATIENCE_S)  # others come first now, so that a long reader does not keep them waiting
        except BaseException:
            lock.release()
            raise
        else:
            if read_only:
                lock.release()
            return Database(path, duck, lock)


def _connection(path: Path, read_only: bool, deadline: float) -> duckdb.DuckDBPyConnection:
    """Return the one open connection, tried again until the deadline."""
    while True:
        try:
            return in_file(path, **_READER_CONFIG) if read_only else _attached(path)
        except duckdb.Error as error:
            if not _is_locked(error) or time.monotonic() >= deadline:
                raise
            time.sleep(POLL_S)


def _attached(path: Path) -> duckdb.DuckDBPyConnection:
    """A writer's connection: in memory, the file attached as its database."""
    duck = in_memory(**_WRITER_CONFIG)
    try:
        lock_settings(duck)
        duck.execute(attach_sql(path, "results"))
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
            f"{path} is damaged: {message}\nNothing in it shows that ExitBench made it; it is left as it is. "
            "Name another file, or move this one away."
        )
    return DamagedDatabase(
        f"{path} is damaged: {message}\nWhat is in the spool is not lost: `exitbench db rebuild` builds it anew."
    )


def create_folder(folder: Path) -> None:
    """Make a folder, and those above it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"The folder {folder} cannot be created: {error.strerror}.") from error


def _or_close(database: Database, action: Callable[[Database], Result]) -> Result:
    try:
        return action(database)
    except BaseException as error:
        database.close()
        if is_trouble(error):
            raise _open_error(database.path, error) from error
        raise


def attach_sql(path: Path, name: str) -> str:
    """Return SQL that makes a file a database of a connection's, to be written; only this can say how it is stored."""
    stored = f"ROW_GROUP_SIZE {_ROW_GROUP_ROWS}"
    if not path.exists():  # one that exists keeps its version, which cannot be lowered
        stored += f", STORAGE_VERSION '{_STORAGE_VERSION}'"
    return f"ATTACH {quoted_text(str(path))} AS {name} (TYPE duckdb, {stored})"


def sandbox(
    readable: Iterable[Path], folder: Path, folders: Iterable[Path] = (), settings: Iterable[str] = ()
) -> duckdb.DuckDBPyConnection:
    """Return a connection that reaches some files and a folder of one's own, for good.

    Args:
        readable: Files of others, and of a database what DuckDB keeps beside it.
        folder: Where it may write, and does so when memory is short.
        folders: Folders of others.
        settings: Further settings, as NAME = VALUE.
    """
    # DuckDB asks first whether a pattern is allowed, and then each file that it matches.
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
