"""What was drawn before, and from what: a figure of the same rows by the same code has the same bytes, and stays."""

import contextlib
import hashlib
import json
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Final

from exitbench import reports
from exitbench.reports.frame import Frame
from exitbench.results.files.atomic import write_whole_file
from exitbench.results.files.formats import content_id, sources_sha256

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
