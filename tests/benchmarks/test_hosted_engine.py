"""Speed of the hosted engine: full depth against `generate`, exits against full depth, and lean against hosted."""

from __future__ import annotations

from typing import Any

import pytest
from goals import Recorder
from models import BASE_NAME, CAUSAL_NAME, REAL_NAME, Pair
from ratios import compare
from test_full_depth import against_generate
from test_realised_fraction import measure

pytestmark = pytest.mark.benchmark(disable_gc=True)

SHAPES = (REAL_NAME, BASE_NAME, CAUSAL_NAME)
NEW_TOKENS = {REAL_NAME: 16, BASE_NAME: 16, CAUSAL_NAME: 48}
SHARES = {"quarter": 1 / 4, "half": 1 / 2, "three-quarters": 3 / 4}
AS_FAST, REALISED = 0.95, 0.85


@pytest.mark.parametrize("pair", SHAPES, indirect=True)
def test_hosted_full_depth(pair: Pair, benchmark: Any, record: Recorder) -> None:
    """Time one request on the hosted engine against transformers' `generate`."""
    against_generate(pair, pair.prompts(), NEW_TOKENS[pair.label], benchmark, record, AS_FAST, pair.hosted)


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("pair", SHAPES, indirect=True)
def test_hosted_realised_fraction(pair: Pair, share: str, benchmark: Any, record: Recorder) -> None:
    """Measure the speed-up of an exit over full depth on the hosted engine, relative to the ideal by bytes read."""
    early = pair.parts("static", exit_layer=round(pair.n_blocks * SHARES[share]))
    measure(pair, early, REALISED, benchmark, record, pair.hosted)


@pytest.mark.parametrize("exit_layer", ["half", "full"])
@pytest.mark.parametrize("pair", SHAPES, indirect=True)
def test_lean_over_hosted(pair: Pair, exit_layer: str, benchmark: Any, record: Recorder) -> None:
    """Time decoding on the lean engine against the same decoding on the hosted engine."""
    parts = pair.full() if exit_layer == "full" else pair.parts("static", exit_layer=pair.n_blocks // 2)
    lean, hosted = (
        pair.decoding(parts, pair.prompts(), checkpoint=engine) for engine in (pair.checkpoint, pair.hosted)
    )
    assert [answer.token_ids for answer in lean.once()] == [answer.token_ids for answer in hosted.once()]
    comparison = compare(benchmark, hosted, lean)
    record(
        comparison,
        "x hosted",
        at_least=1.0,
    )
