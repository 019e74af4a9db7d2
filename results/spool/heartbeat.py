"""Heartbeat of a running attempt: a locked file in its folder, released on process death.

An attempt without DONE is either running or lost. A process id alone does not tell the two apart (ids are used again,
and mean nothing on another machine); a lock on an open file does, since the kernel releases it even after `kill -9`.
"""

import contextlib
import json
import os
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from exitbench.results.files.atomic import lock
from exitbench.results.files.regular import open_regular

OWNER_FILE: Final = "RUNNING"
"""In an attempt's folder while it runs; gone before DONE is written."""

BEAT_S: Final = 1.0
"""Progress is written at most this often."""

SILENT_S: Final = 900.0
"""Another host's attempt without a lock that can be seen here counts as lost after this time without progress."""


@dataclass(frozen=True)
class Owner:
    """The process that writes an attempt, and how far it is.

    Attributes:
        started_s: When the attempt began, in seconds since 1970.
        done: Documents (or timed units) finished so far.
        total: Of how many; None while not known.
    """

    pid: int
    host: str
    started_s: float
    done: int = 0
    total: int | None = None


class Heartbeat:
    """The writer's side: holds the lock from construction to `release`."""

    def __init__(self, folder: Path) -> None:
        """Create and lock the file.

        Raises:
            OSError: The file cannot be created.
        """
        self._path = folder / OWNER_FILE
        self._owner = Owner(os.getpid(), socket.gethostname(), time.time())
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        # Some network file systems have no locks; readers go by the time of the last progress there.
        with contextlib.suppress(OSError):
            lock(self._descriptor, wait=True)
        self._write(self._owner)

    def progress(self, done: int, total: int | None) -> None:
        """Say how far the attempt is; most calls do nothing (`BEAT_S`)."""
        if time.monotonic() - self._written_s >= BEAT_S:
            self._write(Owner(self._owner.pid, self._owner.host, self._owner.started_s, done, total))

    def release(self) -> None:
        """Remove the file, then let go of the lock."""
        self._path.unlink(missing_ok=True)
        os.close(self._descriptor)

    def _write(self, owner: Owner) -> None:
        self._written_s = time.monotonic()
        text = json.dumps(asdict(owner)).encode()
        # A full disk costs the progress shown, not the attempt.
        with contextlib.suppress(OSError):
            os.pwrite(self._descriptor, text, 0)
            os.ftruncate(self._descriptor, len(text))


def owner_of(folder: Path) -> Owner | None:
    """Return who is writing an attempt now; None if nobody is (it has ended, or its process was killed)."""
    try:
        with open_regular(folder / OWNER_FILE) as file:
            owner, held = _read(file.read()), _is_held(file.fileno())
            written_s = os.fstat(file.fileno()).st_mtime
    except OSError:
        return None
    if held:  # what it says may be half written at this moment
        return owner or Owner(0, "", written_s)
    # Free here, or unknown. A lock of this machine would be seen; one of another may not be passed on.
    elsewhere = owner is not None and (held is None or owner.host != socket.gethostname())
    return owner if elsewhere and time.time() - written_s < SILENT_S else None


def _is_held(descriptor: int) -> bool | None:
    """Whether another process holds the lock; None where the file system has none."""
    try:
        return not lock(descriptor, shared=True)
    except OSError:
        return None


def _read(text: bytes) -> Owner | None:
    """Return the owner; None for a text that was cut short."""
    try:
        record: dict[str, Any] = json.loads(text)
        return Owner(**record)
    except (ValueError, TypeError):
        return None
