"""Draw figures and write their files, in parallel processes if there are cores, while later queries still run."""

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
from typing import Final, Self

from exitbench import reports
from exitbench.errors import UserError
from exitbench.progress import counting
from exitbench.reports import figures
from exitbench.reports.frame import Frame
from exitbench.reports.plotting import style
from exitbench.reports.plotting.style import themed
from exitbench.reports.registry import ReportSource, discover
from exitbench.results.files.atomic import write_whole_file
from exitbench.results.files.formats import content_id, sources_sha256
from exitbench.terminal import visible

KINDS: Final = ("pdf", "svg", "png")
"""Kinds of files for papers and slides. Drawn on request only: they take twice as long as the page's pictures."""
PAGE: Final = "page"
"""Subfolder of the pictures that the page shows, within the folder of figures."""
_DRAWS: Final = ("matplotlib", "numpy")


def digest(name: str, frame: Frame) -> str:
    """Return a SHA-256 digest of a figure's inputs: its rows, in their order, and the code of the reports package."""
    rows = repr((name, frame.columns, [list(row.items()) for row in frame.rows]))
    return hashlib.sha256(f"{_code()}\0{rows}".encode("utf-8", "surrogatepass")).hexdigest()


@cache
def _code() -> str:
    """Return a digest of this package's sources, since figures share code, and of the drawing libraries' versions."""
    return content_id([sources_sha256(reports), *(version(name) for name in _DRAWS)])


def note_of(folder: Path, name: str) -> Path:
    """Return the path of the JSON file that records from which inputs a figure was drawn."""
    return folder / f".{name}.drawn"


@dataclass(frozen=True)
class Drawing:
    """Result of drawing one figure: the page's picture and the finding (first sentence of its caption), or an error."""

    name: str
    picture: Path | None = None
    finding: str = ""
    error: str = ""


def picture_of(folder: Path, name: str, drawn_from: str) -> Path:
    """Return the path of a figure's SVG picture for the HTML page.

    Its name has a part of the input digest `drawn_from`, so that an open page keeps its pictures while another is
    written.
    """
    return folder / PAGE / f"{name}.{drawn_from[:12]}.svg"


def file_of(folder: Path, name: str, kind: str) -> Path:
    """Return the path of a figure's file for papers, of one kind: pdf, svg or png."""
    return folder / f"{name}.{kind}"


def kinds_to_keep(folder: Path, name: str, requested: Collection[str]) -> tuple[str, ...]:
    """Return the kinds of files to draw of a figure: those requested, and those whose file exists already.

    Existing files are redrawn, so that they keep matching the page.
    """
    return tuple(kind for kind in KINDS if kind in requested or file_of(folder, name, kind).exists())


def remember_drawn(folder: Path, drawing: Drawing, drawn_from: str, kinds: Collection[str]) -> None:
    """Write the JSON file that records a figure's input digest `drawn_from`, its finding, and digests of its files."""
    with contextlib.suppress(OSError):  # without the note, the figure is drawn again
        files = _digests(folder, drawing.name, drawn_from, kinds)
        note = {"drawn_from": drawn_from, "finding": drawing.finding, "files": files}
        write_whole_file(note_of(folder, drawing.name), json.dumps(note))


def drawn_before(folder: Path, name: str, drawn_from: str, kinds: Collection[str]) -> Drawing | None:
    """Return the earlier drawing of a figure, to be reused; None if it must be drawn again.

    It is reused if it was drawn from the inputs `drawn_from` and its files of these kinds have not changed since.
    """
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
"""Figures per process: starting a process takes as long as drawing one figure."""
_COLLECTED_AT: Final = 50_000
"""Garbage collection threshold in new objects: at Python's 700, collecting takes a sixth of the time for little."""


@dataclass(frozen=True)
class DrawnFigure:
    """Figure with everything that the page shows of it.

    Attributes:
        source: Its query, title and caption.
        frame: Rows that the query returned.
        picture: Picture for the page; None without rows, or if drawing failed.
        finding: Sentence on the result that these rows show; empty without a picture.
        error: Reason why drawing failed, else empty.
        files: Files next to the page: files for papers (light theme), and the frame as CSV.
    """

    source: ReportSource
    frame: Frame
    picture: Path | None
    finding: str
    error: str
    files: tuple[Path, ...]

    @property
    def caption(self) -> str:
        """Finding, then how to read the figure; may contain names from the data."""
        return f"{self.finding} {self.source.module.CAPTION}".lstrip()


@dataclass(frozen=True)
class _DrawingJob:
    """Figure to draw in a process: its name, rows, input digest, and kinds of files to write."""

    name: str
    frame: Frame
    drawn_from: str
    kinds: tuple[str, ...]


class Drawings:
    """Figures of a folder: for each a picture for the page, its rows as CSV, and files for papers on request.

    A figure with unchanged rows, code and files is not drawn again. Existing files for papers are redrawn with the
    picture, so that everything next to a page has the page's rows.
    """

    def __init__(self, folder: Path, workers: int, kinds: Collection[str] = ()) -> None:
        """Set up without writing anything.

        Args:
            folder: Folder to write to.
            workers: Number of drawing processes, including this one, which draws in `finish`.
            kinds: Kinds of files for papers, a subset of `KINDS`.
        """
        self._folder, self._workers, self._kinds = folder, workers, kinds
        self._material: list[tuple[ReportSource, Frame]] = []
        self._drawings: dict[str, Drawing] = {}
        self._tasks: dict[str, _DrawingJob] = {}
        self._begun: list[Future[Drawing]] = []
        self._pool: ProcessPoolExecutor | None = None
        self._collected_at = gc.get_threshold()

    def __enter__(self) -> Self:
        gc.set_threshold(_COLLECTED_AT, *self._collected_at[1:])
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        gc.set_threshold(*self._collected_at)

    def add(self, source: ReportSource, frame: Frame) -> None:
        """Add a figure with its rows; if it must be drawn, a free process may start to draw it at once."""
        self._material.append((source, frame))
        if not frame.rows:
            return
        name, drawn_from = source.name, digest(source.name, frame)
        kinds = kinds_to_keep(self._folder, name, self._kinds)
        if (before := drawn_before(self._folder, name, drawn_from, kinds)) is not None:
            self._drawings[name] = before
            return
        self._tasks[name] = _DrawingJob(name, frame, drawn_from, kinds)
        if self._workers > 1 and len(self._tasks) >= _WORTH_A_PROCESS:
            self._begin()

    def finish(self, progress: bool = False) -> tuple[DrawnFigure, ...]:
        """Return all figures, in the order in which they were added, once all are drawn.

        Args:
            progress: Whether to show a progress bar on a terminal.

        Raises:
            OSError: A file cannot be written.
            UserError: A drawing process was killed.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        with counting("figures") if progress else nullcontext(lambda n_done, total: None) as on_drawing:
            for n_done, drawing in enumerate(self._drawn(), start=1):
                self._drawings[drawing.name] = drawing
                on_drawing(n_done, len(self._tasks))
                if drawing.picture:
                    task = self._tasks[drawing.name]
                    remember_drawn(self._folder, drawing, task.drawn_from, task.kinds)
        return tuple(self._finished(source, frame) for source, frame in self._material)

    def _begin(self) -> None:
        """Submit the drawing jobs that were added since the last call; start the pool of processes if there is none."""
        if self._pool is None:  # DuckDB's threads must not be forked
            self._pool = ProcessPoolExecutor(self._workers - 1, get_context("spawn"), _prepare_worker)
        for task in list(self._tasks.values())[len(self._begun) :]:
            self._begun.append(self._pool.submit(draw, task.name, task.frame, self._folder, task.kinds))

    def _drawn(self) -> Iterator[Drawing]:
        tasks, futures = list(self._tasks.values()), list(self._begun)
        # Other processes take tasks from the front, this one from the back, so that none is idle while tasks remain.
        while len(tasks) > len(futures) or (futures and futures[-1].cancel()):
            task = tasks.pop()
            del futures[len(tasks) :]
            yield draw(task.name, task.frame, self._folder, task.kinds)
        try:
            yield from (future.result() for future in as_completed(futures))
        except BrokenProcessPool as error:
            raise UserError(
                "A drawing process was killed, perhaps because memory ran out. Fewer cores need less memory."
            ) from error

    def _finished(self, source: ReportSource, frame: Frame) -> DrawnFigure:
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
    """Set up a drawing process: collect garbage as rarely as the parent, and exit if the parent exits or is killed."""
    gc.set_threshold(_COLLECTED_AT)
    threading.Thread(target=_end_with_parent, name="lifeline", daemon=True).start()


def _end_with_parent() -> None:
    """Wait until the parent process ends, then kill this one, which would survive a `kill -9` of its parent."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGKILL)


def draw(name: str, frame: Frame, folder: Path, kinds: Collection[str] = KINDS) -> Drawing:
    """Draw one figure and write its files: the page's picture, and one file for papers per kind.

    If drawing fails, the returned `Drawing` has the error.

    Args:
        name: Name of the figure. A name can be sent to another process, the figure's module cannot.
        frame: At least one row.
        folder: Folder to write to.
        kinds: Kinds of files for papers, in addition to the page's picture.

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
    path = picture_of(folder, name, digest(name, frame))
    path.parent.mkdir(parents=True, exist_ok=True)
    for file, content in ({path: picture} | files).items():
        write_whole_file(file, content)
    return Drawing(name, path, finding)


def plotted(source: ReportSource, frame: Frame) -> tuple[style.ReportFigure, str]:
    """Return a figure drawn from its rows, with its layout computed, and its finding (one sentence).

    Args:
        source: The figure's source.
        frame: At least one row.
    """
    drawable = _drawable(frame)
    with style.theme(style.LIGHT):
        finding: str = source.module.finding(drawable)
        figure: style.ReportFigure = source.module.plot(drawable)
        style.lay_out(figure)
    return figure, finding


def _drawable(frame: Frame) -> Frame:
    """Return the frame with control characters escaped: an SVG with them is not valid XML."""
    return Frame(
        frame.columns,
        tuple(
            {name: visible(value, keep="\n\r\t") if isinstance(value, str) else value for name, value in row.items()}
            for row in frame.rows
        ),
    )
