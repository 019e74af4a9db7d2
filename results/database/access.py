"""Who may open a database: a fair readers-writer lock, patience with its holder, and marks of verified files.

DuckDB lets many readers or one writer open a file; whoever comes at the wrong moment is refused at once, and where
readers come and go all the time a writer would never find the file free. So whoever wants to open it acquires this lock
first, a lock file beside it: readers share it and only while they open; a writer keeps it until it closes, and closes
soon after it sees, by a second lock file, that somebody waits.

A run opens its database hundreds of times, and looking at all tables, views and macros takes longer than opening it.
Whoever fills a database leaves a mark beside it, so that the next process need not look either: a mark counts where
it and the database belong to the user and nobody else may write them, and names the file's inode and the time of its
last change, which nobody can choose.
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
"""How often to try again."""

_LONGEST_S = 1.0


class DatabaseInUse(UserError):
    """Another process has the database open; `who` says which, `is_ours` whether it is known to be one of ExitBench."""

    def __init__(self, path: Path, who: str, wait_s: float, *, is_ours: bool = False) -> None:
        super().__init__(f"{path} is in use by {who}; waited {wait_s:g} s. Try again when it has ended.")
        self.path, self.who, self.is_ours = path, who, is_ours


@dataclass(frozen=True)
class AccessLock:
    """The lock as acquired; `release` it. None is held where the lock file cannot be made (a read-only folder)."""

    file: IO[str] | None

    def release(self) -> None:
        """Let the others in; once is enough."""
        if self.file is not None:
            self.file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()


def lock_file(database: Path) -> Path:
    """Return the lock file of a database."""
    return database.with_name(f".{database.name}.lock")


def acquire(database: Path, *, alone: bool, deadline: float) -> AccessLock | None:
    """Acquire the lock, waiting for it; None if it is not to be had by the deadline.

    Args:
        database: The file.
        alone: As a writer, not shared.
        deadline: Of `time.monotonic`; there is always one attempt.
    """
    try:
        file, waiting = lock_file(database).open("a", encoding="ascii"), _waiting_file(database).open("a")
    except OSError:
        return AccessLock(None)
    with waiting:
        if not lock(file.fileno(), shared=not alone):
            lock(waiting.fileno(), shared=True, wait=True)
            while not lock(file.fileno(), shared=not alone):
                if time.monotonic() >= deadline:
                    file.close()
                    return None
                time.sleep(POLL_S)
    if alone:
        _note_holder(file)
    return AccessLock(file)


def _note_holder(file: IO[str]) -> None:
    # A full disk costs the name in a message, not the lock.
    with contextlib.suppress(OSError):
        os.ftruncate(file.fileno(), 0)
        os.write(file.fileno(), str(os.getpid()).encode())


def has_waiters(database: Path) -> bool:
    """Return whether somebody waits for the lock."""
    try:
        with _waiting_file(database).open("a") as waiting:
            return not lock(waiting.fileno())
    except OSError:
        return False


def yield_to_waiters(database: Path) -> None:
    """Wait until those who wait have had the lock, for a bounded time; they try only now and then."""
    deadline = time.monotonic() + _LONGEST_S
    while has_waiters(database) and time.monotonic() < deadline:
        time.sleep(POLL_S)


def _waiting_file(database: Path) -> Path:
    return database.with_name(f".{database.name}.waiting")


def holder(database: Path) -> str:
    """Return who last held the lock alone, in words."""
    try:
        text = lock_file(database).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        text = ""
    return f"process {text}" if text.isdecimal() else "another process"


Result = TypeVar("Result")

PATIENCE_S: Final = 120.0
"""How long to wait for a process that has the database open and of which nothing is known, such as a `duckdb` shell."""


def patiently(action: Callable[[], Result], say: Callable[[str], None], patience_s: float = PATIENCE_S) -> Result:
    """Do what opens the database, again and again while it is in use.

    A process of ExitBench that fills the database holds the lock (`acquire`), ends its work, and is waited for
    however long that takes. Of any other holder only time tells.

    Args:
        action: What to do; it must have done nothing where it raises `DatabaseInUse`.
        say: Told once of each holder.
        patience_s: How long to wait for one holder of which nothing is known.

    Raises:
        DatabaseInUse: It has not let go.
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
                say(f"{error.path} is in use by {error.who}; waiting for it.")


_WRITABLE_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH

_verified: dict[Path, tuple[str, tuple[int, ...]]] = {}


def remember(path: Path, version: str) -> None:
    """Note that a database, which no other process can write at this moment, is as `version` makes it."""
    state = file_state(path)
    if state is None:
        _verified.pop(path.absolute(), None)
    else:
        _verified[path.absolute()] = version, state


def leave_mark(path: Path, version: str) -> None:
    """Note it for other processes too, in a file beside the database; for those who have written it."""
    with contextlib.suppress(OSError):  # who finds no mark looks for himself
        if (state := file_state(path)) is not None:
            write_whole_file(mark_of(path), json.dumps([version, state]))
            mark_of(path).chmod(0o600)


def mark_of(path: Path) -> Path:
    """Return where the mark of a database lies."""
    return path.with_name(f".{path.name}.verified")


def is_verified(path: Path, version: str) -> bool:
    """Return whether a database was remembered with this version, and its file has not changed since."""
    state = file_state(path)
    if state is None:
        return False
    return _verified.get(path.absolute()) == (version, state) or _marked(path) == [version, list(state)]


def was_marked(path: Path) -> bool:
    """Return whether a mark lies beside a file: it was a database of ExitBench, whatever has happened to it since."""
    return _marked(path) is not None


def _marked(path: Path) -> object:
    """What the mark says; nothing where somebody else could have made it."""
    try:
        if not all(_is_private(file) for file in (path, mark_of(path))):
            return None
        return json.loads(mark_of(path).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None


def _is_private(file: Path) -> bool:
    found = file.lstat()
    owned = not hasattr(os, "getuid") or found.st_uid == os.getuid()
    return stat.S_ISREG(found.st_mode) and owned and not found.st_mode & _WRITABLE_BY_OTHERS


def file_state(path: Path) -> tuple[int, ...] | None:
    """Return what changes with a database's file; None where there is none, or a log of what is not in it yet."""
    if path.with_name(f"{path.name}.wal").exists():
        return None
    try:
        found = path.stat()
    except OSError:
        return None
    # The time of the last change cannot be chosen, as that of the last writing can.
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
