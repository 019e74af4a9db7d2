"""Draws figures and writes their files, several at a time where there are cores."""

import base64
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from tqdm import tqdm

from exitbench.reports import figures, style
from exitbench.reports.frame import Frame
from exitbench.reports.sources import Source, discover
from exitbench.reports.svg import themed_uri

KINDS = ("svg", "pdf", "png")


@dataclass(frozen=True)
class DrawnFigure:
    """A figure as the page needs it.

    Attributes:
        source: Its query and its texts.
        frame: The rows behind it.
        image: URI of the picture for the page; empty when there was no row to draw.
        files: What was written beside the page: SVG, PDF and PNG (light theme) and the frame as CSV.
    """

    source: Source
    frame: Frame
    image: str
    files: tuple[Path, ...]


def draw_all(
    material: Sequence[tuple[Source, Frame]], folder: Path, workers: int, progress: bool
) -> tuple[DrawnFigure, ...]:
    """Write every figure as SVG, PDF, PNG and CSV into `folder`; without rows only the CSV, and remove old pictures.

    Args:
        material: Figures with their rows.
        folder: Where to write.
        workers: Processes that draw; 1 draws in this one.
        progress: Whether to show a bar, where there is a terminal.
    """
    filled = [(source.name, frame) for source, frame in material if frame.rows]
    images: dict[str, str] = {}
    bar = tqdm(_drawn(filled, folder, workers), total=len(filled), desc="figures", disable=None if progress else True)
    images.update(bar)
    return tuple(_finished(source, frame, images.get(source.name, ""), folder) for source, frame in material)


def draw(name: str, frame: Frame, folder: Path) -> tuple[str, str]:
    """Write one figure in every kind; return its name and the URI of its picture for the page.

    Args:
        name: Of the figure, which a process can be sent, unlike its module.
        frame: At least one row.
        folder: Where to write.
    """
    (source,) = (source for source in discover(figures) if source.name == name)
    try:
        with style.theme(style.LIGHT):
            figure = source.module.plot(frame)
            style.lay_out(figure)
            for kind in KINDS:
                (folder / f"{name}.{kind}").write_bytes(style.save(figure, kind))
            return name, themed_uri(style.save(figure, "svg", letters="none"))
    except Exception as error:
        error.add_note(f"while drawing {name}")
        raise


def data_uri(media_type: str, content: bytes) -> str:
    """Return `content` as a URI that needs neither file nor network."""
    return f"data:{media_type};base64,{base64.b64encode(content).decode('ascii')}"


def _drawn(filled: Sequence[tuple[str, Frame]], folder: Path, workers: int) -> Iterator[tuple[str, str]]:
    workers = min(workers, len(filled))
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
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _finished(source: Source, frame: Frame, image: str, folder: Path) -> DrawnFigure:
    data = folder / f"{source.name}.csv"
    data.write_text(frame.csv(), "utf-8")
    pictures = tuple(folder / f"{source.name}.{kind}" for kind in KINDS)
    if not image:
        for picture in pictures:
            picture.unlink(missing_ok=True)
    return DrawnFigure(source, frame, image, (*(pictures if image else ()), data))
