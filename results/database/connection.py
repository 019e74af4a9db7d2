"""Open the DuckDB file (read-only by default), bring its schema and views up to date, rebuild it from a spool.

Whoever only reads never changes the file: one whose tables, views or macros are not exactly this version's is read from
a copy that is (`results/database/foreign.py`). DuckDB allows many readers or one writer per file and holds a file lock
to see to it; whoever comes second waits for a bounded time. The database is derived from the spool, so any trouble with
it ends at `results/ingest/rebuild.py`.
"""

import hashlib
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import duckdb
import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.pool import StaticPool

from exitbench import __version__
from exitbench.errors import UserError
from exitbench.results.database import migrations
from exitbench.results.database.access_lock import POLL_S, AccessLock, acquire, has_waiters, holder
from exitbench.results.database.catalogue import SCHEMA_VERSION, VIEW_SOURCE
from exitbench.results.database.earlier import complete
from exitbench.results.database.foreign import copy_database, read_version
from exitbench.results.database.published import digest as publications_digest
from exitbench.results.database.published import is_current as publications_are_current
from exitbench.results.database.published import refresh as refresh_publications
from exitbench.results.database.sandbox import NO_EXTENSIONS, attach_sql
from exitbench.results.database.tables import (
    Catalogue,
    catalogue_with,
    quoted,
    read_catalogue,
    require_tables,
    schema_version,
    spelled,
)
from exitbench.results.database.trouble import driver_error, is_damage, is_trouble
from exitbench.results.database.verified import is_verified, remember
from exitbench.results.files.arrow import driver_connection
from exitbench.results.files.canonical import canonical_json, content_id
from exitbench.results.files.memory import NO_PROGRESS_BAR
from exitbench.terminal import tell

Result = TypeVar("Result")

WAIT_S: Final = 10.0
"""How long to wait for another process to let go of the database."""

_PATIENCE_S: Final = 0.5
"""How long a writer lets newcomers wait for the readers that were there before it."""

_STARVED_S: Final = 5.0
_LAST_PATIENCE_S: Final = 2.0
"""How long it does so once it has waited for `_STARVED_S` itself, since readers of long queries leave no gap."""

_SMALLEST_BYTES: Final = 16
"""A file shorter than this does not even say that it is DuckDB's."""

_PACKAGE = "exitbench.results.database"
# Rows are found by their keys, so that threads need not wait for each other to keep an order.
_WRITER_CONFIG: Final[dict[str, Any]] = {
    **NO_EXTENSIONS,
    "preserve_insertion_order": False,
}
# A reader can neither write files nor read others than the database, nor fetch or load extensions.
_READER_CONFIG: Final[dict[str, Any]] = {
    **NO_EXTENSIONS,
    "enable_external_access": False,
    "python_enable_replacements": False,
}


class DatabaseInUse(UserError):
    """Another process has the database open; `who` says which, `is_ours` whether it is known to be one of ExitBench."""

    def __init__(self, path: Path, who: str, wait_s: float, *, is_ours: bool = False) -> None:
        super().__init__(f"{path} is in use by {who}; waited {wait_s:g} s. Try again when it has ended.")
        self.path, self.who, self.is_ours = path, who, is_ours


class DamagedDatabase(UserError):
    """The file was a database and is not whole any more."""


@dataclass(frozen=True)
class Database:
    """An open database; close it, or use it as a context manager.

    Attributes:
        path: The file.
        engine: SQLAlchemy engine over the one connection.
        lock: Released when the database is closed.
        copy: Folder of the copy that is read in its place, if one is.
        is_ours: Whether tables and views are known to be this version's.
    """

    path: Path
    engine: sa.Engine
    lock: AccessLock
    copy: TemporaryDirectory[str] | None = None
    is_ours: bool = False

    def query(self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] | None = None) -> pa.Table:
        """Run one SQL query and return its rows.

        Args:
            sql: DuckDB SQL; `?` or `$name` stand for parameters.
            parameters: Their values.

        Raises:
            UserError: DuckDB does not accept the query; carries DuckDB's message.
        """
        with self.engine.connect() as connection:
            try:
                return driver_connection(connection).sql(sql, params=parameters).to_arrow_table()
            except duckdb.Error as error:
                raise UserError(f"The query failed: {error}") from error

    def has_waiters(self) -> bool:
        """Return whether another process waits for this one to close the database."""
        return has_waiters(self.path)

    def close(self) -> None:
        """Close the file and let others in."""
        self.engine.dispose()
        if self.is_ours:
            remember(self.path, _version())
        self.lock.release()
        if self.copy is not None:
            self.copy.cleanup()

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
    """Open the database at `path` for a writer, its schema and views brought up to date first; or what it says for a
    reader, who is given an up-to-date copy where the file itself is not.

    Args:
        path: The file. A reader needs it to exist, and leaves it as it is; a writer creates it.
        read_only: Whether nothing but the database can be read and nothing at all be written.
        wait_s: How long to wait while another process has it open.

    Raises:
        UserError: No such database, not a DuckDB file, not an ExitBench database, a newer schema than this version
            knows, tables that are not those of its schema, locked by another process for longer than `wait_s`, or a
            folder that cannot be written.
    """
    if read_only:
        return _open_reader(path, wait_s)
    database = connect(path, read_only=False, wait_s=wait_s)
    if not is_verified(path, _version()):
        _or_close(database, _bring_up_to_date)
    return replace(database, is_ours=True)


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
        with Database(beside, _engine(beside, False, 0.0), AccessLock(None)) as database:
            _bring_up_to_date(database)
        require_complete(beside)
        beside.replace(path)
        remember(path, _version())
    finally:
        beside.unlink(missing_ok=True)
        log_of(beside).unlink(missing_ok=True)


def _open_reader(path: Path, wait_s: float) -> Database:
    if not path.exists():
        raise UserError(f"There is no database at {path}. Run a suite first, or rebuild it from its spool.")
    database = connect(path, read_only=True, wait_s=wait_s)
    if is_verified(path, _version()):
        return database
    if _or_close(database, _is_up_to_date):
        remember(path, _version())
        return database
    database.close()
    return _open_copy(path, wait_s)


def _open_copy(path: Path, wait_s: float) -> Database:
    """Open a copy that is up to date, which is gone when it is closed."""
    tell(
        f"{path} is not as this version of ExitBench makes it: a copy is read. The next run or import into it, or "
        "`exitbench db rebuild`, brings it up to date.",
    )
    folder = TemporaryDirectory(prefix="exitbench-")
    try:
        beside = Path(folder.name) / path.name
        copy_to(path, beside, wait_s)
        copy = connect(beside, read_only=True, wait_s=wait_s)
    except BaseException:
        folder.cleanup()
        raise
    return Database(path, copy.engine, copy.lock, folder)


def copy_to(source: Path, target: Path, wait_s: float = WAIT_S) -> None:
    """Write the rows of a database, somebody else's perhaps, into a new one of this version; the source is only read.

    Args:
        source: The database.
        target: In a folder of one's own; must not exist.
        wait_s: How long to wait while another process has the source open.

    Raises:
        UserError: As `open_database`; or the source has tables that no database of its schema has, or there is no room
            for the copy.
    """
    deadline = time.monotonic() + wait_s
    while True:
        try:
            copy_database(source.absolute(), target)
            break
        except duckdb.Error as error:
            if not _is_locked(error):
                raise _open_error(source, error) from error
            if time.monotonic() >= deadline:
                raise _in_use(source, error, wait_s) from error
            target.unlink(missing_ok=True)
            time.sleep(POLL_S)
    try:
        open_database(target, read_only=False).close()
    except sa.exc.DBAPIError as error:
        raise _open_error(source, error) from error
    require_complete(target)


def connect(path: Path, *, read_only: bool, wait_s: float) -> Database:
    """Open the file under the access lock; a reader releases it once open, a writer when it closes."""
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
            engine = _engine(path, read_only, min(deadline, time.monotonic() + patience_s))
        except sa.exc.DBAPIError as error:
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
            return Database(path, engine, lock)


def _engine(path: Path, read_only: bool, deadline: float) -> sa.Engine:
    """Return an engine over the one open connection, tried again until the deadline."""
    engine = sa.create_engine(
        sa.URL.create("duckdb", database=str(path) if read_only else ":memory:"),
        poolclass=StaticPool,
        connect_args={"read_only": read_only, "config": _READER_CONFIG if read_only else _WRITER_CONFIG},
        json_serializer=canonical_json,
    )
    while True:
        try:
            with engine.connect() as connection:
                # A progress bar would be drawn on standard output, among rows; it cannot be turned off any earlier.
                if not connection.exec_driver_sql("SELECT current_setting('lock_configuration')").scalar_one():
                    for (statement,) in connection.exec_driver_sql(NO_PROGRESS_BAR).fetchall():
                        connection.exec_driver_sql(statement)
                    connection.exec_driver_sql("SET lock_configuration = true")
                if not read_only:
                    _attach(connection, path)
        except sa.exc.DBAPIError as error:
            if not _is_locked(error) or time.monotonic() >= deadline:
                engine.dispose()
                raise
            time.sleep(POLL_S)
        else:
            return engine


def _attach(connection: sa.Connection, path: Path) -> None:
    """Make the file the connection's database."""
    connection.exec_driver_sql(attach_sql(path, "results"))
    connection.exec_driver_sql("USE results")
    connection.commit()


def _is_locked(error: BaseException) -> bool:
    return "Could not set lock" in str(driver_error(error))


def _in_use(path: Path, error: BaseException, wait_s: float) -> DatabaseInUse:
    process = re.search(r"PID (\d+)", str(driver_error(error)))
    return DatabaseInUse(path, f"process {process[1]}" if process else "another process", wait_s)


def _open_error(path: Path, error: BaseException) -> UserError:
    message = str(driver_error(error))
    if "not a valid DuckDB database file" in message:
        if path.stat().st_size < _SMALLEST_BYTES:
            return _damaged(path, "it is empty.")
        return UserError(f"{path} is not a DuckDB database. Name another file, or move this one away.")
    return _damaged(path, message) if is_damage(error) else UserError(f"{path} cannot be opened or written: {message}")


def _damaged(path: Path, message: str) -> DamagedDatabase:
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


def _is_up_to_date(database: Database) -> bool:
    """Whether views, macros and the tables beneath them are exactly this version's; more tables or views do no harm."""
    with database.engine.connect() as connection:
        name, catalogue = _name_and_catalogue(connection)
        return (
            read_version(driver_connection(connection), name, catalogue, str(database.path)) == schema_version()
            and catalogue_with(_views_script(), catalogue.storage).tables.items() <= catalogue.tables.items()
            and _views_are_current(connection, catalogue)
            and publications_are_current(connection)
        )


def _bring_up_to_date(database: Database) -> None:
    scripts = migrations.migration_scripts()
    with database.engine.begin() as connection:
        name, catalogue = _name_and_catalogue(connection)
        version = read_version(driver_connection(connection), name, catalogue, str(database.path))
        require_tables(catalogue.tables, version, str(database.path))
        if foreign := sorted(catalogue.triggers | catalogue.types):
            raise UserError(
                f"{database.path} has a trigger or type {spelled(foreign[0])}, which no database of ExitBench has. "
                "Rebuild it from its spool: `exitbench db rebuild`."
            )
        views_are_current = version == len(scripts) and _views_are_current(connection, catalogue)
        if version and not views_are_current:
            _drop_views(connection, catalogue)
    for number, script in enumerate(scripts[version:], start=version + 1):
        with database.engine.begin() as connection:
            connection.exec_driver_sql(script)
            applied_at = datetime.now(UTC).replace(tzinfo=None)
            connection.execute(
                SCHEMA_VERSION.insert().values(version=number, applied_at=applied_at, tool=f"exitbench {__version__}")
            )
    with database.engine.begin() as connection:
        if not views_are_current:
            _create_views(connection)
        if version < len(scripts):
            complete(connection)
        refresh_publications(connection)


def _name_and_catalogue(connection: sa.Connection) -> tuple[str, Catalogue]:
    """Return the name that the file has in its connection, and what is in it."""
    duck = driver_connection(connection)
    attached = duck.execute("SELECT database_name, path FROM system.main.duckdb_databases()").fetchall()
    (name,) = (name for name, path in attached if path is not None)
    return name, read_catalogue(duck, name)


def _views_script() -> str:
    return (files(_PACKAGE) / "views.sql").read_text(encoding="utf-8")


def _version() -> str:
    """Digest of all that makes tables, views, and the rows of publications."""
    return content_id([*migrations.migration_scripts(), _views_script(), publications_digest()])


def _views_digest() -> str:
    return hashlib.sha256(_views_script().encode()).hexdigest()


def _views_are_current(connection: sa.Connection, catalogue: Catalogue) -> bool:
    """Whether the views are those that the file says they are, and nothing that they call is called like another."""
    expected = catalogue_with(_views_script(), catalogue.storage)
    return (
        expected.views.items() <= catalogue.views.items()
        and (catalogue.macros, catalogue.types) == (expected.macros, expected.types)
        and connection.execute(sa.select(VIEW_SOURCE.c.sha256)).scalar_one_or_none() == _views_digest()
    )


def _drop_views(connection: sa.Connection, catalogue: Catalogue) -> None:
    connection.execute(VIEW_SOURCE.delete())
    for view in catalogue.views:
        connection.exec_driver_sql(f"DROP VIEW {quoted(view)}")
    for macro, kind in {(name, kind) for name, kind, *_ in catalogue.macros}:
        connection.exec_driver_sql(f"DROP MACRO {'TABLE ' if kind == 'table_macro' else ''}{quoted(macro)}")


def _create_views(connection: sa.Connection) -> None:
    connection.exec_driver_sql(_views_script())
    connection.execute(VIEW_SOURCE.insert().values(sha256=_views_digest()))
