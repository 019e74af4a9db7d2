"""Draws figures and writes their files, in processes of their own where there are cores, while more rows are read."""

import contextlib
import gc
import hashlib
import json
import os
import signal
import threading
from collections.abc import Collection, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from multiprocessing import get_context, parent_process
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from exitbench import reports
from exitbench.errors import UserError
from exitbench.progress import counting
from exitbench.reports import figures
from exitbench.reports.frame import Frame
from exitbench.reports.plotting import style
from exitbench.reports.plotting.style import themed
from exitbench.reports.registry import Source, discover
from exitbench.results.files.atomic import write_whole_file
from exitbench.results.files.formats import content_id, sources_sha256
from exitbench.terminal import visible

KINDS: Final = ("pdf", "svg", "png")
"""Of files for papers and slides. They take twice as long as what the page shows, and are drawn where asked for."""
PAGE: Final = "page"
"""Folder of the pictures that the page shows, in that of the figures."""
_DRAWS: Final = ("matplotlib", "numpy")


def digest(name: str, frame: Frame) -> str:
    """Digest of what a figure is drawn from: its rows, in their order, and the code of all reports."""
    rows = repr((name, frame.columns, [list(row.items()) for row in frame.rows]))
    return hashlib.sha256(f"{_code()}\0{rows}".encode("utf-8", "surrogatepass")).hexdigest()


@cache
def _code() -> str:
    """Digest of all that draws: every source of this package, since figures share parts, and versions of libraries."""
    return content_id([sources_sha256(reports), *(version(name) for name in _DRAWS)])


def note_of(folder: Path, name: str) -> Path:
    """Return where it is noted what a figure was drawn from."""
    return folder / f".{name}.drawn"


@dataclass(frozen=True)
class Drawing:
    """What became of one figure: its picture for the page and its finding, or why there is none."""

    name: str
    picture: Path | None = None
    finding: str = ""
    error: str = ""


def picture_of(folder: Path, name: str, drawn_from: str) -> Path:
    """Return where what the page shows lies.

    It is named after what it is drawn from: who reads a page while another is written finds its own.
    """
    return folder / PAGE / f"{name}.{drawn_from[:12]}.svg"


def file_of(folder: Path, name: str, kind: str) -> Path:
    """Return where a file for papers lies."""
    return folder / f"{name}.{kind}"


def kinds_to_keep(folder: Path, name: str, asked: Collection[str]) -> tuple[str, ...]:
    """Return the kinds that are asked for, and those that are there: they stay those of the page."""
    return tuple(kind for kind in KINDS if kind in asked or file_of(folder, name, kind).exists())


def remember_drawn(folder: Path, drawing: Drawing, drawn_from: str, kinds: Collection[str]) -> None:
    """Note what a figure was drawn from, its finding, and digests of its files."""
    with contextlib.suppress(OSError):  # without a note it is drawn again
        files = _digests(folder, drawing.name, drawn_from, kinds)
        note = {"drawn_from": drawn_from, "finding": drawing.finding, "files": files}
        write_whole_file(note_of(folder, drawing.name), json.dumps(note))


def drawn_before(folder: Path, name: str, drawn_from: str, kinds: Collection[str]) -> Drawing | None:
    """Return a figure as it was drawn; nothing where it is to be drawn, or a file of these kinds is not as noted."""
    try:
        note = json.loads(note_of(folder, name).read_bytes())
        finding = note["finding"]
        files = _digests(folder, name, drawn_from, kinds)
        if note["drawn_from"] != drawn_from or {kind: note["files"][kind] for kind in files} != files:
            return None
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
    return Drawing(name, picture_of(folder, name, drawn_from), finding) if isinstance(finding, str) else None


def _digests(folder: Path, name: str, drawn_from: str, kinds: Collection[str]) -> dict[str, str]:
    files = {kind: file_of(folder, name, kind) for kind in kinds} | {PAGE: picture_of(folder, name, drawn_from)}
    return {kind: hashlib.sha256(path.read_bytes()).hexdigest() for kind, path in files.items()}


_WORTH_A_PROCESS: Final = 2
"""Figures: to start a process takes as long as to draw one."""
_COLLECTED_AT: Final = 50_000
"""New objects: at Python's 700 a sixth of the time goes into looking for garbage, of which there is little."""


@dataclass(frozen=True)
class DrawnFigure:
    """A figure as the page needs it.

    Attributes:
        source: Its query and its texts.
        frame: The rows behind it.
        picture: What the page shows; None when there was nothing to draw, or it could not be drawn.
        finding: What it shows of these rows, in one sentence; empty without a picture.
        error: Why it could not be drawn, else empty.
        files: What lies beside the page: files for papers (light theme), and the frame as CSV.
    """

    source: Source
    frame: Frame
    picture: Path | None
    finding: str
    error: str
    files: tuple[Path, ...]

    @property
    def caption(self) -> str:
        """The finding, then how to read the figure; names out of the data are in it."""
        return f"{self.finding} {self.source.module.CAPTION}".lstrip()


@dataclass(frozen=True)
class _Task:
    """A figure that is to be drawn."""

    name: str
    frame: Frame
    drawn_from: str
    kinds: tuple[str, ...]


class Drawings:
    """Figures in a folder: of each a picture for the page, its rows as CSV, and files for papers where asked for.

    One whose rows and code are those that it was drawn from before, and whose files are as they were, stays. Files for
    papers that are there are drawn with the picture: whatever lies beside a page is of the page's rows.
    """

    def __init__(self, folder: Path, workers: int, kinds: Collection[str] = ()) -> None:
        """Write nothing yet.

        Args:
            folder: Where to write.
            workers: Processes that draw, this one among them, which does so at the end.
            kinds: Of files for papers, some of `KINDS`.
        """
        self._folder, self._workers, self._kinds = folder, workers, kinds
        self._material: list[tuple[Source, Frame]] = []
        self._drawings: dict[str, Drawing] = {}
        self._tasks: dict[str, _Task] = {}
        self._begun: list[Future[Drawing]] = []
        self._pool: ProcessPoolExecutor | None = None
        self._collected_at = gc.get_threshold()

    def __enter__(self) -> Self:
        gc.set_threshold(_COLLECTED_AT, *self._collected_at[1:])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        gc.set_threshold(*self._collected_at)

    def add(self, source: Source, frame: Frame) -> None:
        """Take a figure; a process begins to draw it where there is one."""
        self._material.append((source, frame))
        if not frame.rows:
            return
        name, drawn_from = source.name, digest(source.name, frame)
        kinds = kinds_to_keep(self._folder, name, self._kinds)
        if (before := drawn_before(self._folder, name, drawn_from, kinds)) is not None:
            self._drawings[name] = before
            return
        self._tasks[name] = _Task(name, frame, drawn_from, kinds)
        if self._workers > 1 and len(self._tasks) >= _WORTH_A_PROCESS:
            self._begin()

    def finish(self, progress: bool = False) -> tuple[DrawnFigure, ...]:
        """Return all figures, in the order in which they were added, when the last is drawn.

        Args:
            progress: Whether to show a bar, where there is a terminal.

        Raises:
            OSError: A file cannot be written.
            UserError: A process that draws was killed.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        with counting("figures") if progress else nullcontext(lambda done, total: None) as on_drawing:
            for done, drawing in enumerate(self._drawn(), start=1):
                self._drawings[drawing.name] = drawing
                on_drawing(done, len(self._tasks))
                if drawing.picture:
                    task = self._tasks[drawing.name]
                    remember_drawn(self._folder, drawing, task.drawn_from, task.kinds)
        return tuple(self._finished(source, frame) for source, frame in self._material)

    def _begin(self) -> None:
        """Hand out what no process has yet."""
        if self._pool is None:  # DuckDB's threads must not be forked
            self._pool = ProcessPoolExecutor(self._workers - 1, get_context("spawn"), _prepare_worker)
        for task in list(self._tasks.values())[len(self._begun) :]:
            self._begun.append(self._pool.submit(draw, task.name, task.frame, self._folder, task.kinds))

    def _drawn(self) -> Iterator[Drawing]:
        tasks, begun = list(self._tasks.values()), list(self._begun)
        # The others take the first that is left, this process the last: nobody waits while there is one.
        while len(tasks) > len(begun) or (begun and begun[-1].cancel()):
            task = tasks.pop()
            del begun[len(tasks) :]
            yield draw(task.name, task.frame, self._folder, task.kinds)
        try:
            yield from (future.result() for future in as_completed(begun))
        except BrokenProcessPool as error:
            raise UserError(
                "A process that draws was killed, for its memory perhaps. Fewer cores need less."
            ) from error

    def _finished(self, source: Source, frame: Frame) -> DrawnFigure:
        drawing = self._drawings.get(source.name, Drawing(source.name))
        data = self._folder / f"{source.name}.csv"
        write_whole_file(data, frame.csv())
        files = tuple(file_of(self._folder, source.name, kind) for kind in KINDS)
        if not drawing.picture:
            for old in (*files, note_of(self._folder, source.name)):
                old.unlink(missing_ok=True)
        written = tuple(file for file in files if file.exists())
        return DrawnFigure(source, frame, drawing.picture, drawing.finding, drawing.error, (*written, data))


def _prepare_worker() -> None:
    """Look for garbage as rarely as the parent does, and end with it however it ends."""
    gc.set_threshold(_COLLECTED_AT)
    threading.Thread(target=_end_with_parent, name="lifeline", daemon=True).start()


def _end_with_parent() -> None:
    """Wait until the parent is gone: a pool's process that waits for work would outlive a `kill -9` of it."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGKILL)


def draw(name: str, frame: Frame, folder: Path, kinds: Collection[str] = KINDS) -> Drawing:
    """Write one figure for the page and in some kinds of files. One that cannot be drawn says so and spoils no other.

    Args:
        name: Of the figure, which a process can be sent, unlike its module.
        frame: At least one row.
        folder: Where to write.
        kinds: Of files for papers, beside the page's picture.

    Raises:
        OSError: A file cannot be written.
    """
    (source,) = (source for source in discover(figures) if source.name == name)
    try:
        figure, finding = plotted(source, frame)
        with style.theme(style.LIGHT):
            picture = themed(style.save(figure, "svg", letters="none"))
            files = {file_of(folder, name, kind): style.save(figure, kind) for kind in kinds}
    except Exception as error:
        return Drawing(name, error=f"{type(error).__name__}: {error}")
    shown = picture_of(folder, name, digest(name, frame))
    shown.parent.mkdir(parents=True, exist_ok=True)
    for file, content in ({shown: picture} | files).items():
        write_whole_file(file, content)
    return Drawing(name, shown, finding)


def plotted(source: Source, frame: Frame) -> tuple[style.ReportFigure, str]:
    """Return a figure, laid out, and its finding.

    Args:
        source: Which.
        frame: At least one row.
    """
    drawable = _drawable(frame)
    with style.theme(style.LIGHT):
        finding: str = source.module.finding(drawable)
        figure: style.ReportFigure = source.module.plot(drawable)
        style.lay_out(figure)
    return figure, finding


def _drawable(frame: Frame) -> Frame:
    """The frame with what no picture can hold spelled out: a control character makes an SVG no XML."""
    return Frame(
        frame.columns,
        tuple(
            {name: visible(value, keep="\n\r\t") if isinstance(value, str) else value for name, value in row.items()}
            for row in frame.rows
        ),
    )
