"""Figures are drawn by worker processes and by the process that reads the database, each figure once."""

import gc
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from exitbench.reports import drawing, figures
from exitbench.reports.drawing import Drawing, Drawings
from exitbench.reports.frame import Frame
from exitbench.reports.registry import discover

FRAME = Frame(("a",), ({"a": 1},))


class BusyPool:
    """Process pool that draws the first figure and never begins another."""

    def __init__(self, processes: int, *_: Any) -> None:
        self.processes, self.begun = processes, 0

    def submit(self, draw: Callable[..., Drawing], *arguments: Any) -> "Future[Drawing]":
        future: Future[Drawing] = Future()
        if not self.begun:
            future.set_running_or_notify_cancel()
            future.set_result(draw(*arguments))
        self.begun += 1
        return future

    def shutdown(self, cancel_futures: bool) -> None:
        assert self.processes == 1 and cancel_futures


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which the name of each figure is added when this process draws it."""
    names: list[str] = []

    def draw(name: str, *_: Any) -> Drawing:
        names.append(name)
        return Drawing(name, error="noted")

    monkeypatch.setattr(drawing, "draw", draw)
    return names


@pytest.mark.parametrize("workers", [1, 2])
def test_figures_not_started_by_workers_are_drawn_once_by_this_process(
    workers: int, drawn: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drawing, "ProcessPoolExecutor", BusyPool)
    sources = discover(figures)[:4]
    with Drawings(tmp_path, workers) as drawings:
        for source in sources:
            drawings.add(source, FRAME)
        assert drawn == ([] if workers == 1 else [sources[0].name])
        finished = drawings.finish()
    assert [figure.source for figure in finished] == list(sources)
    assert {figure.error for figure in finished} == {"noted"}
    assert sorted(drawn) == sorted(source.name for source in sources), "each once"


def test_garbage_collection_threshold_is_raised_only_while_drawing(tmp_path: Path) -> None:
    before = gc.get_threshold()
    with Drawings(tmp_path, 1):
        assert gc.get_threshold()[0] > before[0]
    assert gc.get_threshold() == before


PARENT = """
import sys, time
from pathlib import Path
from exitbench.reports import figures
from exitbench.reports.drawing import Drawings
from exitbench.reports.frame import Frame
from exitbench.reports.registry import discover

if __name__ == "__main__":
    with Drawings(Path(sys.argv[1]), 2) as drawings:
        for source in discover(figures)[:2]:
            drawings.add(source, Frame(("a",), ({"a": 1},)))
        drawings._pool.submit(int).result()
        print(*drawings._pool._processes, flush=True)
        time.sleep(600)
"""


def test_drawing_workers_exit_when_the_report_process_is_killed(tmp_path: Path) -> None:
    (tmp_path / "parent.py").write_text(PARENT)
    command = [sys.executable, tmp_path / "parent.py", tmp_path / "figures"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as report:
        assert report.stdout is not None
        (worker,) = map(int, report.stdout.readline().split())
        os.kill(worker, 0)
        report.kill()
    deadline = time.monotonic() + 60
    while _is_running(worker):
        assert time.monotonic() < deadline, "it draws on, for nobody"
        time.sleep(0.02)


def _is_running(process: int) -> bool:
    try:
        return "(zombie)" not in Path(f"/proc/{process}/status").read_text()
    except FileNotFoundError:
        return False
