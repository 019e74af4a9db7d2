"""Sweeps of many thresholds over a large probe, run by `nox -s perf`; not part of the test suite.

The goal is in seconds, unlike the engine's ratios, because a user waits for a figure. The probe is random, and read
from Parquet each time, as in a replay.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from typing import Any

import duckdb
import numpy as np
import pytest
from goals import Recorder

from exitbench.results.analysis.replay import sweep, thresholds_by_position

TOKENS, POSITIONS, BLOCKS, THRESHOLDS, THREADS = 1_000_000, 50, 12, 1_000, 2
GOAL_S = 10.0
SIZE = f"{TOKENS} tokens x {THRESHOLDS} thresholds"
GATES = {
    "margin": "p1[l] - p2[l]",
    "max-prob": "p1[l]",
    "inverse-perplexity": "exp(-entropy[l])",
    "cosine": "cosine_previous[l]",
    "classifier": "scores[l]",
    "top-3": "CASE WHEN l >= 3 AND p1[l-2] < p1[l-1] AND p1[l-1] < p1[l] THEN p1[l] ELSE 0 END",
}
SIGNALS = {
    "top1_id": "CASE WHEN random() < {l} / 12 THEN 7 ELSE 3 END::INTEGER",
    "p1": "(0.3 + 0.7 * (1 - (1 - {l} / 12) * random()))::FLOAT",
    "p2": "(0.3 * random())::FLOAT",
    "entropy": "(4 * random() * (1 - {l} / 13))::FLOAT",
    "cosine_previous": "(1 - random() / {l})::FLOAT",
    "scores": "random()::FLOAT",
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("probe") / "probe.parquet"
    lists = ", ".join(
        f"[{', '.join(signal.format(l=block) for block in range(1, BLOCKS + 1))}] AS {name}"
        for name, signal in SIGNALS.items()
    )
    with duckdb.connect() as connection:
        connection.execute(
            f"""
            COPY (
                SELECT (i // {POSITIONS})::VARCHAR AS doc_key, (i % {POSITIONS} + 1)::SMALLINT AS position,
                       7::INTEGER AS full_token_id, {lists}
                FROM range({TOKENS}) AS tokens(i)
            ) TO '{path}'
            """
        )
    return f"read_parquet('{path}')"


def sweep_seconds(source: str, gate: str, decayed: bool = False) -> float:
    """Return the seconds of replaying one gate at all thresholds."""
    levels = np.linspace(0, 1, THRESHOLDS).tolist()
    started = time.perf_counter()
    with duckdb.connect(config={"threads": THREADS}) as connection:
        rule = "0.9 * {level!r} + 0.1 * {level!r} * exp(-4.0 * position / {positions})" if decayed else "{level!r}"
        rules = [rule.format(level=level, positions=POSITIONS) for level in levels]
        thresholds = thresholds_by_position(connection, rules, POSITIONS)
        result = sweep(connection, source, GATES[gate], "top1_id[l]", range(1, BLOCKS), BLOCKS, thresholds)
    took_s = time.perf_counter() - started
    assert len(result.mean_exit_layer) == THRESHOLDS
    assert (np.diff(result.mean_exit_layer) >= 0).all()
    return took_s


def test_all_gates(source: str, benchmark: Any, record: Recorder) -> None:
    """Time sweeps of every gate with constant thresholds, and of the margin with decaying ones; the sum has a goal."""
    took_s: dict[str, list[float]] = defaultdict(list)

    def all_gates() -> None:
        for gate in GATES:
            took_s[gate].append(sweep_seconds(source, gate))
        took_s["margin, decayed"].append(sweep_seconds(source, "margin", decayed=True))

    benchmark.pedantic(all_gates, rounds=3)
    gate_s = {gate: statistics.median(seconds) for gate, seconds in took_s.items()}
    note = "; ".join([SIZE, *(f"{gate} {seconds:.2f}" for gate, seconds in gate_s.items())])
    record(benchmark.stats.stats.median, "s", at_most=GOAL_S, note=note, gate_s=gate_s)
