"""Progress bars with the time left on a terminal, plain lines or nothing anywhere else."""

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
    """What an executor tells while cells run; several may run at once, and be told of by several threads."""

    def start(self, label: str, documents: int) -> None:
        """A cell has started."""

    def documents_done(self, label: str, done: int) -> None:
        """So many documents of a cell that has started are finished."""

    def end(self, label: str, status: str) -> None:
        """A cell has ended; it need not have started here."""

    def note(self, text: str) -> None:
        """Something that is worth a line."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def progress(cells: int, of: str = "cells", unit: str = "document") -> Progress:
    """Return bars on stderr where that is a terminal, lines where it is not.

    Args:
        cells: How many there are.
        of: What they are called.
        unit: What one of them consists of.
    """
    stream = sys.stderr
    return Bars(cells, stream, of) if stream.isatty() else Lines(cells, stream, unit)


@contextmanager
def counting(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show one bar on a terminal; gives what is to be called with (done, total)."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    with _bars(sys.stderr) as bars:
        bar = bars.add_task(what, total=None)
        yield lambda done, total: bars.update(bar, completed=done, total=total)


MAX_BARS = 8
"""Cells that have a bar of their own at the same time."""


class Bars:
    """Cells overall, and documents of cells that run, with the time left."""

    def __init__(self, cells: int, stream: TextIO, of: str = "cells") -> None:
        self._bars = _bars(stream)
        self._cells = self._bars.add_task(of, total=cells)
        self._running: dict[str, rich.progress.TaskID] = {}

    def start(self, label: str, documents: int) -> None:
        """Show a bar for the cell, if there is room."""
        if len(self._running) < MAX_BARS and label not in self._running:
            self._running[label] = self._bars.add_task(visible(label), total=documents)

    def documents_done(self, label: str, done: int) -> None:
        """Move the cell's bar."""
        if (bar := self._running.get(label)) is not None:
            self._bars.update(bar, completed=done, refresh=True)

    def end(self, label: str, status: str) -> None:
        """Move the upper bar; what did not go well stays on the screen."""
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
"""How often a log is told what is left."""

_FEW = 3
"""Cells by which nothing can be told of others: the first loads the model."""


class Lines:
    """One line a cell, for logs and continuous integration."""

    def __init__(self, cells: int, stream: TextIO, unit: str = "document") -> None:
        self._cells, self._stream, self._unit, self._lock = cells, stream, unit, threading.Lock()
        self._ended = 0
        self._running: dict[str, tuple[int, float]] = {}
        self._started_s = self._told_s = time.monotonic()

    def start(self, label: str, documents: int) -> None:
        """Remember what runs."""
        self._running[label] = (documents, time.monotonic())

    def documents_done(self, label: str, done: int) -> None:
        """Nothing: a line a document would drown a log."""

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
        """Now and then, what is left, as if all cells took as long as those that have ended."""
        now_s, left = time.monotonic(), self._cells - self._ended
        if left > 0 and self._ended >= _FEW and now_s - self._told_s >= LEFT_S:
            self._told_s, seconds = now_s, (now_s - self._started_s) / self._ended * left
            about = f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
            tell(
                f"{self._ended} of {self._cells} done, {left} left: about {about} if they are like these", self._stream
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
