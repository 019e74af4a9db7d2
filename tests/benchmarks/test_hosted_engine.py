"""Speed of the hosted engine: full depth against `generate`, exits against full depth, and lean against hosted."""

from __future__ import annotations

from typing import Any

import pytest
from goals import record
from ideals import ideal_over_full
from models import BASE_NAME, CAUSAL_NAME, PROMPT_TOKENS, REAL_NAME, Pair
from ratios import Timed, compare

pytestmark = pytest.mark.benchmark(disable_gc=True)

SHAPES = (REAL_NAME, BASE_NAME, CAUSAL_NAME)
NEW_TOKENS = {REAL_NAME: 16, BASE_NAME: 16, CAUSAL_NAME: 48}
SHARES = {"quarter": 1 / 4, "half": 1 / 2, "three-quarters": 3 / 4}
AS_FAST, REALISED = 0.95, 0.85


@pytest.mark.parametrize("pair", SHAPES, indirect=True)
def test_hosted_full_depth(pair: Pair, benchmark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Time one request on the hosted engine against transformers' `generate`."""
    prompts, new_tokens = pair.prompts(), NEW_TOKENS[pair.label]
    inputs, decoding = pair.inputs(prompts), pair.decoding(pair.full(), prompts, new_tokens, pair.hosted)
    (generation,) = decoding.once()
    assert [generation.token_ids] == pair.transformers(inputs, new_tokens), "what differs cannot be compared"
    hosted = Timed(lambda _: decoding.once())
    comparison = compare(benchmark, Timed(lambda _: pair.transformers(inputs, new_tokens)), hosted)
    record(
        benchmark,
        capsys,
        comparison.ratio,
        "x transformers",
        at_least=AS_FAST,
        note=comparison.spread(),
        **comparison.about(),
    )


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("pair", SHAPES, indirect=True)
def test_hosted_realised_fraction(pair: Pair, share: str, benchmark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Measure the speed-up of an exit over full depth on the hosted engine, relative to the ideal by bytes read."""
    exit_layer = round(pair.n_blocks * SHARES[share])
    prompts, early = pair.prompts(), pair.parts("static", exit_layer=exit_layer)
    full, method = (pair.decoding(parts, prompts, checkpoint=pair.hosted) for parts in (pair.full(), early))
    ideal = ideal_over_full(pair, early, method.run_traced(), PROMPT_TOKENS)
    comparison = compare(benchmark, full, method)
    note = f"exit {exit_layer} of {pair.n_blocks}: speed-up {comparison.ratio:.2f} of {ideal.by_bytes:.2f}"
    record(
        benchmark,
        capsys,
        comparison.ratio / ideal.by_bytes,
        "%",
        at_least=REALISED,
        note=f"{note}; {comparison.spread(ideal.by_bytes)}",
        exit_layer=exit_layer,
        n_blocks=pair.n_blocks,
        speedup=comparison.ratio,
        ideal_by_bytes=ideal.by_bytes,
        ideal_by_flops=ideal.by_flops,
        **comparison.about(),
    )


@pytest.mark.parametrize("exit_layer", ["half", "full"])
@pytest.mark.parametrize("pair", SHAPES, indirect=True)
def test_lean_over_hosted(pair: Pair, exit_layer: str, benchmark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Time decoding on the lean engine against the same decoding on the hosted engine."""
    parts = pair.full() if exit_layer == "full" else pair.parts("static", exit_layer=pair.n_blocks // 2)
    lean, hosted = (
        pair.decoding(parts, pair.prompts(), checkpoint=engine) for engine in (pair.checkpoint, pair.hosted)
    )
    assert [answer.token_ids for answer in lean.once()] == [answer.token_ids for answer in hosted.once()]
    comparison = compare(benchmark, hosted, lean)
    record(
        benchmark, capsys, comparison.ratio, "x hosted", at_least=1.0, note=comparison.spread(), **comparison.about()
    )
