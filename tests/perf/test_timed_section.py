"""What timing cells take for one request while the clock runs, by gate.

Small models, where everything beside products counts most. Processor time, which other work changes less, is compared
by `nox -s perf -- --against REV -k timed_section --benchmark-timer=time.process_time`.
"""

from __future__ import annotations

import statistics
from typing import Any

import pytest
from goals import record
from models import CAUSAL_NAME, SMALL_NAME, Pair

from exitbench.harness import timing
from exitbench.harness.cell import Generation as Asked
from exitbench.harness.decode import Request

pytestmark = pytest.mark.benchmark(disable_gc=True)

ROUNDS = 15
NEVER = {"threshold": 1.0, "decay": "none"}
GATES: dict[str, tuple[str, dict[str, Any]]] = {
    "full": ("full", {}),
    "static": ("static", {"exit_layer": 4}),
    "softmax": ("calm-softmax", NEVER),
    "softmax-pruned-adaptive": ("calm-softmax", {**NEVER, "head": "pruned-adaptive"}),
    "entropy": ("entropy", {"threshold": 0.0, "decay": "none"}),
    "patience": ("patience", {"patience": 8}),
    "saturation": ("calm-saturation", NEVER),
    "classifier-linear": ("calm-classifier", {**NEVER, "network": "linear"}),
    "self-speculation": ("self-speculation", {"exit_layer": 4, "drafts": 3}),
}


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("pair", [SMALL_NAME, CAUSAL_NAME], indirect=True)
def test_timed_section(pair: Pair, gate: str, benchmark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Milliseconds a token of prefill and decoding, as `harness.timing` runs them."""
    name, params = GATES[gate]
    parts, length = pair.parts(name, **params), pair.shape.new_tokens
    unit, asked = timing.Unit("", (Request(pair.prompts()[0]),)), Asked(length)

    def section() -> None:
        for _ in timing._timed(pair.checkpoint, parts, unit, asked):
            pass

    benchmark.pedantic(section, rounds=ROUNDS, warmup_rounds=2)
    ms_per_token = benchmark.stats.stats.median / length * 1e3
    low, _, high = (s / length * 1e3 for s in statistics.quantiles(benchmark.stats.stats.data, n=4, method="inclusive"))
    record(benchmark, capsys, ms_per_token, "ms/token", note=f"quartiles {low:.3f} to {high:.3f} of {ROUNDS} rounds")
