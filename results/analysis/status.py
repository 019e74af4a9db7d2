"""What is running, done and left, read from the spool; and what cells took before, which says what they will take."""

import json
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

from exitbench.results.files.atomic import SpoolError, read_json
from exitbench.results.spool.attempts import DAMAGED, UNFINISHED, Attempt, AttemptStatus, deciding_statuses, scan_spool
from exitbench.results.spool.heartbeat import Owner, owner_of
from exitbench.results.statistics.speed import MIN_ROUNDS

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


@dataclass(frozen=True)
class Estimate:
    """What a cell will take.

    Attributes:
        seconds: Wall time of the attempt; None where nothing like it was ever run.
        size_bytes: Of its folder; likewise.
        basis: In words, what the figures are from.
        at_most: It shares a pass, and the figures are from cells that had one to themselves.
    """

    seconds: float | None
    size_bytes: float | None
    basis: str
    at_most: bool = False


UNKNOWN = Estimate(None, None, "nothing like it was run")


@dataclass(frozen=True)
class Ask:
    """What of a cell tells how long it takes.

    Attributes:
        kind: Of cell.
        record: What a probe records of the inside of blocks; nothing for others.
        shape: Kind of model, decoder blocks, parameters.
        batch_size: Rows that are decoded together, as a suite says it.
        units: Documents, times the levels of a calibration or the rounds of a timing (`units`).
        shares: Whether one pass sees to it and to other cells.
    """

    kind: str
    record: tuple[str, ...]
    method: str
    weights_sha256: str
    shape: tuple[str, int, int]
    task: str
    dtype: str
    device: str
    engine: str
    batch_size: int
    units: int
    shares: bool = False

    @classmethod
    def from_json(cls, cell: Mapping[str, Any], pass_cells: int | None = None) -> "Ask":
        """Read what counts from the content of cell.json, and from status.json how many cells shared its pass."""
        model, task = cell["model"], cell["task"]
        timing, calibration, record = cell.get("timing"), cell.get("calibration"), cell.get("record")
        return cls(
            kind=cell["kind"],
            record=tuple(record["what"]) if record else (),
            method=cell["method"]["name"],
            weights_sha256=model["weights_sha256"],
            shape=(model["kind"], model["blocks"], model["parameters"]),
            task=task["label"],
            dtype=cell["dtype"],
            device=cell["device"],
            engine=cell["engine"],
            batch_size=cell["batch_rows"] or cell["batch_size"],
            units=units(
                task["documents"],
                levels=len(calibration["levels"]) if calibration else 0,
                timed=(timing["documents"], timing["max_rounds"]) if timing else None,
                recorded=record["documents"] if record else None,
            ),
            shares=pass_cells is not None,
        )


@dataclass(frozen=True)
class _Rate:
    """Of one earlier attempt, per unit of work."""

    seconds: float
    size_bytes: float


_LEVELS = (
    "same method, model and task",
    "same method and model",
    "same kind, model and task",
    "same kind and size of model",
    "same kind",
    "same kind, other number format or batch size",
)
_OF_ITS_SIZE = 4
"""How many of these levels, the first ones, are of models of one size."""


class History:
    """Rates of the successful attempts in a spool, by how near they are to what is asked."""

    def __init__(self, spool_root: Path) -> None:
        """Read every finished attempt's cell.json and status.json.

        Args:
            spool_root: The spool; need not exist.
        """
        rates: dict[tuple[bool, Hashable], list[_Rate]] = defaultdict(list)
        for attempt in scan_spool(spool_root):
            if attempt.finished and (found := _past(attempt)):
                ask, rate = found
                for key in _keys(ask):
                    rates[ask.shares, key].append(rate)
        self._rates: dict[tuple[bool, Hashable], _Rate] = {
            # A pass is in the seconds of its first cell: its cells' mean is what each has of them.
            (shared, key): _typical(own, fmean if shared else median)
            for (shared, key), own in rates.items()
        }

    def estimate(self, ask: Ask) -> Estimate:
        """Return what a cell will take by the nearest earlier ones.

        Of those as near, cells count that shared a pass or had one to themselves as this one will. The others count
        before cells of models of another size do.
        """
        levels = list(zip(_LEVELS, _keys(ask), strict=True))
        alike, other = ask.shares, not ask.shares
        of_its_size, of_any = levels[:_OF_ITS_SIZE], levels[_OF_ITS_SIZE:]
        for shared, near in ((alike, of_its_size), (other, of_its_size), (alike, of_any), (other, of_any)):
            for level, key in near:
                if (rate := self._rates.get((shared, key))) is not None:
                    seconds, size_bytes = rate.seconds * ask.units, rate.size_bytes * ask.units
                    return Estimate(seconds, size_bytes, level, at_most=ask.shares and not shared)
        return UNKNOWN


def _typical(rates: Sequence[_Rate], middle: Callable[[Iterable[float]], float]) -> _Rate:
    return _Rate(middle(rate.seconds for rate in rates), middle(rate.size_bytes for rate in rates))


def total(estimates: Sequence[Estimate]) -> tuple[float, float, int]:
    """Return the seconds and bytes that are known of some cells, and of how many nothing is."""
    return (
        sum(estimate.seconds or 0 for estimate in estimates),
        sum(estimate.size_bytes or 0 for estimate in estimates),
        sum(estimate.seconds is None for estimate in estimates),
    )


def units(documents: int, *, levels: int = 0, timed: tuple[int, int] | None = None, recorded: int | None = None) -> int:
    """Return how much a cell does.

    Args:
        documents: Of its task.
        levels: Of a calibration, each decoded on all documents, and the chosen one on others.
        timed: Documents and rounds of a timing, at most. Rounds beyond the first five fill a budget of seconds,
            whatever the documents take.
        recorded: Documents of which a probe records the inside of blocks, at most.
    """
    if timed is not None:
        return min(documents, timed[0]) * min(timed[1], MIN_ROUNDS)
    if recorded is not None:
        return min(documents, recorded)
    return documents * (1 + levels)


def _keys(ask: Ask) -> tuple[Hashable, ...]:
    """One key a level, nearest first; what ran on another device tells nothing."""
    shared = (ask.kind, ask.record, ask.dtype, ask.device, ask.engine, ask.batch_size)
    return (
        ("method task", *shared, ask.method, ask.weights_sha256, ask.task),
        ("method", *shared, ask.method, ask.weights_sha256),
        ("task", *shared, ask.weights_sha256, ask.task),
        ("shape", *shared, ask.shape),
        ("kind", *shared),
        ("loosely", ask.kind, ask.record, ask.device, ask.engine),
    )


def _past(attempt: Attempt) -> tuple[Ask, _Rate] | None:
    """What one attempt did and took; None if it did not end well, or cannot be read."""
    try:
        status = json.loads((attempt.path / "status.json").read_text(encoding="utf-8"))
        if status["status"] != "ok":
            return None
        cell = json.loads((attempt.path / "cell.json").read_text(encoding="utf-8"))
        ask = Ask.from_json(cell, status.get("pass_cells"))
        took = datetime.fromisoformat(status["ended_at"]) - datetime.fromisoformat(status["started_at"])
        return ask, _Rate(took.total_seconds() / ask.units, folder_bytes(attempt.path) / ask.units)
    except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError):
        return None
