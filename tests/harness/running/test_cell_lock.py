"""Two runs with one spool share the work. Neither runs a cell that the other is running or has just finished."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Thread
from types import ModuleType

import pytest

from exitbench.harness.cells.job import CellJob
from exitbench.harness.planning.plan import make_plan
from exitbench.harness.planning.suite import load_suite
from exitbench.harness.processes.locks import locked
from exitbench.harness.running.cell_lock import attempts_since, hold, outcome
from exitbench.results.spool.attempts import AttemptWriter, read_attempt, scan_spool
from exitbench.results.spool.schema import ENV_KEYS

ENV = {section: dict.fromkeys(keys) for section, keys in ENV_KEYS.items() if section}
LONG_S = 300.0
"""Longer than anything takes on a busy machine."""
SWEEP = """\
[[sweep]]
method = "static"
grid = { exit_layer = [1] }
kinds = ["quality"]
[[sweep]]
method = "calm-softmax"
query = { threshold = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5] }
kinds = ["quality"]
"""


@pytest.fixture
def item(write_suite: Callable[..., Path], data_dir: Path, tmp_path: Path) -> CellJob:
    """Return a cell that has not been run."""
    plan = make_plan(load_suite(write_suite(SWEEP)), tmp_path / "spool", tmp_path / "models", data_dir)
    return plan.groups[0].cells[0].item


def attempt(spool: Path, item: CellJob, status: str) -> str:
    with AttemptWriter(spool, item.cell.to_json(), ENV) as writer:
        writer.finish(status)
    return writer.attempt_id


def test_cell_lock_is_exclusive_and_released_on_exit(tmp_path: Path) -> None:
    with hold(tmp_path, "a", wait=False) as first, hold(tmp_path, "a", wait=False) as second:
        assert (first, second) == (True, False)
    with hold(tmp_path, "a", wait=False) as again:
        assert again
    assert list((tmp_path / "locks").iterdir()) == []


HOLDER = """\
import sys, time
from pathlib import Path
from exitbench.harness.processes.locks import locked
with locked(Path(sys.argv[1]), wait=True):
    print("held", flush=True)
    time.sleep(600)
"""


def test_lock_of_a_killed_process_is_released(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    with locked(path, wait=False) as held:
        assert not held
    holder.kill()
    with holder, locked(path, wait=True) as held:
        assert held


def test_waiting_thread_gets_the_lock_and_holds_it_exclusively(tmp_path: Path) -> None:
    held, done = Event(), Event()

    def wait() -> None:
        with locked(tmp_path / "lock", wait=True):
            held.set()
            done.wait(LONG_S)

    waiter = Thread(target=wait)
    with locked(tmp_path / "lock", wait=True):
        waiter.start()
        time.sleep(0.2)
        assert not held.is_set()
    assert held.wait(LONG_S)
    with locked(tmp_path / "lock", wait=False) as later:
        assert not later
    done.set()
    waiter.join()


def test_outcome_ignores_attempts_already_known_to_the_plan(item: CellJob, tmp_path: Path) -> None:
    assert outcome(tmp_path, item) is None
    known = attempt(tmp_path, item, "ok")
    assert outcome(tmp_path, item) == "ok"
    planned = CellJob(item.cell, item.label, item.data, seen=known)
    assert outcome(tmp_path, planned) is None
    assert attempts_since(tmp_path, planned) == []
    attempt(tmp_path, item, "failed")
    assert outcome(tmp_path, planned) == "failed"


def test_interrupted_attempt_is_no_outcome(item: CellJob, tmp_path: Path) -> None:
    attempt(tmp_path, item, "interrupted")
    assert outcome(tmp_path, item) is None
    assert len(attempts_since(tmp_path, item)) == 1


def test_two_concurrent_runs_run_every_cell_once(
    write_suite: Callable[..., Path],
    checkpoint: Path,
    worded_model: Path,
    data_dir: Path,
    snippets: ModuleType,
    tmp_path: Path,
) -> None:
    suite = write_suite(SWEEP)
    suite.write_text(suite.read_text().replace(str(checkpoint), str(worded_model)))
    command = ("run", str(suite), "--data-dir", str(data_dir), "--runs", str(tmp_path / "runs"))
    command += ("--threads", "1", "--no-report")
    with ThreadPoolExecutor() as threads:
        runs = [threads.submit(snippets.run_installed, tmp_path, tmp_path, *command) for _ in range(2)]
    for run in runs:
        code, printed, error = run.result()
        assert code == 0, error
        assert sum(": ok" in line for line in (printed + error).splitlines()) == 8
    attempts = [read_attempt(result.path) for result in scan_spool(tmp_path / "runs" / "spool")]
    assert len({record.attempt.cell_id for record in attempts}) == len(attempts) == 8
    assert {record.status["status"] for record in attempts} == {"ok"}
