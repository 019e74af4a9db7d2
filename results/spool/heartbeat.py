"""Heartbeat of a running attempt: a locked file in its folder, released on process death.

An attempt without DONE is either running or lost. A process id alone does not distinguish these (ids are reused, and
mean nothing on another machine). A lock on an open file does, since the kernel releases it even after `kill -9`.
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
"""File in an attempt's folder while it runs; removed before DONE is written."""

BEAT_S: Final = 1.0
"""Minimum seconds between writes of progress."""

SILENT_S: Final = 900.0
"""An attempt of another host whose lock cannot be seen counts as lost after this many seconds without progress."""


@dataclass(frozen=True)
class Owner:
    """Process that writes an attempt, and its progress.

    Attributes:
        started_s: Start of the attempt, in seconds since 1970.
        done: Number of documents (of a timing: batches) finished so far.
        total: Total number; None if unknown.
    """

    pid: int
    host: str
    started_s: float
    done: int = 0
    total: int | None = None


class Heartbeat:
    """Heartbeat file that the process of a running attempt creates, and locks from construction to `release`."""

    def __init__(self, folder: Path) -> None:
        """Create and lock the heartbeat file in an attempt's folder.

        Raises:
            OSError: The file cannot be created.
        """
        self._path = folder / OWNER_FILE
        self._owner = Owner(os.getpid(), socket.gethostname(), time.time())
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        # Some network file systems have no locks; there, readers use the time of the last progress.
        with contextlib.suppress(OSError):
            lock(self._descriptor, wait=True)
        self._write(self._owner)

    def progress(self, done: int, total: int | None) -> None:
        """Write the number of finished documents, and their total, to the file; at most once in `BEAT_S` seconds."""
        if time.monotonic() - self._written_s >= BEAT_S:
            self._write(Owner(self._owner.pid, self._owner.host, self._owner.started_s, done, total))

    def release(self) -> None:
        """Remove the heartbeat file, then release its lock."""
        self._path.unlink(missing_ok=True)
        os.close(self._descriptor)

    def _write(self, owner: Owner) -> None:
        self._written_s = time.monotonic()
        text = json.dumps(asdict(owner)).encode()
        # If the disk is full, only the displayed progress is lost, not the attempt.
        with contextlib.suppress(OSError):
            os.pwrite(self._descriptor, text, 0)
            os.ftruncate(self._descriptor, len(text))


def owner_of(folder: Path) -> Owner | None:
    """Return the process that now writes the attempt in a folder; None if it ended or its process was killed."""
    try:
        with open_regular(folder / OWNER_FILE) as file:
            owner, is_held = _read(file.read()), _is_held(file.fileno())
            written_s = os.fstat(file.fileno()).st_mtime
    except OSError:
        return None
    if is_held:  # the content may be incomplete at this moment
        return owner or Owner(0, "", written_s)
    # Free or unknown. A lock of this machine would be visible; one of another machine may not be.
    elsewhere = owner is not None and (is_held is None or owner.host != socket.gethostname())
    return owner if elsewhere and time.time() - written_s < SILENT_S else None


def _is_held(descriptor: int) -> bool | None:
    """Return whether another process holds the lock of an open file; None if the file system does not support locks."""
    try:
        return not lock(descriptor, shared=True)
    except OSError:
        return None


def _read(text: bytes) -> Owner | None:
    """Parse the content of a heartbeat file; return None if it is incomplete."""
    try:
        record: dict[str, Any] = json.loads(text)
        return Owner(**record)
    except (ValueError, TypeError):
        return None
