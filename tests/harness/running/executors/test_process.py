"""The environment that a worker process inherits."""

import sys
from functools import partial
from pathlib import Path

import pytest

from exitbench.harness.processes.fork_server import start_command
from exitbench.harness.running.executors.process import WorkerProcess

NAMES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "CUDA_VISIBLE_DEVICES")
SAYS = f"import os; print(*(os.environ.get(name) for name in {NAMES}))"


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, "10000 None 3"),
        ({"GOMP_SPINCOUNT": "7"}, "7 None 3"),
        ({"OMP_WAIT_POLICY": "passive"}, "None passive 3"),
    ],
)
def test_worker_threads_spin_briefly_unless_the_user_sets_a_wait_policy(
    asked: dict[str, str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in asked.items():
        monkeypatch.setenv(name, value)
    with (tmp_path / "log").open("w") as log:
        start = partial(start_command, output=log.fileno(), variables={"CUDA_VISIBLE_DEVICES": "3"})
        process = WorkerProcess(lambda descriptors: start([sys.executable, "-c", SAYS], descriptors))
        while process.next_line(None) is not None:
            pass
        assert process.end() == 0
    assert (tmp_path / "log").read_text() == expected + "\n"
