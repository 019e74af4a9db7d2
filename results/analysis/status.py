"""Status of a spool at this moment: outcomes, what is running, what failed last. Reads the spool only."""

import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from exitbench.results.files.atomic_folder import SpoolError, read_json
from exitbench.results.spool.attempts import DAMAGED, UNFINISHED, Attempt, AttemptStatus, deciding_statuses, scan_spool
from exitbench.results.spool.heartbeat import Owner, owner_of

SHOWN_FAILURES: Final = 5
RUNNING: Final = "running"
LOST: Final = "lost"
"""Beside `schema.STATUSES`: an attempt without DONE whose process is there, or is not."""


@dataclass(frozen=True)
class Running:
    """An attempt whose process is there; `cell` is cell.json."""

    attempt: Attempt
    cell: dict[str, Any]
    owner: Owner

    def elapsed_s(self, now_s: float) -> float:
        """Seconds since it began."""
        return max(0.0, now_s - self.owner.started_s)

    def left_s(self, now_s: float) -> float | None:
        """Seconds until it ends if documents go on as they went so far; None before the first is done."""
        if not self.owner.done or self.owner.total is None:
            return None
        return self.elapsed_s(now_s) * (self.owner.total - self.owner.done) / self.owner.done


@dataclass(frozen=True)
class Failure:
    """A cell whose latest attempt did not end well; `cell` is cell.json."""

    status: AttemptStatus
    cell: dict[str, Any]


@dataclass(frozen=True)
class SpoolStatus:
    """A spool at one moment.

    Attributes:
        taken_s: The moment, in seconds since 1970.
        states: State of every cell by id: how its latest finished attempt ended, else running or lost.
        running: Attempts that are being written, oldest first; a repeated cell is here and has its old state too.
        failures: What failed last, newest first, `SHOWN_FAILURES` at most.
        damaged: One message an attempt whose status cannot be read.
        size_bytes: Of all files.
        attempts: Of all cells.
    """

    taken_s: float
    states: dict[str, str]
    running: tuple[Running, ...]
    failures: tuple[Failure, ...]
    damaged: tuple[str, ...]
    size_bytes: int
    attempts: int

    @property
    def counts(self) -> Counter[str]:
        """Cells by state."""
        return Counter(self.states.values())


def spool_status(spool_root: Path, wanted: Callable[[str], bool] = lambda cell_id: True) -> SpoolStatus:
    """Look at a spool.

    Args:
        spool_root: The spool; may be growing meanwhile, and need not exist.
        wanted: Which cells, by id.
    """
    attempts = [attempt for attempt in scan_spool(spool_root) if wanted(attempt.cell_id)]
    running = [found for attempt in attempts if not attempt.finished and (found := _running(attempt))]
    live = {found.attempt.cell_id for found in running}
    states, bad, damaged = {}, [], []
    for status in deciding_statuses(attempts):
        if status.status == UNFINISHED:
            states[status.cell_id] = RUNNING if status.cell_id in live else LOST
            continue
        if status.status == DAMAGED:
            damaged.append(str(status.reason))
            continue
        states[status.cell_id] = status.status
        if status.status != "ok":
            bad.append(status)
    bad.sort(key=lambda status: status.attempt_id, reverse=True)
    return SpoolStatus(
        taken_s=time.time(),
        states=states,
        running=tuple(sorted(running, key=lambda found: found.attempt.attempt_id)),
        failures=tuple(Failure(status, _cell(status.path)) for status in bad[:SHOWN_FAILURES]),
        damaged=tuple(damaged),
        size_bytes=sum(folder_bytes(attempt.path) for attempt in attempts),
        attempts=len(attempts),
    )


def folder_bytes(path: Path) -> int:
    """Return the size of the files in an attempt's folder; 0 if it was removed meanwhile."""
    try:
        with os.scandir(path) as entries:
            return sum(entry.stat().st_size for entry in entries)
    except FileNotFoundError:
        return 0


def _running(attempt: Attempt) -> Running | None:
    owner = owner_of(attempt.path)
    return None if owner is None else Running(attempt, _cell(attempt.path), owner)


def _cell(path: Path) -> dict[str, Any]:
    """cell.json; nothing where it is not written yet, or torn."""
    try:
        return read_json(path / "cell.json")
    except SpoolError:
        return {}
