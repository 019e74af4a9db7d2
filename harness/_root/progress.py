"""Progress display: bars with the remaining time on a terminal, plain lines elsewhere."""

import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from statistics import fmean
from typing import TYPE_CHECKING, Protocol, Self, TextIO

from exitbench.terminal import number_of, print_escaped, visible

if TYPE_CHECKING:
    import rich.progress


class Progress(Protocol):
    """Receiver of an executor's progress events. Several cells may run at once, reported from several threads."""

    def start(self, label: str, documents: int) -> None:
        """Report that the cell `label`, with this number of documents, has started."""

    def documents_done(self, label: str, n_done: int) -> None:
        """Report that `n_done` documents of the started cell `label` are finished."""

    def end(self, label: str, status: str) -> None:
        """Report that a cell has ended. A cell that was skipped ends without a preceding `start`."""

    def note(self, text: str) -> None:
        """Show a message on a line of its own."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


@dataclass(frozen=True)
class Expected:
    """Kind of a cell and its estimated duration in seconds (None without an estimate), both known before it runs."""

    kind: str = ""
    seconds: float | None = None


def progress(cells: Mapping[str, Expected], cell_noun: str = "cells", unit: str = "document") -> Progress:
    """Return a progress display on stderr: bars if stderr is a terminal, otherwise plain lines.

    Args:
        cells: All cells to run, by label.
        cell_noun: Plural noun for the cells.
        unit: Singular noun for what is counted within a cell.
    """
    stream = sys.stderr
    return Bars(cells, stream, cell_noun) if stream.isatty() else Lines(cells, stream, unit)


class TimeLeft:
    """Estimate of the remaining time, corrected by how long finished cells of the same kind took.

    A timing cell takes a hundred times as long as a replay, so a mean over all kinds would mislead.
    """

    def __init__(self, cells: Mapping[str, Expected]) -> None:
        expected_s = [cell.seconds for cell in cells.values() if cell.seconds]
        typical_s = fmean(expected_s) if expected_s else 1.0
        self._weights = {label: (cell.kind, cell.seconds or typical_s) for label, cell in cells.items()}
        self._left = dict(self._weights)
        self._taken: dict[str, list[tuple[float, float]]] = defaultdict(list)
        self._started_s = time.monotonic()

    def end(self, label: str, seconds: float) -> None:
        """Record that a cell has ended after running for `seconds`."""
        if (weight := self._left.pop(label, None)) is not None:
            self._taken[weight[0]].append((seconds, weight[1]))

    def seconds(self, now_s: float) -> float | None:
        """Return the estimated seconds from `now_s` until all cells have ended; None until the first cell has ended."""
        finished = [pair for pairs in self._taken.values() for pair in pairs]
        taken_s = sum(seconds for seconds, _ in finished)
        if taken_s <= 0:
            return None
        left_s = sum(weight * _rate(self._taken[kind] or finished) for kind, weight in self._left.values())
        side_by_side = max(1.0, taken_s / max(now_s - self._started_s, 1e-9))
        return left_s / side_by_side


def _rate(finished: Sequence[tuple[float, float]]) -> float:
    """Return the ratio of actual to expected seconds, summed over (actual, expected) pairs of finished cells."""
    return sum(seconds for seconds, _ in finished) / sum(weight for _, weight in finished)


@contextmanager
def counting(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show one progress bar, named `what`, on a terminal while the context is open; show nothing elsewhere.

    Yields:
        A callback that updates the bar; its arguments are the number done and the total.
    """
    if not sys.stderr.isatty():
        yield lambda n_done, total: None
        return
    with _bars(sys.stderr) as bars:
        bar = bars.add_task(what, total=None)
        yield lambda n_done, total: bars.update(bar, completed=n_done, total=total)


MAX_BARS = 8
"""Maximum number of cells with their own bar at the same time."""


class Bars:
    """Display with one progress bar for all cells, one per running cell for its documents, and the remaining time."""

    def __init__(self, cells: Mapping[str, Expected], stream: TextIO, cell_noun: str = "cells") -> None:
        self._bars, self._time_left = _bars(stream), TimeLeft(cells)
        self._cells = self._bars.add_task(cell_noun, total=len(cells))
        self._running: dict[str, rich.progress.TaskID] = {}
        self._started_s: dict[str, float] = {}

    def start(self, label: str, documents: int) -> None:
        """Show a bar for the cell, if fewer than `MAX_BARS` are shown."""
        self._started_s.setdefault(label, time.monotonic())
        if len(self._running) < MAX_BARS and label not in self._running:
            self._running[label] = self._bars.add_task(visible(label), total=documents)

    def documents_done(self, label: str, n_done: int) -> None:
        """Set the cell's bar to `n_done` documents."""
        if (bar := self._running.get(label)) is not None:
            self._bars.update(bar, completed=n_done, refresh=True)

    def end(self, label: str, status: str) -> None:
        """Remove the cell's bar and advance the bar of all cells; print a status other than ``ok`` above the bars."""
        if (bar := self._running.pop(label, None)) is not None:
            self._bars.remove_task(bar)
        if status != "ok":
            self.note(visible(f"{label}: {status}"))
        now_s = time.monotonic()
        self._time_left.end(label, now_s - self._started_s.pop(label, now_s))
        self._bars.update(self._cells, advance=1, left_s=self._time_left.seconds(now_s))

    def note(self, text: str) -> None:
        """Write a message above the bars."""
        self._bars.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()


def _bars(stream: TextIO) -> "rich.progress.Progress":
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        Task,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.table import Column
    from rich.text import Text

    class Remaining(TimeRemainingColumn):
        """Column with the remaining time: the bar's field `left_s` if it is set, otherwise rich's own estimate."""

        def render(self, task: Task) -> Text:
            left_s = task.fields.get("left_s")
            if left_s is None or task.finished:
                return super().render(task)
            return Text(str(timedelta(seconds=round(left_s))), style="progress.remaining")

    return Progress(
        TextColumn("{task.description}", markup=False, table_column=Column(ratio=1, no_wrap=True)),
        BarColumn(bar_width=16),
        TaskProgressColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        Remaining(),
        console=Console(file=stream),
        expand=True,
        redirect_stdout=False,  # stdout may be a pipe
    )


LEFT_S = 30.0
"""Minimum seconds between two log lines that estimate the remaining time."""


class Lines:
    """Progress as one line per cell, for logs and continuous integration, with estimates of the remaining time."""

    def __init__(self, cells: Mapping[str, Expected], stream: TextIO, unit: str = "document") -> None:
        self._cells, self._stream, self._unit, self._lock = len(cells), stream, unit, threading.Lock()
        self._time_left, self._ended = TimeLeft(cells), 0
        self._running: dict[str, tuple[int, float]] = {}
        self._first_done: dict[str, tuple[int, float]] = {}
        self._estimated_at_s = time.monotonic()

    def start(self, label: str, documents: int) -> None:
        """Store the number of documents and the start time of a cell."""
        self._first_done.pop(label, None)
        self._running[label] = (documents, time.monotonic())

    def documents_done(self, label: str, n_done: int) -> None:
        """Write a line about a cell that takes long, at most every `LEFT_S` seconds."""
        with self._lock:
            if label not in self._running:
                return
            documents, now_s = self._running[label][0], time.monotonic()
            # A resumed training begins with the steps that were done before.
            first_done, first_s = self._first_done.setdefault(label, (n_done, now_s))
            if first_done < n_done < documents and now_s - self._estimated_at_s >= LEFT_S:
                self._estimated_at_s = now_s
                left_s = (now_s - first_s) / (n_done - first_done) * (documents - n_done)
                done = f"{label}: {n_done} of {number_of(documents, self._unit)} done"
                print_escaped(f"{done}, about {_about(left_s)} left", self._stream)

    def end(self, label: str, status: str) -> None:
        """Write one line with the cell's label, status and seconds."""
        with self._lock:
            self._ended += 1
            now_s, seconds, outcome = time.monotonic(), 0.0, f": {status}"
            if label in self._running:
                documents, started_s = self._running.pop(label)
                seconds = now_s - started_s
                outcome = f" ({number_of(documents, self._unit)}): {status}, {seconds:.1f} s"
            print_escaped(f"[{self._ended}/{self._cells}] {label}{outcome}", self._stream)
            self._time_left.end(label, seconds)
            self._write_time_left(now_s)

    def _write_time_left(self, now_s: float) -> None:
        """Write an estimate of the remaining time, at most every `LEFT_S` seconds."""
        n_left, left_s = self._cells - self._ended, self._time_left.seconds(now_s)
        if n_left > 0 and left_s is not None and now_s - self._estimated_at_s >= LEFT_S:
            self._estimated_at_s = now_s
            print_escaped(f"{self._ended} of {self._cells} done, {n_left} left: about {_about(left_s)}", self._stream)

    def note(self, text: str) -> None:
        """Write a message on a line of its own."""
        with self._lock:
            print(text, file=self._stream, flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def _about(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
