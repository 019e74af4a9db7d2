"""Ctrl-C at random moments of a query: the exit code is 130 or 0, and no error is printed.

    python -m pytest tests/faults/test_interrupts.py -s     EXITBENCH_INTERRUPTS=200 EXITBENCH_SEED=1

Interrupts begin when the command line is called. Before that, Python's own start ends with 130 and a traceback.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from exitbench.results.database.connection import open_database

INTERRUPTS = int(os.environ.get("EXITBENCH_INTERRUPTS", "40"))
SEED = int(os.environ.get("EXITBENCH_SEED", "1"))
QUERY = "SELECT count(*) AS n FROM range(4000) AS a, range(4000) AS b WHERE a.range * b.range % 1000003 = 1"
CALLED = """
import os, sys
from exitbench.harness.cli.main import console
os.write(2, b"called\\n")
console()
"""


def start(folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", CALLED, "sql", "--database", "x.duckdb", QUERY, *arguments]
    asked = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert asked.stderr is not None and asked.stderr.readline() == "called\n"
    return asked


@pytest.mark.parametrize("out", [(), ("--out", "rows.csv", "--force")], ids=["to the screen", "to a file"])
def test_ctrl_c_at_any_moment_ends_a_query_without_error_output(
    bench: Any, out: tuple[str, ...], tmp_path: Path
) -> None:
    open_database(tmp_path / "x.duckdb", read_only=False).close()
    started = time.monotonic()
    start(tmp_path, *out).communicate()
    life_s = time.monotonic() - started
    rng, codes, longest_s = random.Random(SEED), Counter[int](), 0.0
    for _ in range(INTERRUPTS // 2):
        with start(tmp_path, *out) as asked:
            time.sleep(rng.uniform(0, life_s))
            asked.send_signal(signal.SIGINT)
            interrupted = time.monotonic()
            _, errors = asked.communicate()
        longest_s = max(longest_s, time.monotonic() - interrupted)
        assert asked.returncode in (0, 130), errors
        assert "Traceback" not in errors and (asked.returncode == 0 or errors == "")
        codes[asked.returncode] += 1
        left = {path.name for path in tmp_path.iterdir() if not path.name.startswith(".exitbench")}
        assert {name for name in left if "rows" in name} <= {"rows.csv"}
    print(f"seed {SEED}: exit codes {dict(codes)} within {longest_s:.1f} s of the interrupt, life {life_s:.1f} s")
