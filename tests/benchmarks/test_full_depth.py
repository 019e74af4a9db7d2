"""Full depth at batch 1 against transformers' `generate`, with the same weights and greedy tokens."""

from __future__ import annotations

from typing import Any

import pytest
from goals import Recorder
from models import BASE_NAME, CAUSAL_NAME, LARGE_NAME, REAL_NAME, SMALL_NAME, Pair
from ratios import BUDGET_S, Timed, compare

from exitbench.harness.engine.checkpoints.loading import Checkpoint

pytestmark = pytest.mark.benchmark(disable_gc=True)

GOALS = {REAL_NAME: None, SMALL_NAME: 2.5, BASE_NAME: 1.5, LARGE_NAME: None, CAUSAL_NAME: None}
NEW_TOKENS = {REAL_NAME: 32, SMALL_NAME: 48, BASE_NAME: 16, LARGE_NAME: 8, CAUSAL_NAME: 48}
"""Answer lengths. Prefill is timed too; its share grows as answers get shorter."""


@pytest.mark.parametrize("pair", GOALS, indirect=True)
def test_full_depth(pair: Pair, benchmark: Any, record: Recorder) -> None:
    """Time prefill and decoding of one answer."""
    against_generate(pair, pair.prompts(), NEW_TOKENS[pair.label], benchmark, record, GOALS[pair.label])


def against_generate(
    pair: Pair,
    prompts: list[list[int]],
    new_tokens: int,
    benchmark: Any,
    record: Recorder,
    goal: float | None = None,
    checkpoint: Checkpoint | None = None,
    budget_s: float = BUDGET_S,
) -> None:
    """Time full depth of some prompts, prefill included, against `generate`; the greedy tokens are equal."""
    inputs, decoding = pair.inputs(prompts), pair.decoding(pair.full(), prompts, new_tokens, checkpoint)
    answers = [answer.token_ids for answer in decoding.once()]
    assert answers == pair.transformers(inputs, new_tokens), "what differs cannot be compared"
    reference, engine = Timed(lambda _: pair.transformers(inputs, new_tokens)), Timed(lambda _: decoding.once())
    comparison = compare(benchmark, reference, engine, budget_s)
    tokens_per_s = len(prompts) * new_tokens / benchmark.stats.stats.median
    note = f"{tokens_per_s:.1f} tokens/s"
    record(comparison, "x transformers", at_least=goal, note=note, tokens_per_s=tokens_per_s)
