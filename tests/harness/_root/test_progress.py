"""Progress that a user sees while cells run, on a terminal and in a log."""

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

from exitbench.progress import MAX_BARS, Bars, Expected, Lines, Progress, TimeLeft

TWO_CELLS = {"one/quality": Expected("quality"), "two/quality": Expected("quality")}


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
    """Yield a terminal of 100 columns, and a list that has its text without colours once it is closed."""
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


def test_terminal_shows_cell_and_document_progress_and_keeps_failure_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")  # one that cannot move its cursor is shown the end only
    with terminal() as (stream, shown):
        run_two_cells(Bars(TWO_CELLS, stream))
    assert "one/quality: failed\r\n" in shown[0]
    assert re.search(r"two/quality .* 43% .*3/7 ", shown[0])
    assert re.search(r"cells .*100% .*2/2 ", shown[0])


def test_terminal_limits_the_number_of_bars_for_concurrent_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    labels = [f"cell-{number}" for number in range(MAX_BARS + 1)]
    with terminal() as (stream, shown), Bars(dict.fromkeys(labels, Expected()), stream) as progress:
        for label in labels:
            progress.start(label, 4)
            progress.documents_done(label, 3)
        for label in labels:
            progress.end(label, "ok")
    assert all(re.search(rf"{label} .* 75% ", shown[0]) for label in labels[:-1]) and labels[-1] not in shown[0]
    assert f"{len(labels)}/{len(labels)} " in shown[0]


def test_cell_that_ended_without_a_start_is_logged_without_a_duration(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log, Lines({"one/quality": Expected()}, log) as progress:
        progress.end("one/quality", "ok")
    assert (tmp_path / "log").read_text() == "[1/1] one/quality: ok\n"


def test_log_has_one_line_per_cell(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log:
        run_two_cells(Lines(TWO_CELLS, log))
    first, second = (tmp_path / "log").read_text().splitlines()
    assert first.startswith("[1/2] one/quality (5 documents): failed, ")
    assert second.startswith("[2/2] two/quality (7 documents): ok, ")


def test_log_periodically_reports_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr("exitbench.progress.time.monotonic", lambda: now_s)
    output = io.StringIO()
    with Lines({f"cell-{number}": Expected("quality") for number in range(5)}, output) as progress:
        for number in range(5):
            progress.start(f"cell-{number}", 1)
            now_s += 14.0
            progress.end(f"cell-{number}", "ok")
    assert [line for line in output.getvalue().splitlines() if "left" in line] == [
        "3 of 5 done, 2 left: about 28 s",
    ]


def test_log_reports_a_long_training_from_the_step_at_which_it_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr("exitbench.progress.time.monotonic", lambda: now_s)
    output = io.StringIO()
    with Lines({"recipe": Expected()}, output, "step") as progress:
        for _ in range(4):  # the training process still imports
            progress.documents_done("recipe", 0)
            now_s += 20.0
        progress.start("recipe", 300)
        for step in range(144, 150):
            progress.documents_done("recipe", step)
            now_s += 20.0
        progress.end("recipe", "ok")
    assert output.getvalue().splitlines() == [
        "recipe: 145 of 300 steps done, about 52 min left",
        "recipe: 147 of 300 steps done, about 51 min left",
        "recipe: 149 of 300 steps done, about 50 min left",
        "[1/1] recipe (300 steps): ok, 120.0 s",
    ]


@pytest.fixture
def started_at_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("exitbench.progress.time.monotonic", lambda: 0.0)


@pytest.mark.usefixtures("started_at_zero")
def test_time_left_uses_the_mean_duration_of_each_cell_kind() -> None:
    timings = {f"timing-{number}": Expected("timing") for number in range(4)}
    replays = {f"replay-{number}": Expected("replay") for number in range(4)}
    time_left = TimeLeft({**timings, **replays})
    assert time_left.seconds(0.0) is None
    for number in range(2):
        time_left.end(f"timing-{number}", 60.0)
        time_left.end(f"replay-{number}", 1.0)
    assert time_left.seconds(122.0) == pytest.approx(2 * 60 + 2 * 1)


@pytest.mark.usefixtures("started_at_zero")
def test_time_left_scales_estimates_by_actual_durations_and_by_concurrency() -> None:
    time_left = TimeLeft({"a": Expected("quality", 10.0), "b": Expected("quality", 30.0), "c": Expected("fit", 5.0)})
    time_left.end("a", 20.0)  # twice as long as expected, like all kinds of which none has ended
    assert time_left.seconds(20.0) == pytest.approx(2 * 30 + 2 * 5)
    time_left.end("b", 60.0)
    assert time_left.seconds(40.0) == pytest.approx(2 * 5 / 2), "80 seconds of cells in 40: two side by side"
    time_left.end("c", 10.0)
    assert time_left.seconds(50.0) == 0


def test_a_terminal_shows_the_time_left_of_all_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("exitbench.progress.TimeLeft.seconds", lambda self, now_s: 3725.0)
    with terminal() as (stream, shown), Bars(TWO_CELLS, stream) as progress:
        progress.start("one/quality", 5)
        progress.end("one/quality", "ok")
    assert re.search(r"cells .*1/2 .*1:02:05", shown[0])
