"""Turns at the database, by a lock file beside it.

DuckDB lets many readers or one writer open a file; whoever comes at the wrong moment is refused at once, and where
readers come and go all the time a writer would never find the file free. So whoever wants to open it takes a turn
first: readers share theirs and only while they open; a writer keeps its own until it closes, and closes soon after it
sees, by a second lock file, that somebody waits.
"""

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

from exitbench.results.files.locks import lock

POLL_S = 0.02
"""How often to look whether the turn has come."""

_LONGEST_S = 1.0


@dataclass(frozen=True)
class Turn:
    """A turn that has come; `end` it. Where the lock file cannot be made (a read-only folder) there is none to take."""

    file: IO[str] | None

    def end(self) -> None:
        """Let the others in; once is enough."""
        if self.file is not None:
            self.file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.end()


def lock_file(database: Path) -> Path:
    """Return the lock file of a database."""
    return database.with_name(f".{database.name}.lock")


def take_turn(database: Path, *, alone: bool, deadline: float) -> Turn | None:
    """Wait for a turn; None if it has not come by the deadline.

    Args:
        database: The file.
        alone: As a writer.
        deadline: Of `time.monotonic`; there is always one attempt.
    """
    try:
        file, waiting = lock_file(database).open("a", encoding="ascii"), _waiting_file(database).open("a")
    except OSError:
        return Turn(None)
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
    return Turn(file)


def _note_holder(file: IO[str]) -> None:
    # A full disk costs the name in a message, not the turn.
    with contextlib.suppress(OSError):
        os.ftruncate(file.fileno(), 0)
        os.write(file.fileno(), str(os.getpid()).encode())


def is_wanted(database: Path) -> bool:
    """Return whether somebody waits for a turn."""
    try:
        with _waiting_file(database).open("a") as waiting:
            return not lock(waiting.fileno())
    except OSError:
        return False


def let_others(database: Path) -> None:
    """Wait until those who wait have had their turn, for a bounded time; they look only now and then."""
    deadline = time.monotonic() + _LONGEST_S
    while is_wanted(database) and time.monotonic() < deadline:
        time.sleep(POLL_S)


def _waiting_file(database: Path) -> Path:
    return database.with_name(f".{database.name}.waiting")


def holder(database: Path) -> str:
    """Return who had the last turn alone, in words."""
    try:
        text = lock_file(database).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        text = ""
    return f"process {text}" if text.isdecimal() else "another process"
