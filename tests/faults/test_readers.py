"""Readers that open the database while a large spool is ingested: none fails, and the ingest ends.

    python -m pytest tests/faults/test_readers.py -s     EXITBENCH_READERS_S=60 EXITBENCH_LAYER_ROWS=20000000

Seven readers open the database as the library does, query it and close it, in loops; the eighth is `exitbench sql`.
Their waiting times are printed.
"""

import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from exitbench.results.database.connection import open_database
from exitbench.results.spool.attempts import AttemptWriter, scan_spool

SECONDS = float(os.environ.get("EXITBENCH_READERS_S", "60"))
LAYER_ROWS = int(os.environ.get("EXITBENCH_LAYER_ROWS", "20000000"))
SMALL_ATTEMPTS = 1500

READER = """
import sys, time
from pathlib import Path
from exitbench.results.database.connection import open_database
ends = time.monotonic() + float(sys.argv[2])
while time.monotonic() < ends:
    started = time.perf_counter()
    with open_database(Path(sys.argv[1])) as database:
        print(time.perf_counter() - started, flush=True)
        database.query("SELECT model, task, method, count(*) FROM runs GROUP BY ALL")
    time.sleep(0.05)
"""
INGESTER = """
import sys, time
from pathlib import Path
from exitbench.results.ingest.ingest import ingest
started = time.perf_counter()
report = ingest(Path(sys.argv[1]), Path(sys.argv[2]), on_wait=lambda line: print(line, file=sys.stderr))
print(time.perf_counter() - started, report.added, len(report.quarantined))
"""


def load(path: Path) -> ModuleType:
    """Import a file that is in no package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make_spool(spool: Path) -> int:
    """Write large attempts and many small ones; return their number."""
    tests = Path(__file__).parents[1]
    example = load(tests / "results" / "make_spool.py")
    load(tests / "benchmarks" / "large_database.py").make(spool, LAYER_ROWS, probes=True)
    cell = example.cell_json(example.MODELS[0], example.TASKS[0], example.FULL, "quality")
    for _ in range(SMALL_ATTEMPTS):
        with AttemptWriter(spool, cell, example.ENV) as writer:
            writer.finish("failed")
    return sum(attempt.finished for attempt in scan_spool(spool))


def start(code: str, *arguments: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_concurrent_readers_and_ingester_all_succeed(bench: Any, tmp_path: Path) -> None:
    spool, path = tmp_path / "spool", tmp_path / "exitbench.duckdb"
    attempts = make_spool(spool)
    open_database(path, read_only=False).close()
    readers = [start(READER, path, SECONDS) for _ in range(7)]
    ingester = start(INGESTER, spool, path)
    commands, ends = [], time.monotonic() + SECONDS
    while time.monotonic() < ends:
        started = time.perf_counter()
        done = bench.do("sql", "SELECT count(*) AS n FROM runs", "--database", path)
        assert done.returncode == 0, done.stderr
        commands.append(time.perf_counter() - started)
    waits = []
    for reader in readers:
        output, errors = reader.communicate()
        assert reader.returncode == 0, errors
        waits += [float(line) for line in output.splitlines()]
    output, errors = ingester.communicate(timeout=20 * SECONDS)
    assert ingester.returncode == 0, errors
    took_s, added, problems = output.split()
    print(
        f"{len(waits)} openings by 7 readers: longest {max(waits):.2f} s, 99th percentile "
        f"{np.percentile(waits, 99):.2f} s, median {np.median(waits):.3f} s; {len(commands)} sql commands, longest "
        f"{max(commands):.2f} s; {added} attempts with {LAYER_ROWS} layer rows ingested in {float(took_s):.1f} s"
    )
    assert (int(added), int(problems)) == (attempts, 0)
