"""What was drawn before, and from what: a figure of the same rows by the same code has the same bytes, and stays."""

import contextlib
import hashlib
import json
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Final

from exitbench import reports
from exitbench.reports.frame import Frame
from exitbench.results.files.canonical import content_id, sources_sha256
from exitbench.results.files.whole_file import write_whole_file

KINDS: Final = ("svg", "pdf", "png")
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


def files_of(folder: Path, name: str, drawn_from: str) -> dict[str, Path]:
    """Return where the files of a figure lie, by kind.

    That of the page is named after what it is drawn from: who reads a page while another is written finds its own.
    """
    beside = {kind: folder / f"{name}.{kind}" for kind in KINDS}
    return {**beside, "page": folder / PAGE / f"{name}.{drawn_from[:12]}.svg"}


def remember_drawn(folder: Path, name: str, drawn_from: str) -> None:
    """Note what a figure was drawn from, and digests of its files."""
    with contextlib.suppress(OSError):  # without a note it is drawn again
        note = {"drawn_from": drawn_from, "files": _digests(folder, name, drawn_from)}
        write_whole_file(note_of(folder, name), json.dumps(note))


def is_drawn(folder: Path, name: str, drawn_from: str) -> bool:
    """Whether a figure was drawn from this and its files are as noted."""
    try:
        note = json.loads(note_of(folder, name).read_bytes())
        return bool(note["drawn_from"] == drawn_from and note["files"] == _digests(folder, name, drawn_from))
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return False


def _digests(folder: Path, name: str, drawn_from: str) -> dict[str, str]:
    files = files_of(folder, name, drawn_from)
    return {kind: hashlib.sha256(path.read_bytes()).hexdigest() for kind, path in files.items()}
