"""One worker process: its events through a separate pipe, and its end, which leaves no process behind."""

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import IO, Any, Final

from exitbench.harness.running.environment import spinning

LOOK_S: Final = 1.0
"""Seconds between checks whether a silent worker has ended: a child of it may hold the pipe open afterwards."""

CLOSING_S: Final = 60.0
"""Seconds that a worker has to end once it has closed its pipe, on a busy machine."""

_LONGEST_LINE_BYTES: Final = 1 << 16


class Overdue(Exception):
    """The deadline has passed."""


class WorkerProcess:
    """A worker in its own session and process group, so that Ctrl-C reaches the parent alone.

    It must be started by the thread that follows it to its end (`lifeline.end_with_starting_thread`).
    """

    def __init__(self, command: Sequence[str], variables: Mapping[str, str], log: IO[Any]) -> None:
        """Start the worker.

        Args:
            command: Receives two more arguments: the descriptors of the event pipe and of the lifeline.
            variables: Environment variables, in addition to this process's.
            log: Receives everything that it prints.
        """
        self._events, events = os.pipe()
        lifeline, self._lifeline = os.pipe()
        try:
            self._process = subprocess.Popen(
                [*command, str(events), str(lifeline)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(events, lifeline),
                start_new_session=True,
                env={**spinning(), **os.environ, **variables},
            )
        except BaseException:
            os.close(self._events)
            os.close(self._lifeline)
            raise
        finally:
            os.close(events)
            os.close(lifeline)
        self._read, self._is_open, self._has_ended = b"", True, False

    def next_line(self, deadline: float | None) -> str | None:
        """Wait for the next line that the worker writes; None once it has ended and everything is read.

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
        """Ask the worker to end its attempt."""
        self._process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """Kill the worker and everything it started in its group, immediately; no effect after `end`."""
        if not self._has_ended:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def end(self) -> int:
        """Kill the remains of the worker's group; return its exit code, or the signal that ended it as -N."""
        self.kill()
        self._has_ended = True
        returncode = self._process.wait()
        os.close(self._events)
        os.close(self._lifeline)
        return returncode
