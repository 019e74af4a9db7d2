"""Draws figures and writes their files, several at a time where there are cores."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from exitbench.errors import UserError
from exitbench.progress import counting
from exitbench.reports import figures
from exitbench.reports.drawn import KINDS, Drawing, digest, drawn_before, files_of, note_of, remember_drawn
from exitbench.reports.frame import Frame
from exitbench.reports.plotting import style
from exitbench.reports.plotting.svg import themed
from exitbench.reports.registry import Source, discover
from exitbench.results.files.whole_file import write_whole_file
from exitbench.terminal import visible

_A_WORKER = 2  # figures: to start a process takes as long as to draw one


@dataclass(frozen=True)
class DrawnFigure:
    """A figure as the page needs it.

    Attributes:
        source: Its query and its texts.
        frame: The rows behind it.
        picture: What the page shows; None when there was nothing to draw, or it could not be drawn.
        finding: What it shows of these rows, in one sentence; empty without a picture.
        error: Why it could not be drawn, else empty.
        files: What was written beside the page: SVG, PDF and PNG (light theme) and the frame as CSV.
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


def draw_all(
    material: Sequence[tuple[Source, Frame]], folder: Path, workers: int, progress: bool
) -> tuple[DrawnFigure, ...]:
    """Write every figure as SVG, PDF, PNG and CSV into `folder`; without rows only the CSV, and remove old pictures.

    One whose rows and code are those that it was drawn from before, and whose files are as they were, stays.

    Args:
        material: Figures with their rows.
        folder: Where to write.
        workers: Processes that draw; 1 draws in this one.
        progress: Whether to show a bar, where there is a terminal.
    """
    filled = [(source.name, frame) for source, frame in material if frame.rows]
    digests = {name: digest(name, frame) for name, frame in filled}
    drawings = {
        name: drawing for name, own in digests.items() if (drawing := drawn_before(folder, name, own)) is not None
    }
    filled = [(name, frame) for name, frame in filled if name not in drawings]
    left = len(filled)
    with counting("figures") if progress else nullcontext(lambda done, total: None) as on_drawing:
        for drawing in _drawn(filled, folder, workers):
            drawings[drawing.name] = drawing
            left -= 1
            on_drawing(len(filled) - left, len(filled))
            if drawing.picture:
                remember_drawn(folder, drawing, digests[drawing.name])
    return tuple(
        _finished(source, frame, drawings.get(source.name, Drawing(source.name)), folder) for source, frame in material
    )


def draw(name: str, frame: Frame, folder: Path) -> Drawing:
    """Write one figure in every kind. One that cannot be drawn says so and spoils no other.

    Args:
        name: Of the figure, which a process can be sent, unlike its module.
        frame: At least one row.
        folder: Where to write.

    Raises:
        OSError: A file cannot be written.
    """
    (source,) = (source for source in discover(figures) if source.name == name)
    try:
        figure, finding = plotted(source, frame)
        with style.theme(style.LIGHT):
            pictures: dict[str, bytes | str] = {kind: style.save(figure, kind) for kind in KINDS}
            pictures["page"] = themed(style.save(figure, "svg", letters="none"))
    except Exception as error:
        return Drawing(name, error=f"{type(error).__name__}: {error}")
    files = files_of(folder, name, digest(name, frame))
    files["page"].parent.mkdir(exist_ok=True)
    for kind, content in pictures.items():
        write_whole_file(files[kind], content)
    return Drawing(name, files["page"], finding)


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


def _drawn(filled: Sequence[tuple[str, Frame]], folder: Path, workers: int) -> Iterator[Drawing]:
    workers = min(workers, len(filled) // _A_WORKER)
    if workers <= 1:
        yield from (draw(name, frame, folder) for name, frame in filled)
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:  # DuckDB's threads must not be forked
        # the largest first, so that no process is left with it at the end
        tasks = [
            pool.submit(draw, name, frame, folder) for name, frame in sorted(filled, key=lambda one: -len(one[1].rows))
        ]
        try:
            yield from (task.result() for task in as_completed(tasks))
        except BrokenProcessPool as error:
            raise UserError(
                "A process that draws was killed, for its memory perhaps. Fewer cores need less."
            ) from error
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _finished(source: Source, frame: Frame, drawing: Drawing, folder: Path) -> DrawnFigure:
    data = folder / f"{source.name}.csv"
    write_whole_file(data, frame.csv())
    pictures = tuple(folder / f"{source.name}.{kind}" for kind in KINDS)
    if not drawing.picture:
        for old in (*pictures, note_of(folder, source.name)):
            old.unlink(missing_ok=True)
    files = (*(pictures if drawing.picture else ()), data)
    return DrawnFigure(source, frame, drawing.picture, drawing.finding, drawing.error, files)
