"""The parent's handle of a worker process: read its events from a pipe, interrupt it, and kill it with its children."""

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Final

from exitbench.harness.processes.fork_server import Process

LOOK_S: Final = 1.0
"""Seconds between checks whether a silent worker has ended: its child process may hold the pipe open afterwards."""

CLOSING_S: Final = 60.0
"""Seconds that a worker may take to end after closing its event pipe, as on a busy machine."""

_LONGEST_LINE_BYTES: Final = 1 << 16


class Overdue(Exception):
    """Exception raised if the worker wrote no line before a deadline."""


class WorkerProcess:
    """Handle of a worker that runs in its own process group, so that Ctrl-C reaches only the parent.

    Linux may kill the worker when the thread that started it ends (`lifeline.end_with_starting_thread`). So this thread
    must wait for the worker's end.
    """

    def __init__(self, start: Callable[[Sequence[int]], Process]) -> None:
        """Start the worker.

        Args:
            start: Starts the process, given the descriptors of the event pipe and of the lifeline.
        """
        self._events, events = os.pipe()
        lifeline, self._lifeline = os.pipe()
        try:
            self._process = start((events, lifeline))
        except BaseException:
            os.close(self._events)
            os.close(self._lifeline)
            raise
        finally:
            os.close(events)
            os.close(lifeline)
        self._read, self._is_open, self._has_ended = b"", True, False

    def next_line(self, deadline: float | None) -> str | None:
        """Return the worker's next line; None once the worker has ended and all its lines are read.

        Args:
            deadline: Time by `time.monotonic`; None for no deadline.

        Raises:
            Overdue: The deadline has passed.
        """
        closed_at: float | None = None
        while b"\n" not in self._read and len(self._read) < _LONGEST_LINE_BYTES:
            has_ended = self._process.poll() is not None
            left_s = LOOK_S if deadline is None else min(LOOK_S, deadline - time.monotonic())
            if self._is_open and select.select([self._events], [], [], 0 if has_ended else max(0.0, left_s))[0]:
                piece = os.read(self._events, _LONGEST_LINE_BYTES)
                self._read, self._is_open = self._read + piece, bool(piece)
            elif has_ended:
                remainder, self._read = self._read, b""
                return remainder.decode(errors="replace") or None
            elif left_s <= 0:
                raise Overdue
            elif not self._is_open:
                closed_at = closed_at or time.monotonic()
                if time.monotonic() - closed_at > CLOSING_S:
                    self.kill()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(left_s)
        line, newline, self._read = self._read.partition(b"\n")
        return (line + newline).decode(errors="replace")

    def interrupt(self) -> None:
        """Send SIGINT to the worker, so that it ends its current attempt and exits."""
        self._process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """Kill the worker and its process group immediately; no effect after `end`."""
        if not self._has_ended:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def end(self) -> int:
        """Kill the rest of the worker's process group; return the worker's exit code, or -N if signal N ended it."""
        self.kill()
        self._has_ended = True
        returncode = self._process.wait()
        os.close(self._events)
        os.close(self._lifeline)
        return returncode
