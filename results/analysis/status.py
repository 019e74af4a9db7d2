"""Status of a spool (running, finished and failed cells), and estimates of time and disk space from earlier cells."""

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

from exitbench.results.files.atomic import read_json_or_empty
from exitbench.results.spool.attempts import DAMAGED, UNFINISHED, Attempt, AttemptStatus, deciding_statuses, scan_spool
from exitbench.results.spool.heartbeat import Owner, owner_of
from exitbench.results.statistics.speed import MIN_ROUNDS

SHOWN_FAILURES: Final = 5
RUNNING: Final = "running"
LOST: Final = "lost"
"""States in addition to `schema.STATUSES`: an attempt without DONE whose process is alive, or is not."""


@dataclass(frozen=True)
class RunningAttempt:
    """Attempt whose process is alive, with the content of its cell.json and its process (`owner`)."""

    attempt: Attempt
    cell: dict[str, Any]
    owner: Owner

    def elapsed_s(self, now_s: float) -> float:
        """Return the seconds from the start of the attempt to the time `now_s` (seconds since 1970)."""
        return max(0.0, now_s - self.owner.started_s)

    def left_s(self, now_s: float) -> float | None:
        """Return the estimated seconds from `now_s` (seconds since 1970) until the attempt ends, at its rate so far.

        None if no document is done yet or the number of documents is unknown.
        """
        if not self.owner.done or self.owner.total is None:
            return None
        return self.elapsed_s(now_s) * (self.owner.total - self.owner.done) / self.owner.done


@dataclass(frozen=True)
class Failure:
    """Cell whose latest attempt failed; `cell` is the content of cell.json."""

    status: AttemptStatus
    cell: dict[str, Any]


@dataclass(frozen=True)
class SpoolStatus:
    """State of a spool at one moment.

    Attributes:
        taken_s: Time at which the spool was read, in seconds since 1970.
        states: State of every cell by id: the status of its latest attempt that was finished and not interrupted, else
            `interrupted`, `running`, or `lost` if the process is dead.
        running: Attempts in progress, oldest first; a cell that is repeated is listed here and keeps its old state.
        failures: The latest failures, newest first, at most `SHOWN_FAILURES`.
        damaged: One message per attempt whose status cannot be read.
        size_bytes: Size of all files of the attempts.
        attempts: Number of attempts of all cells together.
    """

    taken_s: float
    states: dict[str, str]
    running: tuple[RunningAttempt, ...]
    failures: tuple[Failure, ...]
    damaged: tuple[str, ...]
    size_bytes: int
    attempts: int

    @property
    def counts(self) -> Counter[str]:
        """Number of cells per state."""
        return Counter(self.states.values())


def spool_status(spool_root: Path, wanted: Callable[[str], bool] = lambda cell_id: True) -> SpoolStatus:
    """Return the states of the cells in a spool, with attempts in progress, latest failures, and size.

    Args:
        spool_root: The spool; attempts may be in progress, and it need not exist.
        wanted: Returns whether the cell with an id is included.
    """
    attempts = [attempt for attempt in scan_spool(spool_root) if wanted(attempt.cell_id)]
    running = [entry for attempt in attempts if not attempt.finished and (entry := _running(attempt))]
    live = {entry.attempt.cell_id for entry in running}
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
        running=tuple(sorted(running, key=lambda entry: entry.attempt.attempt_id)),
        failures=tuple(
            Failure(status, read_json_or_empty(status.path / "cell.json")) for status in bad[:SHOWN_FAILURES]
        ),
        damaged=tuple(damaged),
        size_bytes=sum(folder_bytes(attempt.path) for attempt in attempts),
        attempts=len(attempts),
    )


def folder_bytes(path: Path) -> int:
    """Return the size of the files in an attempt's folder; 0 if it was removed in the meantime."""
    try:
        with os.scandir(path) as entries:
            return sum(entry.stat().st_size for entry in entries)
    except FileNotFoundError:
        return 0


def _running(attempt: Attempt) -> RunningAttempt | None:
    owner = owner_of(attempt.path)
    return None if owner is None else RunningAttempt(attempt, read_json_or_empty(attempt.path / "cell.json"), owner)


@dataclass(frozen=True)
class Estimate:
    """Estimated time and disk space of a cell.

    Attributes:
        seconds: Wall time of the attempt; None if no similar cell was run.
        size_bytes: Size of the attempt's folder; None if no similar cell was run.
        basis: Description of the earlier cells on which the estimate is based.
        at_most: True if the estimate is an upper bound: this cell shares one run over the documents with other cells,
            but the earlier cells ran alone.
    """

    seconds: float | None
    size_bytes: float | None
    basis: str
    at_most: bool = False


UNKNOWN = Estimate(None, None, "nothing like it was run")


@dataclass(frozen=True)
class CellWorkload:
    """Properties of a cell that determine how long it takes.

    Attributes:
        kind: Kind of the cell.
        record: Quantities inside blocks that a probe cell records in addition to predictions; empty for other cells.
        shape: Kind of model, number of decoder blocks, number of parameters.
        batch_size: Number of documents decoded together.
        units: Amount of work: number of documents, times the levels of a calibration or the rounds of a timing.
        shares: True if the cell shares one run over the documents with other cells.
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
    def from_json(cls, cell: Mapping[str, Any], pass_cells: int | None = None) -> "CellWorkload":
        """Return the workload described by the content of a cell.json.

        `pass_cells` is the number of cells that one run over the documents computed, from status.json; None if the cell
        ran alone.
        """
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
    """Time and disk space per unit of work (`CellWorkload.units`), from earlier attempts."""

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
"""The number of leading levels whose models have the same size."""


class History:
    """Time and disk space per unit of work of a spool's successful attempts, from which new cells are estimated."""

    def __init__(self, spool_root: Path) -> None:
        """Read cell.json and status.json of every finished attempt.

        Args:
            spool_root: The spool; need not exist.
        """
        rates: dict[tuple[bool, Hashable], list[_Rate]] = defaultdict(list)
        for attempt in scan_spool(spool_root):
            if attempt.finished and (past := _past_rate(attempt)):
                workload, rate = past
                for key in _keys(workload):
                    rates[workload.shares, key].append(rate)
        self._rates: dict[tuple[bool, Hashable], _Rate] = {
            # The seconds of a pass are recorded with its first cell; the mean over its cells is the time per cell.
            (shared, key): _typical(values, fmean if shared else median)
            for (shared, key), values in rates.items()
        }

    def estimate(self, workload: CellWorkload) -> Estimate:
        """Return the estimated time and disk space of a cell, from the most similar earlier cells.

        Cells with a model of the same size come first. Among these, cells that shared a pass (one run over the
        documents) are preferred if this cell will share one, and cells that ran alone otherwise.
        """
        levels = list(zip(_LEVELS, _keys(workload), strict=True))
        same, other = workload.shares, not workload.shares
        of_its_size, of_any = levels[:_OF_ITS_SIZE], levels[_OF_ITS_SIZE:]
        for shared, near in ((same, of_its_size), (other, of_its_size), (same, of_any), (other, of_any)):
            for level, key in near:
                if (rate := self._rates.get((shared, key))) is not None:
                    seconds, size_bytes = rate.seconds * workload.units, rate.size_bytes * workload.units
                    return Estimate(seconds, size_bytes, level, at_most=workload.shares and not shared)
        return UNKNOWN


def _typical(rates: Sequence[_Rate], middle: Callable[[Iterable[float]], float]) -> _Rate:
    return _Rate(middle(rate.seconds for rate in rates), middle(rate.size_bytes for rate in rates))


def total(estimates: Sequence[Estimate]) -> tuple[float, float, int]:
    """Return total seconds, total bytes, and the number of cells without an estimate, from estimates of cells."""
    return (
        sum(estimate.seconds or 0 for estimate in estimates),
        sum(estimate.size_bytes or 0 for estimate in estimates),
        sum(estimate.seconds is None for estimate in estimates),
    )


def units(documents: int, *, levels: int = 0, timed: tuple[int, int] | None = None, recorded: int | None = None) -> int:
    """Return the amount of work of a cell, counted in documents that are decoded once.

    Args:
        documents: Number of documents of the cell's task.
        levels: Number of thresholds that a calibration tests, each on all documents; 0 for other cells. The chosen
            threshold is then decoded on as many further documents.
        timed: Maximum numbers of documents and rounds of a timing. Rounds beyond `MIN_ROUNDS` are not counted, since
            they only fill a fixed number of seconds.
        recorded: Maximum number of documents for which a probe records quantities inside blocks.
    """
    if timed is not None:
        return min(documents, timed[0]) * min(timed[1], MIN_ROUNDS)
    if recorded is not None:
        return min(documents, recorded)
    return documents * (1 + levels)


def _keys(workload: CellWorkload) -> tuple[Hashable, ...]:
    """Return a key per level of similarity, most similar first; two cells are similar at a level if the keys are equal.

    Every key contains the device, so cells on other devices are never similar.
    """
    shared = (workload.kind, workload.record, workload.dtype, workload.device, workload.engine, workload.batch_size)
    return (
        ("method task", *shared, workload.method, workload.weights_sha256, workload.task),
        ("method", *shared, workload.method, workload.weights_sha256),
        ("task", *shared, workload.weights_sha256, workload.task),
        ("shape", *shared, workload.shape),
        ("kind", *shared),
        ("loosely", workload.kind, workload.record, workload.device, workload.engine),
    )


def _past_rate(attempt: Attempt) -> tuple[CellWorkload, _Rate] | None:
    """Return an attempt's workload, and its time and disk space per unit of work; None if it failed or is invalid."""
    try:
        status = json.loads((attempt.path / "status.json").read_text(encoding="utf-8"))
        if status["status"] != "ok":
            return None
        cell = json.loads((attempt.path / "cell.json").read_text(encoding="utf-8"))
        workload = CellWorkload.from_json(cell, status.get("pass_cells"))
        took = datetime.fromisoformat(status["ended_at"]) - datetime.fromisoformat(status["started_at"])
        return workload, _Rate(took.total_seconds() / workload.units, folder_bytes(attempt.path) / workload.units)
    except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError):
        return None
