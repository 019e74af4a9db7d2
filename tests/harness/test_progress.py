"""What a person sees while cells run: on a terminal, and in a log."""

import contextlib
import fcntl
import os
import pty
import struct
import termios
from pathlib import Path

from exitbench.harness.progress import Bars, Lines, Progress


def run_two_cells(progress: Progress) -> None:
    with progress:
        progress.start("one/quality", 5)
        progress.documents_done("one/quality", 5)
        progress.end("one/quality", "failed")
        progress.start("two/quality", 7)
        progress.documents_done("two/quality", 3)
        progress.end("two/quality", "ok")


def everything(parent: int) -> str:
    """What was written to a terminal that is closed by now; one read may give a part of it."""
    pieces = []
    with contextlib.suppress(OSError):  # Linux's end of file
        while piece := os.read(parent, 65_536):
            pieces.append(piece)
    return b"".join(pieces).decode()


def test_a_terminal_shows_cells_and_documents_and_keeps_what_went_wrong() -> None:
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    with os.fdopen(child, "w") as terminal:
        run_two_cells(Bars(2, terminal))
    shown = everything(parent)
    os.close(parent)
    assert "one/quality: failed\r\n" in shown
    assert "two/quality:  43%" in shown and "3/7 [" in shown
    assert "cells: 100%" in shown and "2/2 [" in shown


def test_a_log_gets_one_line_a_cell(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log:
        run_two_cells(Lines(2, log))
    first, second = (tmp_path / "log").read_text().splitlines()
    assert first.startswith("[1/2] one/quality (5 documents): failed, ")
    assert second.startswith("[2/2] two/quality (7 documents): ok, ")
