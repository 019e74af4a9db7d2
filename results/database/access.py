"""Access to a database: a fair readers-writer lock, waiting for other processes, and mark files of checked databases.

DuckDB lets many readers or one writer open a file and refuses all others immediately. If readers come and go all the
time, a writer would never find the file free. So every process first acquires this lock, a lock file next to the
database: readers share it only while they open the file; a writer holds it until it closes the file. A second lock file
shows the writer that another process waits, so that the writer soon closes the database.

A run opens its database hundreds of times, and checking all tables, views and macros takes longer than opening it. A
process that fills a database leaves a mark next to it, so that the next process can skip the check. A mark is valid if
it and the database belong to the user and no other user may write them. It names the file's inode and the time of its
last change, which no process can set.
"""

import contextlib
import json
import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, Self, TypeVar

from exitbench.errors import UserError
from exitbench.results.files.atomic import lock, write_whole_file

POLL_S = 0.02
"""Seconds between attempts."""

_LONGEST_S = 1.0


class DatabaseInUse(UserError):
    """Raised if another process has the database open; `who` names it, and `is_ours` is true if it runs ExitBench."""

    def __init__(self, path: Path, who: str, wait_s: float, *, is_ours: bool = False) -> None:
        super().__init__(f"{path} is in use by {who}; waited {wait_s:g} s. Try again when it has ended.")
        self.path, self.who, self.is_ours = path, who, is_ours


@dataclass(frozen=True)
class AccessLock:
    """Access lock of a database that this process holds until `release`: shared by readers, exclusive for a writer.

    Attributes:
        file: The locked file; None if no lock file can be created, so that nothing is locked.
    """

    file: IO[str] | None

    def release(self) -> None:
        """Release the lock; further calls do nothing."""
        if self.file is not None:
            self.file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()


def lock_file(database: Path) -> Path:
    """Return the path of the lock file next to a database."""
    return database.with_name(f".{database.name}.lock")


def acquire(database: Path, *, exclusive: bool, deadline: float) -> AccessLock | None:
    """Acquire the access lock of a database, waiting for it; return None if it is not available by the deadline.

    If no lock file can be created, the returned lock locks nothing.

    Args:
        database: The database file.
        exclusive: True for a writer's exclusive lock; readers share the lock.
        deadline: Time by `time.monotonic` until which to wait; the lock is tried at least once.
    """
    try:
        file, waiting = lock_file(database).open("a", encoding="ascii"), _waiting_file(database).open("a")
    except OSError:
        return AccessLock(None)
    with waiting:
        if not lock(file.fileno(), shared=not exclusive):
            lock(waiting.fileno(), shared=True, wait=True)
            while not lock(file.fileno(), shared=not exclusive):
                if time.monotonic() >= deadline:
                    file.close()
                    return None
                time.sleep(POLL_S)
    if exclusive:
        _note_holder(file)
    return AccessLock(file)


def _note_holder(file: IO[str]) -> None:
    # If the disk is full, only the name in messages is lost, not the lock.
    with contextlib.suppress(OSError):
        os.ftruncate(file.fileno(), 0)
        os.write(file.fileno(), str(os.getpid()).encode())


def has_waiters(database: Path) -> bool:
    """Return whether another process waits for the access lock of a database."""
    try:
        with _waiting_file(database).open("a") as waiting:
            return not lock(waiting.fileno())
    except OSError:
        return False


def yield_to_waiters(database: Path) -> None:
    """Wait until no other process waits for a database's access lock, but at most a second.

    The caller has released the lock; without this pause it could acquire it again before a waiting process retries.
    """
    deadline = time.monotonic() + _LONGEST_S
    while has_waiters(database) and time.monotonic() < deadline:
        time.sleep(POLL_S)


def _waiting_file(database: Path) -> Path:
    return database.with_name(f".{database.name}.waiting")


def holder(database: Path) -> str:
    """Return text for a message on the last process that held a database's exclusive lock, such as ``process 12``."""
    try:
        text = lock_file(database).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        text = ""
    return f"process {text}" if text.isdecimal() else "another process"


Result = TypeVar("Result")

PATIENCE_S: Final = 120.0
"""Maximum wait in seconds for an unknown process that has the database open, such as a `duckdb` shell."""


def retry_while_in_use(
    action: Callable[[], Result], on_wait: Callable[[str], None], patience_s: float = PATIENCE_S
) -> Result:
    """Run an action that opens the database, and retry it while the database is in use.

    The wait for a process of ExitBench that fills the database has no limit, because that process ends by itself.

    Args:
        action: Action to run; it must have had no effect when it raises `DatabaseInUse`.
        on_wait: Called with a message, once per process that has the database open.
        patience_s: Maximum wait in seconds for a process that is not known to be ExitBench.

    Raises:
        DatabaseInUse: A process that is not known to be ExitBench has not closed the database after `patience_s`.
    """
    notified: set[str] = set()
    unknown, since_s = "", 0.0
    while True:
        started_s = time.monotonic()
        try:
            return action()
        except DatabaseInUse as error:
            if not error.is_ours:
                if error.who != unknown:
                    unknown, since_s = error.who, started_s
                if (waited_s := time.monotonic() - since_s) >= patience_s:
                    raise DatabaseInUse(error.path, error.who, round(waited_s)) from error
            if error.who not in notified:
                notified.add(error.who)
                on_wait(f"{error.path} is in use by {error.who}; waiting for it.")


_WRITABLE_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH

_verified: dict[Path, tuple[str, tuple[int, ...]]] = {}


def mark_verified_in_process(path: Path, version: str) -> None:
    """Record for this process that a database file, in its current state, was checked and has the schema `version`.

    `version` is a digest of tables, views and macros. Call it only while no other process can write the file.
    """
    state = file_state(path)
    if state is None:
        _verified.pop(path.absolute(), None)
    else:
        _verified[path.absolute()] = version, state


def leave_mark(path: Path, version: str) -> None:
    """Write a mark file next to a database, so that other processes can skip the check of its schema.

    The mark says that the file, in its current state, has the schema `version`, a digest of tables, views and macros.
    """
    with contextlib.suppress(OSError):  # without a mark, the next process checks the database itself
        if (state := file_state(path)) is not None:
            write_whole_file(mark_of(path), json.dumps([version, state]))
            mark_of(path).chmod(0o600)


def mark_of(path: Path) -> Path:
    """Return the path of the mark file next to a database, which says that the database's schema was checked."""
    return path.with_name(f".{path.name}.verified")


def is_verified(path: Path, version: str) -> bool:
    """Return whether a database was already checked against a schema, and the file has not changed since.

    It was checked earlier in this process, or in another one that left a mark file.

    Args:
        path: The database file.
        version: Digest of the schema (tables, views, macros) that this version of ExitBench creates.
    """
    state = file_state(path)
    if state is None:
        return False
    return _verified.get(path.absolute()) == (version, state) or _marked(path) == [version, list(state)]


def was_marked(path: Path) -> bool:
    """Return whether a file once was a database of ExitBench, even if it was changed since.

    True if a mark file is next to it, and no other user could have written either file.
    """
    return _marked(path) is not None


def _marked(path: Path) -> object:
    """Return the content of a database's mark file: the schema's digest and the state of the database file.

    None if the mark is missing or unreadable, or if another user could have written the mark or the database.
    """
    try:
        if not all(_is_private(file) for file in (path, mark_of(path))):
            return None
        return json.loads(mark_of(path).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None


def _is_private(file: Path) -> bool:
    status = file.lstat()
    owned = not hasattr(os, "getuid") or status.st_uid == os.getuid()
    return stat.S_ISREG(status.st_mode) and owned and not status.st_mode & _WRITABLE_BY_OTHERS


def file_state(path: Path) -> tuple[int, ...] | None:
    """Return device, inode, size and times of a database file, which show later whether it changed.

    None if the file does not exist, or changes are still in a log next to it.
    """
    if path.with_name(f"{path.name}.wal").exists():
        return None
    try:
        status = path.stat()
    except OSError:
        return None
    # The time of the last change (ctime) cannot be set by a program, unlike that of the last write.
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
