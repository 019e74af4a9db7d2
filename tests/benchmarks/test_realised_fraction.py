"""What part of the ideal speed-up an early exit really gives, at five depths: the engine's own score."""

from __future__ import annotations

from typing import Any

import pytest
from goals import record
from ideals import ideal_over_full
from models import BASE_NAME, LARGE_NAME, PROMPT_TOKENS, SMALL_NAME, Pair
from ratios import compare

pytestmark = pytest.mark.benchmark(disable_gc=True)

GOAL = 0.95
SHARES = {"sixth": 1 / 6, "third": 1 / 3, "half": 1 / 2, "two-thirds": 2 / 3, "five-sixths": 5 / 6}


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("pair", [SMALL_NAME, BASE_NAME, LARGE_NAME], indirect=True)
def test_realised_fraction(pair: Pair, share: str, benchmark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Speed-up of decoding, prefill apart, over what fewer bytes read would give."""
    exit_layer = round(pair.n_blocks * SHARES[share])
    prompts, early = pair.prompts(), pair.parts("static", exit_layer=exit_layer)
    full, method = pair.decoding(pair.full(), prompts), pair.decoding(early, prompts)
    ideal = ideal_over_full(pair, early, method.told(), PROMPT_TOKENS)
    found = compare(benchmark, full, method)
    record(
        benchmark,
        capsys,
        found.ratio / ideal.by_bytes,
        "%",
        at_least=GOAL,
        note=(
            f"exit {exit_layer} of {pair.n_blocks}: speed-up {found.ratio:.2f} of {ideal.by_bytes:.2f}; "
            f"{found.spread(ideal.by_bytes)}"
        ),
        exit_layer=exit_layer,
        n_blocks=pair.n_blocks,
        speedup=found.ratio,
        ideal_by_bytes=ideal.by_bytes,
        ideal_by_flops=ideal.by_flops,
        **found.about(),
    )
