"""Start-up time of commands that only list things, run by `nox -s perf`."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from goals import record


def test_help(benchmark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, "-m", "exitbench.harness.cli.main", "--help"]
    benchmark.pedantic(
        subprocess.run, (command,), {"check": True, "stdout": subprocess.DEVNULL}, rounds=10, warmup_rounds=1
    )
    record(benchmark, capsys, benchmark.stats.stats.median, "s", at_most=0.3, note="exitbench --help")
