"""Start-up time of commands that only list things, run by `nox -s perf`."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from goals import Recorder


def test_help(benchmark: Any, record: Recorder) -> None:
    command = [sys.executable, "-m", "exitbench.harness.cli.main", "--help"]
    benchmark.pedantic(
        subprocess.run, (command,), {"check": True, "stdout": subprocess.DEVNULL}, rounds=10, warmup_rounds=1
    )
    record(benchmark.stats.stats.median, "s", at_most=0.3, note="exitbench --help")
