"""Run of one model group on this machine in worker processes; if one dies, its cell still gets an attempt in the spool.

A worker that dies, or takes too long for a cell, loses only that cell: the parent writes its attempt (exit code,
signal, last log lines) and starts a worker for the rest. If the cell was decoded together with others, the cell that
failed is unknown, so all of them are run again, separately.
"""

import contextlib
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Final

from exitbench.errors import UserError, says_out_of_memory
from exitbench.harness.cells.job import CellJob, WorkerSpec
from exitbench.harness.processes import fork_server
from exitbench.harness.processes.fork_server import Process
from exitbench.harness.running.environment import environment_and_hardware
from exitbench.harness.running.events import read_event
from exitbench.harness.running.executors.process import Overdue, WorkerProcess
from exitbench.progress import Progress
from exitbench.results.spool.attempts import LOG_TAIL_LINES, AttemptWriter

_WORKER: Final = "exitbench.harness.running.worker_process"

GRACE_S = 20.0
"""Seconds that an interrupted worker has for ending its attempt before it is killed."""

# Exit codes of a worker that was terminated on request; a signal if it was still starting.
_END_REQUESTED: Final = (130, -signal.SIGINT, -signal.SIGTERM, -signal.SIGUSR2)

_LOG_BYTES: Final = 1 << 18
"""Maximum number of bytes read from the end of a worker's log."""

_PROGRESS_BAR: Final = re.compile(r"\d{1,3}%\||\d{1,12}\w{0,20} \[\d+:\d")
"""Pattern of tqdm's progress bars: 45%|###  or 12it [00:03, up to the closing bracket."""


class _Watch:
    """State of a worker, computed from its events, and the deadline for its next event."""

    def __init__(self, items: Sequence[CellJob], progress: Progress) -> None:
        self.statuses: dict[str, str] = {}
        self.current: str | None = None
        self.cells = 1  # number of cells that share the current decode
        self.full: str | None = None
        self._items = {item.cell.cell_id: item for item in items}
        self._progress = progress
        self._holders: set[str] = set()
        self._since_s, self._waits = time.monotonic(), False

    def begin(self) -> None:
        """Reset the state for a new worker, which first loads its model."""
        self.current, self._since_s, self._waits = None, time.monotonic(), False

    @property
    def limit_s(self) -> float | None:
        """Time limit of the current cell in seconds; None for no limit.

        The limit is multiplied by the number of cells that share the decode. Between cells, as while the model is
        loaded, the limit is the largest of all cells.
        """
        if self.current is not None:
            limit_s = self._items[self.current].timeout_s
            return None if limit_s is None else limit_s * self.cells
        limits = [item.timeout_s for item in self._items.values()]
        return None if None in limits else max(filter(None, limits), default=None)

    @property
    def deadline(self) -> float | None:
        """Deadline of the next event by `time.monotonic`; None if there is no limit or the worker waits for a lock."""
        return None if self._waits or self.limit_s is None else self._since_s + self.limit_s

    def take(self, line: str) -> bool:
        """Update the state from one line of the worker's event pipe.

        Return False, and change nothing, if the line is not an event (see `events`) of a cell that has not ended yet.
        """
        event = read_event(line, self._items)
        if event is None or event["cell"] in self.statuses:
            return False
        cell_id, word = event["cell"], event["event"]
        label = self._items[cell_id].label
        if word == "progress":
            self._progress.documents_done(label, event["done"])
            return True
        self._since_s, self._waits = time.monotonic(), word == "wait"
        if word == "start":
            self.current, self.cells = cell_id, event["cells"]
            self._progress.start(label, event["documents"])
        elif word == "end":
            self.end(cell_id, event["status"])
        elif word == "no_room":
            self.full = f"{event['path']}: {event['why']}"
        elif word == "wait" and event["holder"] not in self._holders:
            self._holders.add(event["holder"])
            self._progress.note(f"{label}: waiting for {event['holder']}, which runs it")
        return True

    def end(self, cell_id: str, status: str) -> None:
        """Record the final status of a cell, and report it to the progress display."""
        self.statuses[cell_id], self.current = status, None
        self._progress.end(self._items[cell_id].label, status)


_LEAK_REPORT: Final = ("nanobind: ", " - leaked ", " - ... skipped", "See https://nanobind")
"""Beginnings of lines that DuckDB's Python bindings write as a process ends, after the error that ended it."""


@dataclass(frozen=True)
class _WorkerExit:
    """How a worker process ended: status and reason for cells that it left unfinished.

    Attributes:
        interrupted: Reason, if the process was requested to end.
        killed_for: Status and reason, if the parent killed the process.
    """

    returncode: int
    interrupted: str | None
    killed_for: tuple[str, str] | None
    out_of_memory: bool
    log_tail: str

    @property
    def status(self) -> str:
        """Status to store for a cell that was running when the process ended."""
        if self.killed_for is not None:
            return self.killed_for[0]
        return "interrupted" if self.interrupted else "oom" if self.out_of_memory else "failed"

    @property
    def signal(self) -> int | None:
        """Number of the signal that killed the process; None if no signal did."""
        return -self.returncode if self.returncode < 0 else None

    @property
    def reason(self) -> str:
        """Reason why the process ended, as one line for users."""
        if self.killed_for is not None:
            return self.killed_for[1]
        if self.interrupted:
            return self.interrupted
        if self.signal:
            return f"the worker was killed by {_signal_name(self.signal)}"
        lines = [line for line in self.log_tail.splitlines() if not line.startswith(_LEAK_REPORT)]
        return ": ".join([f"the worker exited with code {self.returncode}", *lines[-1:]])


class GroupRun:
    """Run of the cells of one loaded model, in worker processes one after another.

    Attributes:
        interrupted: Reason why no further worker is started; None if not interrupted.
    """

    def __init__(self, spec: WorkerSpec, logs: Path, progress: Progress, worker: Sequence[str] = ()) -> None:
        """Prepare the run without starting a process.

        Args:
            spec: The cells, in order, and all paths.
            logs: Folder for the workers' specifications and logs; created if missing.
            progress: Notified of every start, document and end.
            worker: Command to which the path of a SPEC.json and two pipe descriptors (events, lifeline) are appended;
                () for `worker_process`.
        """
        self.interrupted: str | None = None
        self.spec, self._logs, self._worker = spec, logs, tuple(worker)
        self._watch = _Watch(spec.cells, progress)
        self._process: WorkerProcess | None = None
        self._shares = spec.shares
        self._starting = threading.Lock()

    def run(self, variables: Mapping[str, str] | None = None) -> dict[str, str]:
        """Run workers until every cell has ended or the run is interrupted.

        Args:
            variables: Environment variables of the worker, in addition to this process's.

        Returns:
            Status by cell id: of every cell, unless interrupted.

        Raises:
            UserError: The spool cannot be written: the disk is full.
        """
        watch = self._watch
        while not self.interrupted and (remaining := self._remaining()):
            before = len(watch.statuses)
            worker_exit = self._run_worker(replace(self.spec, cells=remaining, shares=self._shares), variables or {})
            if watch.full is not None:
                raise UserError(f"{watch.full}. What is finished is kept; the same command goes on.")
            if watch.current is not None and watch.cells > 1 and not worker_exit.interrupted:
                lost, self._shares = [], False  # any of these cells may be the cause, so each runs separately
            elif watch.current is not None:
                lost = [item for item in remaining if item.cell.cell_id == watch.current]
            elif len(watch.statuses) == before and not worker_exit.interrupted:
                lost = list(remaining)  # nothing started: another worker would fail too
            else:
                lost = []
            for item in lost:
                _record(self.spec, item, worker_exit)
                watch.end(item.cell.cell_id, worker_exit.status)
        return watch.statuses

    def interrupt(self, reason: str) -> None:
        """Request that the worker end its attempt; kill it after `GRACE_S` seconds. May be called from any thread."""
        self.interrupted = self.interrupted or reason
        with self._starting:
            process = self._process
        if process is not None:
            process.interrupt()
            deadline = threading.Timer(GRACE_S, process.kill)
            deadline.daemon = True
            deadline.start()

    def kill(self) -> None:
        """Kill the worker immediately."""
        if (process := self._process) is not None:
            process.kill()

    def _remaining(self) -> tuple[CellJob, ...]:
        return tuple(item for item in self.spec.cells if item.cell.cell_id not in self._watch.statuses)

    def _run_worker(self, spec: WorkerSpec, variables: Mapping[str, str]) -> _WorkerExit:
        """Run one worker process and return how it ended; its specification and log stay in ``logs``."""
        self._logs.mkdir(parents=True, exist_ok=True)
        stem = f"{datetime.now(UTC):%Y%m%dT%H%M%S%f}-{spec.cells[0].cell.model.name}"
        spec_path, log_path = self._logs / f"{stem}.json", self._logs / f"{stem}.log"
        spec_path.write_text(spec.to_json(), encoding="utf-8")
        oom_kills = _oom_kills()
        with log_path.open("w", encoding="utf-8") as log:
            returncode, killed_for = self._follow(self._start(spec_path, variables, log), log)
        lines = _lines(log_path)[-LOG_TAIL_LINES:]
        killed_for_memory = returncode == -signal.SIGKILL and _oom_kills() > oom_kills
        out_of_memory = killed_for_memory or (returncode != 0 and says_out_of_memory("".join(lines[-1:])))
        if returncode in _END_REQUESTED:
            self.interrupted = self.interrupted or "the worker was terminated on request"
        return _WorkerExit(returncode, self.interrupted, killed_for, out_of_memory, "\n".join(lines))

    def _start(self, spec_path: Path, variables: Mapping[str, str], log: IO[str]) -> Callable[[Sequence[int]], Process]:
        """Return a function that starts the worker, given the descriptors of its pipes.

        On the CPU the worker is forked, to start faster. On a GPU it is a new process, since GPU drivers do not survive
        a fork.
        """
        about: dict[str, Any] = {"output": log.fileno(), "variables": variables}
        if not self._worker and self.spec.device == "cpu":
            return lambda descriptors: fork_server.start(_WORKER, [str(spec_path)], descriptors, **about)
        command = (*(self._worker or (sys.executable, "-P", "-m", _WORKER)), str(spec_path))
        return lambda descriptors: fork_server.start_command(command, descriptors, **about)

    def _follow(self, start: Callable[[Sequence[int]], Process], log: IO[str]) -> tuple[int, tuple[str, str] | None]:
        """Start a process and handle its events until it has ended; write its other output to `log`.

        Returns:
            Its exit code, and (status, reason) if the parent killed the process, otherwise None.
        """
        self._watch.begin()
        with self._starting:
            process = self._process = WorkerProcess(start)
        if self.interrupted:  # `interrupt` was called before this worker existed
            process.interrupt()
        killed_for = None
        try:
            while (line := process.next_line(self._watch.deadline)) is not None:
                if not self._watch.take(line):
                    log.write(line)
                    log.flush()
        except Overdue:
            killed_for = "timeout", self._overdue()
        except OSError:  # a lost terminal, or a full disk: every other cell would fail too
            raise
        except Exception as error:
            killed_for = "failed", f"the worker could not be followed: {type(error).__name__}: {error}"
        finally:
            with self._starting:
                returncode, self._process = process.end(), None
        return returncode, killed_for

    def _overdue(self) -> str:
        suffix = "" if self._watch.current is not None else " before its first event, or between two cells"
        return f"took longer than cell_timeout_s = {self._watch.limit_s:g}{suffix}"


def _record(spec: WorkerSpec, item: CellJob, worker_exit: _WorkerExit) -> None:
    """Write an attempt (stored outcome, with reason and log) for a cell whose worker died."""
    env = environment_and_hardware(spec.threads)
    with AttemptWriter(spec.spool, item.cell_record(), env) as attempt:
        attempt.log_path.write_text(worker_exit.log_tail, encoding="utf-8")
        exit_code = None if worker_exit.signal else worker_exit.returncode
        attempt.finish(worker_exit.status, worker_exit.reason, exit_code=exit_code, signal=worker_exit.signal)


def _oom_kills() -> int:
    """Return how many processes the kernel has killed for lack of memory since boot; 0 if not reported."""
    try:
        counters = Path("/proc/vmstat").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in counters if line.startswith("oom_kill ")), 0)


def _signal_name(number: int) -> str:
    """Return a signal's name, or its number if it has no name (such as real-time signals)."""
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"


def _lines(log: Path) -> list[str]:
    """Return the last lines of a log, without empty lines and progress bars."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _LOG_BYTES))
        text = file.read().decode(errors="replace")
    return [line for line in map(_without_bar, text.splitlines()) if line.strip()]


def _without_bar(line: str) -> str:
    """Return the text after the progress bar in a line, or the line if it has no bar."""
    bar = _PROGRESS_BAR.search(line)
    return line if bar is None else line[bar.end() :].partition("]")[2]
