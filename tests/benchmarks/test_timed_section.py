"""Time saved by decoding without a trace, as timing cells do: traced over untraced decoding, by gate.

Uses a small model, where overhead beyond the products is largest, and CPU time, which other processes disturb less.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import pytest
from goals import Recorder
from models import SMALL_NAME, Pair

pytestmark = pytest.mark.benchmark(disable_gc=True)

NEW_TOKENS, ROUNDS = 16, 7
NEVER = {"threshold": 1.0, "decay": "none"}
GATES: dict[str, tuple[str, dict[str, Any]]] = {
    "full": ("full", {}),
    "static": ("static", {"exit_layer": 4}),
    "softmax": ("calm-softmax", NEVER),
    "softmax-pruned-adaptive": ("calm-softmax", {**NEVER, "head": "pruned-adaptive"}),
    "patience": ("patience", {"patience": 8}),
    "saturation": ("calm-saturation", NEVER),
    "self-speculation": ("self-speculation", {"exit_layer": 4, "drafts": 3}),
}


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("pair", [SMALL_NAME], indirect=True)
def test_timed_section(pair: Pair, gate: str, benchmark: Any, record: Recorder) -> None:
    """Time decoding of one answer, without prefill, in the order traced, untraced, untraced, traced."""
    name, params = GATES[gate]
    timed = pair.decoding(pair.parts(name, **params), pair.prompts(), NEW_TOKENS)
    assert timed.traced is not None, "a decode has a trace"
    assert [answer.token_ids for answer in timed.once()] == [answer.token_ids for answer in timed.run_traced()]
    benchmark.pedantic(timed.run, setup=lambda: ((timed.prepare(),), {}), rounds=3 * ROUNDS, warmup_rounds=1)
    ratios, bare_s = [], []
    for _ in range(ROUNDS):
        order = (timed.traced, timed.run, timed.run, timed.traced)
        before, first, second, after = (_processor_s(run, timed.prepare()) for run in order)
        ratios.append((before + after) / (first + second))
        bare_s.append((first + second) / 2)
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    note = f"{statistics.median(bare_s) / NEW_TOKENS * 1e3:.2f} ms a token timed; "
    note += f"quartiles {low:.2f} to {high:.2f} of {ROUNDS} rounds"
    record(middle, "x as timed", note=note, ratios=ratios, timed_s=bare_s)


def _processor_s(run: Callable[[Any], Any], batch: Any) -> float:
    gc.disable()
    try:
        started = time.process_time()
        run(batch)
        return time.process_time() - started
    finally:
        gc.enable()
