"""Realised fraction of the ideal speed-up, at five depths and by gate; it rates the engine, not the method."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from exits import ForcedExits
from goals import Recorder
from ideals import ideal_over_full
from models import BASE_NAME, LARGE_NAME, PROMPT_TOKENS, REAL_NAME, SMALL_NAME, Pair
from ratios import compare

from exitbench.harness.engine.checkpoints.loading import Checkpoint
from exitbench.methods.base import Parts

pytestmark = pytest.mark.benchmark(disable_gc=True)

GOAL = 0.95
GATE_GOALS = {REAL_NAME: 0.9, SMALL_NAME: 0.9, BASE_NAME: 0.95}
GATES: dict[str, tuple[str, dict[str, Any]]] = {
    "softmax": ("calm-softmax", {}),
    "entropy": ("entropy", {}),
    "patience": ("patience", {}),
    "saturation": ("calm-saturation", {}),
    "classifier-linear": ("calm-classifier", {"network": "linear"}),
    "classifier-mlp": ("calm-classifier", {"network": "mlp"}),
    "last-three": ("mee-mlp3", {"min_exit": 2}),
    "free": ("free", {}),
    "free-lazy": ("free", {"kv_policy": "state-copy-lazy"}),
    "self-speculation": ("self-speculation", {"drafts": 4}),
    "self-speculation-one-draft": ("self-speculation", {"drafts": 1}),
}
SHARES = {"sixth": 1 / 6, "third": 1 / 3, "half": 1 / 2, "two-thirds": 2 / 3, "five-sixths": 5 / 6}


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("pair", [REAL_NAME, SMALL_NAME, BASE_NAME, LARGE_NAME], indirect=True)
def test_realised_fraction(pair: Pair, share: str, benchmark: Any, record: Recorder) -> None:
    """Measure the speed-up of decoding with a static exit, without prefill, relative to the ideal by bytes read."""
    exit_layer = round(pair.n_blocks * SHARES[share])
    measure(pair, pair.parts("static", exit_layer=exit_layer), GOAL, benchmark, record)


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("pair", GATE_GOALS, indirect=True)
def test_realised_fraction_of_a_gate(pair: Pair, gate: str, benchmark: Any, record: Recorder) -> None:
    """Measure each gate's realised fraction if three of four tokens exit after a third of the blocks.

    The gate computes its scores, but a fixed schedule decides the exits: scores of random weights carry no information.
    Drafts of self-speculation are mostly rejected, and the ideal speed-up counts this discarded work.
    """
    name, params = GATES[gate]
    shallow = round(pair.n_blocks / 3)
    if name in ("free", "self-speculation"):
        params = {**params, "exit_layer": shallow}
    early = pair.parts(name, **params)
    if name != "self-speculation":
        early = replace(early, threshold=ForcedExits([shallow, shallow, shallow, pair.n_blocks]))
    measure(pair, early, GATE_GOALS[pair.label], benchmark, record)


def measure(
    pair: Pair, early: Parts, goal: float, benchmark: Any, record: Recorder, checkpoint: Checkpoint | None = None
) -> None:
    """Time a method and full depth in turn, and record the realised fraction."""
    prompts = pair.prompts()
    full, method = (pair.decoding(parts, prompts, checkpoint=checkpoint) for parts in (pair.full(), early))
    answers = method.run_traced()
    ideal = ideal_over_full(pair, early, answers, PROMPT_TOKENS)
    exits = [layer for answer in answers for layer in answer.exit_layers]
    mean_exit = sum(exits) / len(exits)
    comparison = compare(benchmark, full, method)
    record(
        comparison,
        "%",
        over=ideal.by_bytes,
        at_least=goal,
        note=f"exit {mean_exit:.3g} of {pair.n_blocks}: speed-up {comparison.ratio:.2f} of {ideal.by_bytes:.2f}",
        mean_exit_layer=mean_exit,
        n_blocks=pair.n_blocks,
        speedup=comparison.ratio,
        ideal_by_bytes=ideal.by_bytes,
        ideal_by_flops=ideal.by_flops,
    )
