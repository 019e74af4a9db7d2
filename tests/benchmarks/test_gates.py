"""Cost of gates that are evaluated but never open, against full depth.

A block's time is assumed to be its share of the bytes that full depth reads. Adaptive pruned heads keep the maximum
number of ids, since the confidence of random weights is close to 0.
"""

from __future__ import annotations

from typing import Any

import pytest
from goals import Recorder
from ideals import ideal_over_full, share_of_a_block
from models import BASE_NAME, LARGE_NAME, PROMPT_TOKENS, REAL_NAME, Pair
from ratios import compare

pytestmark = pytest.mark.benchmark(disable_gc=True)

PRUNED_GOAL = 0.9
NEVER = {"threshold": 1.0, "decay": "none"}
GATES: dict[str, tuple[str, dict[str, Any]]] = {
    "softmax": ("calm-softmax", NEVER),
    "softmax-pruned-fixed": ("calm-softmax", {**NEVER, "head": "pruned-fixed"}),
    "softmax-pruned-decaying": ("calm-softmax", {**NEVER, "head": "pruned-decaying"}),
    "softmax-pruned-adaptive": ("calm-softmax", {**NEVER, "head": "pruned-adaptive"}),
    "softmax-pruned-to-250": ("calm-softmax", {**NEVER, "head": "pruned-fixed", "k_first": 250, "k_min": 250}),
    "softmax-every-2nd": ("calm-softmax", {**NEVER, "every": 2}),
    "softmax-every-4th": ("calm-softmax", {**NEVER, "every": 4}),
    "softmax-last-third": ("calm-softmax", NEVER),
    "entropy": ("entropy", {"threshold": 0.0, "decay": "none"}),
    "patience": ("patience", {}),
    "saturation": ("calm-saturation", NEVER),
    "classifier-linear": ("calm-classifier", {**NEVER, "network": "linear"}),
    "classifier-mlp": ("calm-classifier", {**NEVER, "network": "mlp"}),
}


def parameters(gate: str, n_blocks: int) -> dict[str, Any]:
    """Return a gate's parameters, including those that depend on the depth."""
    params = GATES[gate][1]
    if gate == "patience":
        return {**params, "patience": n_blocks}
    return {**params, "min_exit": n_blocks * 2 // 3} if gate == "softmax-last-third" else params


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("pair", [REAL_NAME, BASE_NAME, LARGE_NAME], indirect=True)
def test_gate_that_never_opens(pair: Pair, gate: str, benchmark: Any, record: Recorder) -> None:
    """Measure tokens/s over full depth's, and the time of one gate evaluation in units of a block's time."""
    prompts = pair.prompts()
    parts = pair.parts(GATES[gate][0], **parameters(gate, pair.n_blocks))
    full, gated = pair.decoding(pair.full(), prompts), pair.decoding(parts, prompts)
    answers = gated.run_traced()
    assert set(answers[0].exit_layers) == {pair.n_blocks}, "the gate opened"
    ideal = ideal_over_full(pair, parts, answers, PROMPT_TOKENS)
    comparison = compare(benchmark, full, gated)
    asked = len(parts.gate_blocks(pair.n_blocks))
    blocks = (1 / comparison.ratio - 1) / asked / share_of_a_block(pair, answers[0], PROMPT_TOKENS)
    record(
        comparison,
        "%",
        at_least=PRUNED_GOAL if "pruned" in gate else None,
        note=f"asked {asked} times, {blocks:.2f} blocks each; ideal {ideal.by_bytes:.1%} by bytes",
        asked=asked,
        blocks_a_gate=blocks,
        ideal_by_bytes=ideal.by_bytes,
    )
