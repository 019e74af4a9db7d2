"""What a person sees while cells run: on a terminal, and in a log."""

import contextlib
import fcntl
import os
import pty
import struct
import termios
from pathlib import Path

from exitbench.harness.running.progress import MAX_BARS, Bars, Lines, Progress


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


def test_a_terminal_shows_a_bar_for_each_of_the_first_cells_that_run_at_once() -> None:
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    labels = [f"cell-{number}" for number in range(MAX_BARS + 1)]
    with os.fdopen(child, "w") as terminal, Bars(len(labels), terminal) as progress:
        for label in labels:
            progress.start(label, 4)
            progress.documents_done(label, 3)
        for label in labels:
            progress.end(label, "ok")
    shown = everything(parent)
    os.close(parent)
    assert all(f"{label}:  75%" in shown for label in labels[:-1]) and labels[-1] not in shown
    assert f"{len(labels)}/{len(labels)} [" in shown


def test_a_cell_that_ended_elsewhere_has_a_line_without_time(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log, Lines(1, log) as progress:
        progress.end("one/quality", "ok")
    assert (tmp_path / "log").read_text() == "[1/1] one/quality: ok\n"


def test_a_log_gets_one_line_a_cell(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log:
        run_two_cells(Lines(2, log))
    first, second = (tmp_path / "log").read_text().splitlines()
    assert first.startswith("[1/2] one/quality (5 documents): failed, ")
    assert second.startswith("[2/2] two/quality (7 documents): ok, ")
