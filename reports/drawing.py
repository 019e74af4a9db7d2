"""Draws one figure and writes its files."""

import base64
from dataclasses import dataclass
from pathlib import Path

from exitbench.reports import style
from exitbench.reports.frame import Frame
from exitbench.reports.sources import Source

KINDS = ("svg", "pdf", "png")


@dataclass(frozen=True)
class DrawnFigure:
    """A figure as the page needs it.

    Attributes:
        source: Its query and its texts.
        frame: The rows behind it.
        images: Data URI of the SVG by theme name; empty when there was no row to draw.
        files: What was written beside the page: SVG, PDF and PNG (light theme) and the frame as CSV.
    """

    source: Source
    frame: Frame
    images: dict[str, str]
    files: tuple[Path, ...]


def draw(source: Source, frame: Frame, folder: Path) -> DrawnFigure:
    """Write `source` as SVG, PDF, PNG and CSV into `folder`; without rows only the CSV, and remove old pictures."""
    data = folder / f"{source.name}.csv"
    data.write_text(frame.csv(), "utf-8")
    pictures = {kind: folder / f"{source.name}.{kind}" for kind in KINDS}
    if not frame.rows:
        for picture in pictures.values():
            picture.unlink(missing_ok=True)
        return DrawnFigure(source, frame, {}, (data,))
    light = _rendered(source, frame, style.LIGHT, KINDS)
    for kind, content in light.items():
        pictures[kind].write_bytes(content)
    dark = _rendered(source, frame, style.DARK, ("svg",))
    images = {
        style.LIGHT.name: data_uri("image/svg+xml", light["svg"]),
        style.DARK.name: data_uri("image/svg+xml", dark["svg"]),
    }
    return DrawnFigure(source, frame, images, (*pictures.values(), data))


def data_uri(media_type: str, content: bytes) -> str:
    """Return `content` as a URI that needs neither file nor network."""
    return f"data:{media_type};base64,{base64.b64encode(content).decode('ascii')}"


def _rendered(source: Source, frame: Frame, theme: style.Theme, kinds: tuple[str, ...]) -> dict[str, bytes]:
    with style.theme(theme):
        figure = source.module.plot(frame)
        style.lay_out(figure)
        return {kind: style.save(figure, kind) for kind in kinds}
