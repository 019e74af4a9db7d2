"""Progress display: bars with the remaining time on a terminal, plain lines or nothing elsewhere."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self, TextIO

from exitbench.terminal import number_of, tell, visible

if TYPE_CHECKING:
    import rich.progress


class Progress(Protocol):
    """Receiver of an executor's progress events. Several cells may run at once, reported from several threads."""

    def start(self, label: str, documents: int) -> None:
        """Report that a cell has started."""

    def documents_done(self, label: str, done: int) -> None:
        """Report that `done` documents of a started cell are finished."""

    def end(self, label: str, status: str) -> None:
        """Report that a cell has ended, with or without a preceding `start`."""

    def note(self, text: str) -> None:
        """Show a message on a line of its own."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def progress(cells: int, of: str = "cells", unit: str = "document") -> Progress:
    """Return bars on stderr if it is a terminal, otherwise plain lines.

    Args:
        cells: Number of cells.
        of: Plural noun for the cells.
        unit: Singular noun for the parts of a cell.
    """
    stream = sys.stderr
    return Bars(cells, stream, of) if stream.isatty() else Lines(cells, stream, unit)


@contextmanager
def counting(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show one bar on a terminal; yields a callback that takes (done, total)."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    with _bars(sys.stderr) as bars:
        bar = bars.add_task(what, total=None)
        yield lambda done, total: bars.update(bar, completed=done, total=total)


MAX_BARS = 8
"""Maximum number of cells with their own bar at the same time."""


class Bars:
    """Progress bars: all cells, and the documents of each running cell, with the remaining time."""

    def __init__(self, cells: int, stream: TextIO, of: str = "cells") -> None:
        self._bars = _bars(stream)
        self._cells = self._bars.add_task(of, total=cells)
        self._running: dict[str, rich.progress.TaskID] = {}

    def start(self, label: str, documents: int) -> None:
        """Show a bar for the cell, if fewer than `MAX_BARS` are shown."""
        if len(self._running) < MAX_BARS and label not in self._running:
            self._running[label] = self._bars.add_task(visible(label), total=documents)

    def documents_done(self, label: str, done: int) -> None:
        """Update the cell's bar."""
        if (bar := self._running.get(label)) is not None:
            self._bars.update(bar, completed=done, refresh=True)

    def end(self, label: str, status: str) -> None:
        """Advance the overall bar. A status other than ``ok`` stays on the screen."""
        if (bar := self._running.pop(label, None)) is not None:
            self._bars.remove_task(bar)
        if status != "ok":
            self.note(visible(f"{label}: {status}"))
        self._bars.advance(self._cells)

    def note(self, text: str) -> None:
        """Write the line above the bars."""
        self._bars.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()


def _bars(stream: TextIO) -> "rich.progress.Progress":
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.table import Column

    return Progress(
        TextColumn("{task.description}", markup=False, table_column=Column(ratio=1, no_wrap=True)),
        BarColumn(bar_width=16),
        TaskProgressColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(file=stream),
        expand=True,
        redirect_stdout=False,  # which may be a pipe
    )


LEFT_S = 30.0
"""Minimum seconds between two estimates of the remaining time in a log."""

_FEW = 3
"""Finished cells before the first estimate: the first cell includes loading the model."""


class Lines:
    """Progress as one line per cell, for logs and continuous integration."""

    def __init__(self, cells: int, stream: TextIO, unit: str = "document") -> None:
        self._cells, self._stream, self._unit, self._lock = cells, stream, unit, threading.Lock()
        self._ended = 0
        self._running: dict[str, tuple[int, float]] = {}
        self._started_s = self._told_s = time.monotonic()

    def start(self, label: str, documents: int) -> None:
        """Remember the cell and its start time."""
        self._running[label] = (documents, time.monotonic())

    def documents_done(self, label: str, done: int) -> None:
        """Do nothing: one line per document would flood a log."""

    def end(self, label: str, status: str) -> None:
        """Write the cell's line."""
        with self._lock:
            self._ended += 1
            if label in self._running:
                documents, started_s = self._running.pop(label)
                how = f" ({number_of(documents, self._unit)}): {status}, {time.monotonic() - started_s:.1f} s"
            else:
                how = f": {status}"
            line = f"[{self._ended}/{self._cells}] {label}{how}"
            tell(line, self._stream)
            self._tell_left()

    def _tell_left(self) -> None:
        """Write an estimate of the remaining time, at most every `LEFT_S` seconds, from the mean time per cell."""
        now_s, remaining = time.monotonic(), self._cells - self._ended
        if remaining > 0 and self._ended >= _FEW and now_s - self._told_s >= LEFT_S:
            self._told_s, seconds = now_s, (now_s - self._started_s) / self._ended * remaining
            about = f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
            tell(
                f"{self._ended} of {self._cells} done, {remaining} left: about {about} if they are like these",
                self._stream,
            )

    def note(self, text: str) -> None:
        """Write the line."""
        with self._lock:
            print(text, file=self._stream, flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass
