"""The number of threads of a run, and the message if other processes leave it fewer cores."""

from types import SimpleNamespace
from typing import Any

import pytest

from exitbench.harness.service import running


@pytest.mark.parametrize(
    ("free", "device", "executor", "cells", "threads", "message"),
    [
        (4, "cpu", "local", 3, 4, ""),
        (1, "cpu", "local", 3, 1, "1 thread of torch instead of 4"),
        (2, "cpu", "local", 3, 2, "2 threads of torch instead of 4"),
        (2, "cuda", "local", 3, 2, ""),  # of several GPUs' workers each has a share
        (2, "cpu", "slurm", 3, 2, ""),
        (2, "cpu", "local", 0, 1, ""),  # nothing runs: nothing is looked at
    ],
)
def test_threads_are_limited_to_free_cores_and_a_reduction_is_reported(
    free: int,
    device: str,
    executor: str,
    cells: int,
    threads: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(running, "available_cores", lambda: 4)
    plan: Any = SimpleNamespace(device=device, to_run_count=lambda retry: cells)
    local: Any = SimpleNamespace(threads=free)
    options: Any = SimpleNamespace(executor=executor, retry="failed")
    assert running._free_threads(plan, local, options) == threads
    output = "".join(capsys.readouterr())
    assert message in output if message else not output
