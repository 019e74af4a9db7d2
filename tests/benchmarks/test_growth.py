"""Growth of decoding time with depth, vocabulary, source length and batch size, one at a time.

Starts from T5-base's decoder (12 blocks, vocabulary 32,128), 32 source tokens and batch 1; the encoder has one block.
Only times of one run on one machine are comparable.
"""

from __future__ import annotations

import statistics
from typing import Any

import pytest
from goals import Recorder
from models import GROWING_NAMES, Pair

pytestmark = pytest.mark.benchmark(disable_gc=True)

ROUNDS = 4
SOURCE_TOKENS = 32
plain = pytest.mark.parametrize("pair", GROWING_NAMES[:1], indirect=True)


@pytest.mark.parametrize("pair", GROWING_NAMES, indirect=True)
def test_depth_and_vocabulary(pair: Pair, benchmark: Any, record: Recorder) -> None:
    measure(pair, 1, SOURCE_TOKENS, benchmark, record)


@pytest.mark.parametrize("source_tokens", [128, 512, 2048])
@plain
def test_source(pair: Pair, source_tokens: int, benchmark: Any, record: Recorder) -> None:
    measure(pair, 1, source_tokens, benchmark, record)


@pytest.mark.parametrize("rows", [4, 16, 64])
@plain
def test_batch(pair: Pair, rows: int, benchmark: Any, record: Recorder) -> None:
    measure(pair, rows, SOURCE_TOKENS, benchmark, record)


def measure(pair: Pair, rows: int, source_tokens: int, benchmark: Any, record: Recorder) -> None:
    """Measure milliseconds per decode step (one token per row), without prefill."""
    decoding = pair.decoding(pair.full(), pair.prompts(rows, source_tokens))
    benchmark.pedantic(decoding.run, setup=lambda: ((decoding.prepare(),), {}), rounds=ROUNDS, warmup_rounds=1)
    steps_ms = [took_s * 1e3 / pair.shape.new_tokens for took_s in benchmark.stats.stats.data]
    median_ms = statistics.median(steps_ms)
    low, _, high = statistics.quantiles(steps_ms, n=4, method="inclusive")
    record(
        median_ms,
        "ms/step",
        note=f"{median_ms / rows:.2f} ms/token; quartiles {low:.2f} to {high:.2f} of {ROUNDS} rounds",
        ms_per_token=median_ms / rows,
        steps_ms=steps_ms,
        rows=rows,
        source_tokens=source_tokens,
        n_blocks=pair.n_blocks,
        vocab_size=pair.shape.config["vocab_size"],
    )
