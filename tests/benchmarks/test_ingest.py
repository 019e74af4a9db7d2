"""Ingest rate of per-layer rows, run by `nox -s perf`.

The data are synthetic, as in `nox -s scale` (large_database.py), but fewer.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import large_database
import pytest
from goals import Recorder

from exitbench.harness.running.environment import available_cores
from exitbench.results.database.connection import open_database
from exitbench.results.ingest.ingest import ingest

LAYER_ROWS = 4_800_000
GOAL = 5.0


@pytest.fixture(scope="module")
def spool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a spool with probes only."""
    spool = tmp_path_factory.mktemp("probes") / "spool"
    large_database.make(spool, LAYER_ROWS, probes=True)
    return spool


def test_rows_by_layer(spool: Path, benchmark: Any, record: Recorder) -> None:
    """Measure rows per second; the goal is for two cores. Creation of the empty database is excluded."""
    paths = (spool.parent / f"{number}.duckdb" for number in itertools.count())

    def empty() -> tuple[tuple[Path, Path], dict[str, Any]]:
        path = next(paths)
        open_database(path, read_only=False).close()
        return (spool, path), {}

    benchmark.pedantic(ingest, setup=empty, rounds=3, warmup_rounds=1)
    with open_database(spool.parent / "0.duckdb") as database:
        (rows,) = database.query("SELECT sum(len(p1))::BIGINT AS n FROM probe_token")["n"].to_pylist()
    assert rows >= 0.99 * LAYER_ROWS
    rate = rows / benchmark.stats.stats.median
    note = f"{rows} rows on {available_cores()} core(s)"
    record(rate / 1e6, "million rows/s", at_least=GOAL, note=note, rows_per_s=rate)
