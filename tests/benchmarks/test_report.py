"""Queries of a report on a database of two million per-layer rows, run by `nox -s perf`.

The goals are for 100 million rows, which `nox -s scale` builds and times. A query that misses its goal here misses it
there too.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import large_database
import pytest
from goals import Recorder
from large_database import seconds

from exitbench.harness.running.environment import available_cores
from exitbench.reports import figures, tables
from exitbench.reports.frame import computed_once
from exitbench.reports.registry import discover
from exitbench.reports.render import write_report
from exitbench.results.database.connection import open_database
from exitbench.results.ingest.ingest import ingest

LAYER_ROWS = 2_400_000
QUERY_GOAL_S, REPORT_GOAL_S = 1.0, 60.0


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a database with probes and the runs compared with them."""
    folder = tmp_path_factory.mktemp("report")
    for probes in (True, False):
        large_database.make(folder / "spool", LAYER_ROWS, probes=probes)
    ingest(folder / "spool", folder / "exitbench.duckdb")
    return folder / "exitbench.duckdb"


def test_queries(database: Path, benchmark: Any, record: Recorder) -> None:
    """Time the queries of all figures and tables; the goal is for each."""
    sources = (*discover(figures), *discover(tables))

    def ask() -> dict[str, float]:
        with open_database(database) as opened, computed_once(opened, ("probe_by_document",)):
            return {source.name: seconds(lambda sql=source.sql: opened.query(sql)) for source in sources}

    took_s = benchmark.pedantic(ask, rounds=3, warmup_rounds=1)
    slowest = max(took_s, key=lambda name: took_s[name])
    note = f"{slowest}, the slowest of {len(sources)} queries"
    record(took_s[slowest], "s", at_most=QUERY_GOAL_S, note=note, layer_rows=LAYER_ROWS)


def test_whole_report(database: Path, benchmark: Any, record: Recorder) -> None:
    folders = (database.parent / f"report-{number}" for number in itertools.count())
    workers = available_cores()
    write = lambda: write_report(database, next(folders), workers=workers)  # noqa: E731
    written = benchmark.pedantic(write, rounds=1)
    assert written.index_html.exists() and not written.broken
    note = f"drawn by {workers} processes"
    record(benchmark.stats.stats.median, "s", at_most=REPORT_GOAL_S, note=note, layer_rows=LAYER_ROWS)
