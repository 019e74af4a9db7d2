"""Readers-writer lock of the database, by a lock file beside it, fair to those who wait.

DuckDB lets many readers or one writer open a file; whoever comes at the wrong moment is refused at once, and where
readers come and go all the time a writer would never find the file free. So whoever wants to open it acquires this lock
first: readers share it and only while they open; a writer keeps it until it closes, and closes soon after it sees, by a
second lock file, that somebody waits.
"""

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

from exitbench.results.files.locks import lock

POLL_S = 0.02
"""How often to try again."""

_LONGEST_S = 1.0


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
