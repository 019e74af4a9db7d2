"""Full depth at batch 1 against transformers' `generate`, with the same weights and greedy tokens."""

from __future__ import annotations

from typing import Any

import pytest
from goals import record
from models import BASE_NAME, CAUSAL_NAME, LARGE_NAME, REAL_NAME, SMALL_NAME, Pair
from ratios import Timed, compare

pytestmark = pytest.mark.benchmark(disable_gc=True)

GOALS = {REAL_NAME: None, SMALL_NAME: 2.5, BASE_NAME: 1.5, LARGE_NAME: None, CAUSAL_NAME: None}
NEW_TOKENS = {REAL_NAME: 32, SMALL_NAME: 48, BASE_NAME: 16, LARGE_NAME: 8, CAUSAL_NAME: 48}
"""Answer lengths. Prefill is timed too; its share grows as answers get shorter."""


@pytest.mark.parametrize("pair", GOALS, indirect=True)
def test_full_depth(pair: Pair, benchmark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Time prefill and decoding of one answer."""
    prompts, new_tokens = pair.prompts(), NEW_TOKENS[pair.label]
    inputs, decoding = pair.inputs(prompts), pair.decoding(pair.full(), prompts, new_tokens)
    (generation,) = decoding.once()
    assert [generation.token_ids] == pair.transformers(inputs, new_tokens), "what differs cannot be compared"
    engine = Timed(lambda _: decoding.once())
    comparison = compare(benchmark, Timed(lambda _: pair.transformers(inputs, new_tokens)), engine)
    tokens_per_s = new_tokens / benchmark.stats.stats.median
    record(
        benchmark,
        capsys,
        comparison.ratio,
        "x transformers",
        at_least=GOALS[pair.label],
        note=f"{tokens_per_s:.1f} tokens/s; {comparison.spread()}",
        tokens_per_s=tokens_per_s,
        **comparison.about(),
    )
