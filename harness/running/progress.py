"""How far a run is: bars on a terminal, plain lines anywhere else."""

import sys
import threading
import time
from types import TracebackType
from typing import Protocol, Self, TextIO

from tqdm import tqdm

from exitbench.terminal import number_of, tell, visible


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


def progress(cells: int) -> Progress:
    """Return bars on stderr where that is a terminal, lines where it is not."""
    stream = sys.stderr
    return Bars(cells, stream) if stream.isatty() else Lines(cells, stream)


MAX_BARS = 8
"""Cells that have a bar of their own at the same time."""


class Bars:
    """Cells overall, and documents of cells that run, with the time left."""

    def __init__(self, cells: int, stream: TextIO) -> None:
        self._stream, self._lock = stream, threading.RLock()
        self._cells = tqdm(total=cells, unit="cell", desc="cells", file=stream, position=0)
        self._running: dict[str, tqdm] = {}
        self._idle: list[tqdm] = []

    def start(self, label: str, documents: int) -> None:
        """Show the cell's label on a fresh bar, if there is room."""
        with self._lock:
            if len(self._running) == MAX_BARS:
                return
            bar = self._idle.pop() if self._idle else self._new_bar()
            bar.reset(total=documents)
            bar.set_description(visible(label))
            self._running[label] = bar

    def documents_done(self, label: str, done: int) -> None:
        """Move the cell's bar."""
        with self._lock:
            if (bar := self._running.get(label)) is not None:
                bar.n = done
                bar.refresh()

    def end(self, label: str, status: str) -> None:
        """Move the upper bar; what did not go well stays on the screen."""
        with self._lock:
            if (bar := self._running.pop(label, None)) is not None:
                bar.clear()
                self._idle.append(bar)
            if status != "ok":
                self._cells.write(visible(f"{label}: {status}"), file=self._stream)
            self._cells.update()

    def note(self, text: str) -> None:
        """Write the line above the bars."""
        with self._lock:
            self._cells.write(text, file=self._stream)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for bar in (*self._running.values(), *self._idle, self._cells):
            bar.close()

    def _new_bar(self) -> tqdm:
        """A bar below those of the cells that run."""
        return tqdm(unit="doc", file=self._stream, position=1 + len(self._running), leave=False)


class Lines:
    """One line a cell, for logs and continuous integration."""

    def __init__(self, cells: int, stream: TextIO) -> None:
        self._cells, self._stream, self._lock = cells, stream, threading.Lock()
        self._ended = 0
        self._running: dict[str, tuple[int, float]] = {}

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
                how = f" ({number_of(documents, 'document')}): {status}, {time.monotonic() - started_s:.1f} s"
            else:
                how = f": {status}"
            line = f"[{self._ended}/{self._cells}] {label}{how}"
            tell(line, self._stream)

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
