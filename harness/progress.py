"""How far a run is: two bars on a terminal, plain lines anywhere else."""

import sys
import time
from types import TracebackType
from typing import Protocol, Self, TextIO

from tqdm import tqdm


class Progress(Protocol):
    """What the executor tells while cells run."""

    def start(self, label: str, documents: int) -> None:
        """A cell has started."""

    def documents_done(self, done: int) -> None:
        """So many documents of the current cell are finished."""

    def end(self, status: str) -> None:
        """The current cell has ended."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def progress(cells: int) -> Progress:
    """Return bars on stderr where that is a terminal, lines where it is not."""
    stream = sys.stderr
    return Bars(cells, stream) if stream.isatty() else Lines(cells, stream)


class Bars:
    """Cells overall and documents of the current cell, with the time left."""

    def __init__(self, cells: int, stream: TextIO) -> None:
        self._stream, self._label = stream, ""
        self._cells = tqdm(total=cells, unit="cell", desc="cells", file=stream, position=0)
        self._documents = tqdm(total=0, unit="doc", file=stream, position=1, leave=False)

    def start(self, label: str, documents: int) -> None:
        """Show the cell's label on a fresh bar."""
        self._label = label
        self._documents.reset(total=documents)
        self._documents.set_description(label)

    def documents_done(self, done: int) -> None:
        """Move the lower bar."""
        self._documents.n = done
        self._documents.refresh()

    def end(self, status: str) -> None:
        """Move the upper bar; what did not go well stays on the screen."""
        if status != "ok":
            self._cells.write(f"{self._label}: {status}", file=self._stream)
        self._cells.update()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._documents.close()
        self._cells.close()


class Lines:
    """One line a cell, for logs and continuous integration."""

    def __init__(self, cells: int, stream: TextIO) -> None:
        self._cells, self._stream = cells, stream
        self._ended, self._label, self._documents, self._started_s = 0, "", 0, 0.0

    def start(self, label: str, documents: int) -> None:
        """Remember what runs."""
        self._label, self._documents, self._started_s = label, documents, time.monotonic()

    def documents_done(self, done: int) -> None:
        """Nothing: a line a document would drown a log."""

    def end(self, status: str) -> None:
        """Write the cell's line."""
        self._ended += 1
        took_s = time.monotonic() - self._started_s
        line = f"[{self._ended}/{self._cells}] {self._label} ({self._documents} documents): {status}, {took_s:.1f} s"
        print(line, file=self._stream, flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass
