"""One model group on this machine: a worker process, and a row for every way it can end.

A worker that dies loses only its current cell: the parent writes that cell's failed attempt (exit code,
signal, last log lines) and starts a worker for the rest.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from exitbench.errors import UserError
from exitbench.harness.environment import environment_and_hardware
from exitbench.harness.progress import Progress
from exitbench.harness.spec import NO_ROOM, WorkerSpec, WorkItem
from exitbench.results.spool import LOG_TAIL_LINES, AttemptWriter

WORKER: Final = (sys.executable, "-m", "exitbench.harness.worker")

GRACE_S = 20.0
"""How long an interrupted worker may take to end its attempt before it is killed."""

# A worker that ends so was asked to: its exit code, or the signal if it was still starting.
_ASKED_TO_END: Final = (130, -signal.SIGINT, -signal.SIGTERM, -signal.SIGUSR2)


@dataclass
class _Watch:
    """What a worker has said so far."""

    labels: dict[str, str]
    progress: Progress
    statuses: dict[str, str] = field(default_factory=dict)
    current: str | None = None

    def event(self, event: dict[str, Any]) -> None:
        """Take in one event (see `spec`)."""
        cell_id = event["cell"]
        if event["event"] == "start":
            self.current = cell_id
            self.progress.start(event["label"], event["documents"])
        elif event["event"] == "progress":
            self.progress.documents_done(self.labels[cell_id], event["done"])
        else:
            self.end(cell_id, event["status"])

    def end(self, cell_id: str, status: str) -> None:
        """Note how a cell ended."""
        self.statuses[cell_id], self.current = status, None
        self.progress.end(self.labels[cell_id], status)


@dataclass(frozen=True)
class _Death:
    """How a worker process ended without finishing its cells; ``interrupted`` says by whom, if it was asked to."""

    returncode: int
    interrupted: str | None
    out_of_memory: bool
    log_tail: str

    @property
    def status(self) -> str:
        """The spool's word for it."""
        return "interrupted" if self.interrupted else "oom" if self.out_of_memory else "failed"

    @property
    def signal(self) -> int | None:
        """The signal that killed the process, if one did."""
        return -self.returncode if self.returncode < 0 else None

    @property
    def reason(self) -> str:
        """One line for people."""
        if self.interrupted:
            return self.interrupted
        how = f"killed by {signal.Signals(self.signal).name}" if self.signal else f"exited with code {self.returncode}"
        last = self.log_tail.splitlines()[-1:]
        return f"the worker was {how}" if self.signal else ": ".join([f"the worker {how}", *last])


class GroupRun:
    """The cells of one loaded model, in worker processes one after the other.

    Attributes:
        interrupted: Why no further worker is started; None while nothing asked for it.
    """

    def __init__(self, spec: WorkerSpec, logs: Path, progress: Progress, worker: Sequence[str] = WORKER) -> None:
        """Prepare; nothing runs yet.

        Args:
            spec: The cells, in order, and where everything lies.
            logs: Folder for the workers' specifications and logs; created when missing.
            progress: Told of every start, document and end.
            worker: Command that is given the path of a SPEC.json (docs in `spec`).
        """
        self.interrupted: str | None = None
        self._spec, self._logs, self._worker = spec, logs, tuple(worker)
        self._watch = _Watch({item.cell.cell_id: item.label for item in spec.cells}, progress)
        self._process: subprocess.Popen[str] | None = None
        self._starting = threading.Lock()

    def run(self, variables: Mapping[str, str] | None = None) -> dict[str, str]:
        """Run to the end, or until interrupted.

        Args:
            variables: Of the worker's environment, besides this process's.

        Returns:
            Status by cell id: of every cell, unless interrupted.

        Raises:
            UserError: The spool cannot be written: the disk is full.
        """
        watch = self._watch
        while not self.interrupted and (remaining := self._remaining()):
            before = len(watch.statuses)
            death = self._run_worker(replace(self._spec, cells=remaining), variables or {})
            if death.returncode == NO_ROOM:
                last = death.log_tail.splitlines()[-1:] or [f"{self._spec.spool}: No space left on device"]
                raise UserError(f"{last[0]}. What is finished is kept; the same command goes on.")
            if watch.current is not None:
                lost = [item for item in remaining if item.cell.cell_id == watch.current]
            elif len(watch.statuses) == before and not death.interrupted:
                lost = list(remaining)  # nothing started: the next worker would not do better
            else:
                lost = []
            for item in lost:
                _record(self._spec, item, death)
                watch.end(item.cell.cell_id, death.status)
        return watch.statuses

    def interrupt(self, reason: str) -> None:
        """Ask the worker to end its attempt, and kill it if it takes too long; other threads may call this."""
        self.interrupted = self.interrupted or reason
        with self._starting:
            process = self._process
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGINT)
            deadline = threading.Timer(GRACE_S, process.kill)
            deadline.daemon = True
            deadline.start()

    def kill(self) -> None:
        """End the worker at once."""
        if self._process is not None:
            self._process.kill()

    def _remaining(self) -> tuple[WorkItem, ...]:
        return tuple(item for item in self._spec.cells if item.cell.cell_id not in self._watch.statuses)

    def _run_worker(self, spec: WorkerSpec, variables: Mapping[str, str]) -> _Death:
        """Run one process to its end, however it ends; specification and log stay in ``logs``."""
        self._logs.mkdir(parents=True, exist_ok=True)
        stem = f"{datetime.now(UTC):%Y%m%dT%H%M%S%f}-{spec.cells[0].cell.model.name}"
        spec_path, log_path = self._logs / f"{stem}.json", self._logs / f"{stem}.log"
        spec_path.write_text(spec.to_json(), encoding="utf-8")
        oom_kills = _oom_kills()
        with log_path.open("w", encoding="utf-8") as log:
            returncode = self._follow([*self._worker, str(spec_path)], variables, log)
        lines = log_path.read_text(encoding="utf-8", errors="replace").splitlines()
        killed_for_memory = returncode == -signal.SIGKILL and _oom_kills() > oom_kills
        out_of_memory = killed_for_memory or (returncode != 0 and "MemoryError" in "".join(lines[-1:]))
        if returncode in _ASKED_TO_END:
            self.interrupted = self.interrupted or "the worker was asked to end"
        return _Death(returncode, self.interrupted, out_of_memory, "\n".join(lines[-LOG_TAIL_LINES:]))

    def _follow(self, command: Sequence[str], variables: Mapping[str, str], log: Any) -> int:
        """Start a process and read its events until it has ended; returns its exit code."""
        with self._starting:
            # Its own session, so that Ctrl-C reaches the parent alone, which then ends the worker in order.
            process = self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                errors="replace",
                start_new_session=True,
                env={**os.environ, **variables},
            )
        if self.interrupted:  # between the last worker and this one
            process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        with process:
            try:
                _read(process.stdout, self._watch, log.write)
                return process.wait()
            except BaseException:
                process.kill()
                raise


def _read(lines: Iterable[str], watch: _Watch, log: Callable[[str], Any]) -> None:
    for line in lines:
        event = _event(line)
        if event is None:
            log(line)  # some library printed
        else:
            watch.event(event)


def _event(line: str) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and "event" in event else None


def _record(spec: WorkerSpec, item: WorkItem, death: _Death) -> None:
    """Write the attempt that a dead worker could not finish."""
    env = environment_and_hardware(spec.threads)
    with AttemptWriter(spec.spool, item.cell_record(), env) as attempt:
        attempt.log_path.write_text(death.log_tail, encoding="utf-8")
        exit_code = None if death.signal else death.returncode
        attempt.finish(death.status, death.reason, exit_code=exit_code, signal=death.signal)


def _oom_kills() -> int:
    """Return how many processes the kernel has killed for want of memory since it started; 0 where it does not say."""
    try:
        counters = Path("/proc/vmstat").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in counters if line.startswith("oom_kill ")), 0)
