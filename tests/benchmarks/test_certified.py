"""Certified heads: speed of gates relative to full depth, and of gates and full depth relative to the exact head.

Weights are random. Thresholds are outside the range of scores, so that bounds always suffice to decide;
`tests/parity/certified.py` counts how often they do not on trained models.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from goals import Recorder
from ideals import ideal_over_full
from models import BASE_NAME, LARGE_NAME, PROMPT_TOKENS, REAL_NAME, Pair
from ratios import compare

from exitbench.methods.base import Parts
from exitbench.methods.thresholds import PerBlock

pytestmark = pytest.mark.benchmark(disable_gc=True)

KEPT_GOAL = 0.75
METHODS = ("calm-softmax", "max-prob", "entropy")
NEVER, ALWAYS = 2.0, -1.0  # outside the range of scores


def leaving_after(pair: Pair, block: int, method: str = "calm-softmax") -> Parts:
    """Return a method with a gate at every block, which opens only after `block`; at the last block, it never opens."""
    levels = tuple(ALWAYS if at == block else NEVER for at in range(1, pair.n_blocks))
    return dataclasses.replace(pair.parts(method), threshold=PerBlock(levels))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("pair", [REAL_NAME, BASE_NAME, LARGE_NAME], indirect=True)
def test_certified_gate_that_never_opens(pair: Pair, method: str, benchmark: Any, record: Recorder) -> None:
    """Measure tokens/s with a certified gate over those of full depth, which reads the exact head."""
    prompts, parts = pair.prompts(), leaving_after(pair, pair.n_blocks, method).certified()
    full, gated = pair.decoding(pair.full(), prompts), pair.decoding(parts, prompts)
    answers = gated.run_traced()
    assert answers[0].token_ids == full.run_traced()[0].token_ids
    assert set(answers[0].exit_layers) == {pair.n_blocks}, "the gate opened"
    ideal = ideal_over_full(pair, parts, answers, PROMPT_TOKENS)
    comparison = compare(benchmark, full, gated)
    goal = KEPT_GOAL if method == "calm-softmax" and pair.label == BASE_NAME else None
    note = f"ideal {ideal.by_bytes:.1%} by bytes"
    record(comparison, "%", at_least=goal, note=note, ideal_by_bytes=ideal.by_bytes)


@pytest.mark.parametrize("share", ["third", "never"])
@pytest.mark.parametrize("pair", [REAL_NAME, BASE_NAME, LARGE_NAME], indirect=True)
def test_certified_head_against_the_exact_one(pair: Pair, share: str, benchmark: Any, record: Recorder) -> None:
    """Measure the speed-up of a certified gate at every block over the exact one; tokens and exits are equal."""
    block = pair.n_blocks if share == "never" else pair.n_blocks // 3
    prompts, parts = pair.prompts(), leaving_after(pair, block)
    exact, certified = pair.decoding(parts, prompts), pair.decoding(parts.certified(), prompts)
    (reference,), (bounded,) = exact.run_traced(), certified.run_traced()
    assert (bounded.token_ids, bounded.exit_layers) == (reference.token_ids, reference.exit_layers)
    assert set(bounded.exit_layers[1:]) == {block}, "a decoder-only prompt leaves at full depth"
    comparison = compare(benchmark, exact, certified)
    fallbacks = sum(token.head_fallbacks for token in bounded.records)
    note = f"exit {block} of {pair.n_blocks}, {fallbacks} fallbacks"
    record(comparison, "x", note=note, exit_layer=block)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("pair", [REAL_NAME, BASE_NAME, LARGE_NAME], indirect=True)
def test_certified_full_depth_against_the_exact_head(
    pair: Pair, dtype: torch.dtype, benchmark: Any, record: Recorder
) -> None:
    """Measure the speed-up of full depth by a cheaper read-out alone, which is no merit of early exit."""
    prompts, checkpoint, parts = pair.prompts(), pair.loaded(dtype), pair.full()
    exact = pair.decoding(parts, prompts, checkpoint=checkpoint)
    certified = pair.decoding(parts.certified(), prompts, checkpoint=checkpoint)
    (reference,), (bounded,) = exact.run_traced(), certified.run_traced()
    assert bounded.token_ids == reference.token_ids
    comparison = compare(benchmark, exact, certified)
    fallbacks = sum(token.head_fallbacks for token in bounded.records)
    note = f"{fallbacks} fallbacks"
    record(comparison, "x", note=note)
