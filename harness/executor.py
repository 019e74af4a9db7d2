"""The local executor: one worker process per model group, and a row for every way it can end.

A worker that dies loses only its current cell: the parent writes that cell's failed attempt (exit code,
signal, last log lines) and starts a worker for the rest. Ctrl-C ends the worker gracefully; what is
finished stays.
"""

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from exitbench.harness.environment import environment_and_hardware
from exitbench.harness.progress import Progress
from exitbench.harness.spec import WorkerSpec, WorkItem
from exitbench.results.spool import LOG_TAIL_LINES, AttemptWriter

WORKER = (sys.executable, "-m", "exitbench.harness.worker")

GRACE_S = 20.0
"""How long an interrupted worker may take to end its attempt before it is killed."""


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
            self.progress.documents_done(event["done"])
        else:
            self.end(cell_id, event["status"])

    def end(self, cell_id: str, status: str) -> None:
        """Note how a cell ended; one that never started is announced first."""
        if self.current != cell_id:
            self.progress.start(self.labels[cell_id], 0)
        self.statuses[cell_id], self.current = status, None
        self.progress.end(status)


@dataclass(frozen=True)
class _Death:
    """How a worker process ended without finishing its cells."""

    returncode: int
    interrupted: bool
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
            return "interrupted by the user"
        how = f"killed by {signal.Signals(self.signal).name}" if self.signal else f"exited with code {self.returncode}"
        last = self.log_tail.splitlines()[-1:]
        return f"the worker was {how}" if self.signal else ": ".join([f"the worker {how}", *last])


def run_group(spec: WorkerSpec, logs: Path, progress: Progress, worker: Sequence[str] = WORKER) -> dict[str, str]:
    """Run the cells of one loaded model.

    Args:
        spec: The cells, in order, and where everything lies.
        logs: Folder for the workers' specifications and logs; created when missing.
        progress: Told of every start, document and end.
        worker: Command that is given the path of a SPEC.json (docs in `spec`).

    Returns:
        Status by cell id, for every cell of the specification.

    Raises:
        KeyboardInterrupt: The user interrupted; every finished cell is in the spool.
    """
    watch = _Watch({item.cell.cell_id: item.label for item in spec.cells}, progress)
    while remaining := [item for item in spec.cells if item.cell.cell_id not in watch.statuses]:
        before = len(watch.statuses)
        death = _run_worker(replace(spec, cells=tuple(remaining)), logs, watch, worker)
        if watch.current is not None:
            lost = [item for item in remaining if item.cell.cell_id == watch.current]
        elif len(watch.statuses) == before and not death.interrupted:
            lost = remaining  # nothing started: the next worker would not do better
        else:
            lost = []
        for item in lost:
            _record(spec, item, death)
            watch.end(item.cell.cell_id, death.status)
        if death.interrupted:
            raise KeyboardInterrupt
    return watch.statuses


def _run_worker(spec: WorkerSpec, logs: Path, watch: _Watch, worker: Sequence[str]) -> _Death:
    """Run one process to its end, however it ends; specification and log stay in ``logs``."""
    logs.mkdir(parents=True, exist_ok=True)
    stem = f"{datetime.now(UTC):%Y%m%dT%H%M%S%f}-{spec.cells[0].cell.model.name}"
    spec_path, log_path = logs / f"{stem}.json", logs / f"{stem}.log"
    spec_path.write_text(spec.to_json(), encoding="utf-8")
    oom_kills = _oom_kills()
    with log_path.open("w", encoding="utf-8") as log:
        # Its own session, so that Ctrl-C reaches the parent alone, which then ends the worker in order.
        process = subprocess.Popen(
            [*worker, str(spec_path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        interrupted = _follow(process, watch, log.write)
    lines = log_path.read_text(encoding="utf-8", errors="replace").splitlines()
    killed_for_memory = process.returncode == -signal.SIGKILL and _oom_kills() > oom_kills
    out_of_memory = killed_for_memory or (process.returncode != 0 and "MemoryError" in "".join(lines[-1:]))
    return _Death(process.returncode, interrupted, out_of_memory, "\n".join(lines[-LOG_TAIL_LINES:]))


def _follow(process: "subprocess.Popen[str]", watch: _Watch, log: Callable[[str], Any]) -> bool:
    """Read events until the process has ended; True if the user interrupted."""
    assert process.stdout is not None
    with process:
        try:
            _read(process.stdout, watch, log)
            process.wait()
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            deadline = threading.Timer(GRACE_S, process.kill)
            deadline.start()
            try:
                _read(process.stdout, watch, log)
                process.wait()
            finally:  # a second Ctrl-C ends it at once
                deadline.cancel()
                process.kill()
            return True
        except BaseException:
            process.kill()
            raise
    return False


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
    with AttemptWriter(spec.spool, item.cell.to_json(), env) as attempt:
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
