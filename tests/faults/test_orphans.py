"""`kill -9` of a command with hanging child processes: these end too, and the next command resumes."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from exitbench.results.spool.attempts import latest_status

LONG_S = 240.0
"""Time limit on a busy machine; on a quiet one the processes end within a second."""
SOON_S = 20.0

METHOD = """
import ctypes, os, sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
from exitbench.methods.max_prob import LargestProbability, MaxProb

class Hanging(LargestProbability):
    def score(self, view):
        flag = Path(os.environ["HANG_FLAG"])
        asked, where = flag.read_text() if flag.exists() else "", sys.modules["__main__"].__spec__.name
        if asked.startswith("a trial" if "conformance" in where else "a cell"):
            flag.with_suffix(".hangs").touch()
            ctypes.PyDLL(None).sleep(600) if asked.endswith("in C") else None
            while asked.endswith("in Python"):
                pass
        return super().score(view)

@dataclass(frozen=True)
class Hangs(MaxProb):
    name: ClassVar[str] = "hangs"

    def gate(self, fitted):
        return Hanging()
"""
SWEEP = """
[[sweep]]
method = "hangs"
grid = { threshold = [0.5] }
kinds = ["quality"]
"""


@pytest.fixture
def hang_flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install a plug-in that hangs while the returned file exists; the file's text says where and how."""
    known = tmp_path / "site" / "hangs-1.0.dist-info"
    known.mkdir(parents=True)
    (known / "METADATA").write_text("Metadata-Version: 2.1\nName: hangs\nVersion: 1.0\n")
    (known / "entry_points.txt").write_text("[exitbench.methods]\nhangs = hangs:Hangs\n")
    (known.parent / "hangs.py").write_text(METHOD)
    monkeypatch.setenv("PYTHONPATH", str(known.parent))
    monkeypatch.setenv("HANG_FLAG", str(tmp_path / "flag"))
    return tmp_path / "flag"


def wait_for(condition: Callable[[], object], limit_s: float = LONG_S) -> float:
    """Wait until a condition holds; return how many seconds it took."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < limit_s
        time.sleep(0.02)
    return time.monotonic() - started


def descendants(process: int) -> Iterator[int]:
    """Yield the ids of all processes that a process has started, directly or indirectly."""
    for path in Path(f"/proc/{process}/task").glob("*/children"):
        for child in map(int, path.read_text().split()):
            yield child
            yield from descendants(child)


def lives(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def kill_and_wait(running: "subprocess.Popen[str]") -> float:
    """Kill a command, but no process that it started; return how many seconds these outlive it."""
    started = list(descendants(running.pid))
    assert started
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    return wait_for(lambda: not any(map(lives, started)), SOON_S)


@pytest.mark.parametrize("how", ["a trial in Python", "a trial in C", "a cell in Python", "a cell in C"])
def test_hanging_child_ends_with_its_killed_run_and_the_next_run_finishes_the_cell(
    bench: Any, hang_flag: Path, how: str, tmp_path: Path
) -> None:
    suite = bench.suite.with_name("hanging.toml")
    suite.write_text(bench.suite.read_text().partition("[[sweep]]")[0] + SWEEP)
    runs, flag_hangs = tmp_path / "runs", hang_flag.with_suffix(".hangs")
    run = bench.command("run", suite, "--data-dir", suite.parent, "--runs", runs)
    hang_flag.write_text(how)
    with bench.start(run) as running:
        wait_for(lambda: flag_hangs.exists() or running.poll() is not None)
        assert running.poll() is None, running.communicate()
        outlived_s = kill_and_wait(running)
    hang_flag.unlink()
    again = bench.end(run)
    assert again.returncode == 0, again.stderr
    assert "waiting for" not in again.stderr
    assert {status.status for status in latest_status(runs / "spool").values()} == {"ok"}
    print(f"{how}: outlived its run by {outlived_s:.2f} s")


def test_training_processes_end_with_their_killed_command(bench: Any, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    with bench.start(bench.command("train", "builtin", "--runs", runs, "--threads", "2")) as running:
        wait_for(lambda: len(list((runs / "models").glob(".*.partial"))) >= 2 or running.poll() is not None)
        assert running.poll() is None, running.communicate()
        print(f"trainings outlived their command by {kill_and_wait(running):.2f} s")
