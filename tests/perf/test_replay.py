"""How long sweeps of many thresholds take over a large probe, run by `nox -s perf`; no part of the test suite.

Seconds, unlike the ratios of the engine: the goal is that somebody waits for a figure. The probe is random, and read
from Parquet each time, as a replay reads it.
"""

from __future__ import annotations

from typing import Any

import duckdb
import numpy as np
import pytest
from goals import record

from exitbench.results.replay import sweep, thresholds_by_position

TOKENS, POSITIONS, BLOCKS, THRESHOLDS, THREADS = 1_000_000, 50, 12, 1_000, 2
TOGETHER_S = 10.0
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


def measure(
    source: str, gate: str, benchmark: Any, capsys: Any, decayed: bool = False, documents: bool = False
) -> None:
    levels = np.linspace(0, 1, THRESHOLDS).tolist()
    with duckdb.connect(config={"threads": THREADS}) as connection:

        def swept() -> np.ndarray:
            rules = [f"0.9 * {level!r} + 0.1 * {level!r} * exp(-4.0 * position / {POSITIONS})" for level in levels]
            thresholds = thresholds_by_position(connection, rules, POSITIONS) if decayed else levels
            asked = range(1, BLOCKS)
            return sweep(
                connection, source, GATES[gate], "top1_id[l]", asked, BLOCKS, thresholds, documents
            ).mean_exit_layer

        depth = benchmark.pedantic(swept, rounds=3)
    assert len(depth) == THRESHOLDS
    assert (np.diff(depth) >= 0).all()
    together = {} if documents else {"at_most_together": TOGETHER_S}
    note = f"{TOKENS} tokens x {THRESHOLDS} thresholds" + ("" if documents else f"; all gates within {TOGETHER_S:g} s")
    record(benchmark, capsys, benchmark.stats.stats.median, "s", note=note, **together)


@pytest.mark.parametrize("gate", GATES)
def test_constant_thresholds(source: str, gate: str, benchmark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: all gates, and the decayed margin, within 10 s on two cores."""
    measure(source, gate, benchmark, capsys)


def test_decayed_thresholds(source: str, benchmark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A threshold for every position: counts into the goal."""
    measure(source, "margin", benchmark, capsys, decayed=True)


def test_documents_apart(source: str, benchmark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Sums of every document, for intervals; no goal."""
    measure(source, "margin", benchmark, capsys, documents=True)
