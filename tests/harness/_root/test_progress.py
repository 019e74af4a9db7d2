"""What a person sees while cells run: on a terminal, and in a log."""

import contextlib
import fcntl
import io
import os
import pty
import re
import struct
import termios
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import TextIO

import pytest

from exitbench.progress import MAX_BARS, Bars, Lines, Progress


def run_two_cells(progress: Progress) -> None:
    with progress:
        progress.start("one/quality", 5)
        progress.documents_done("one/quality", 5)
        progress.end("one/quality", "failed")
        progress.start("two/quality", 7)
        progress.documents_done("two/quality", 3)
        progress.end("two/quality", "ok")


@contextlib.contextmanager
def terminal() -> Iterator[tuple[TextIO, list[str]]]:
    """A terminal of 100 columns, and what it has shown once it is closed, without colours."""
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    pieces, shown = [], []

    def read() -> None:  # meanwhile: a terminal takes a few thousand bytes ahead
        with contextlib.suppress(OSError):  # Linux's end of file
            while piece := os.read(parent, 65_536):
                pieces.append(piece)

    reader = Thread(target=read)
    reader.start()
    with os.fdopen(child, "w") as stream:
        yield stream, shown
    reader.join()
    os.close(parent)
    shown.append(re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", b"".join(pieces).decode()))


def test_a_terminal_shows_cells_and_documents_and_keeps_what_went_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")  # one that cannot move its cursor is shown the end only
    with terminal() as (stream, shown):
        run_two_cells(Bars(2, stream))
    assert "one/quality: failed\r\n" in shown[0]
    assert re.search(r"two/quality .* 43% .*3/7 ", shown[0])
    assert re.search(r"cells .*100% .*2/2 ", shown[0])


def test_a_terminal_shows_a_bar_for_each_of_the_first_cells_that_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    labels = [f"cell-{number}" for number in range(MAX_BARS + 1)]
    with terminal() as (stream, shown), Bars(len(labels), stream) as progress:
        for label in labels:
            progress.start(label, 4)
            progress.documents_done(label, 3)
        for label in labels:
            progress.end(label, "ok")
    assert all(re.search(rf"{label} .* 75% ", shown[0]) for label in labels[:-1]) and labels[-1] not in shown[0]
    assert f"{len(labels)}/{len(labels)} " in shown[0]


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


def test_a_log_is_told_now_and_then_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 10.0, 20.0, 40.0, 50.0, 60.0])
    monkeypatch.setattr("exitbench.progress.time.monotonic", lambda: next(clock))
    shown = io.StringIO()
    with Lines(5, shown) as progress:
        for number in range(5):
            progress.end(f"cell-{number}", "ok")
    left = [line for line in shown.getvalue().splitlines() if "left" in line]
    assert left == [
        "3 of 5 done, 2 left: about 27 s if they are like these",
    ]
