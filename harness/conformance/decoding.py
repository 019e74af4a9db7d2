"""Conformance of decoding: what a method must hold while it decodes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from exitbench.harness.conformance.decoder import PROMPTS, Trial
from exitbench.harness.engine.decoding.generation import Generation
from exitbench.methods.registry import baseline_method
from exitbench.methods.thresholds import Constant


def thresholds(trial: Trial) -> Iterator[str]:
    """One that never opens is full depth token for token; one that always opens exits at the first block asked.

    But for what verification puts in place of what it rejects.
    """
    never = trial.answers(dataclasses.replace(trial.parts, threshold=Constant(math.inf)))
    full = trial.answers(baseline_method()().parts(trial.n_blocks))
    if [g.token_ids for g in never] != [g.token_ids for g in full]:
        yield "a threshold that never opens changes the answer"
    first = trial.first_exit
    always = trial.answers(dataclasses.replace(trial.parts, threshold=Constant(-math.inf)))
    exits = [pair for g in always for pair in zip(g.exit_layers, g.rejected, strict=True)]
    if {layer for layer, rejected in exits if not rejected} - {first}:
        yield f"a threshold that always opens does not exit at block {first}"


def independence(trial: Trial) -> Iterator[str]:
    """A batch equals its rows one by one, and the same seed gives the same trace, of a gate made anew too."""
    together = trial.answers(trial.parts)
    some = range(0, len(PROMPTS), 3)
    alone = [trial.answers(trial.parts, [PROMPTS[row]], first_seed=row)[0] for row in some]
    if _traces([together[row] for row in some]) != _traces(alone):
        yield "a batch is not its rows one by one"
    if together != trial.answers(trial.parts) or together != trial.answers(trial.fresh()):
        yield "the same seed gives another trace"


def model_unchanged(trial: Trial) -> Iterator[str]:
    """After all that was asked of the method, full depth answers as it did on a decoder that no method has seen."""
    untouched = Trial(baseline_method()(), trial.shape)
    if trial.answers(untouched.plain) != untouched.answers(untouched.plain):
        yield "the model's weights are not what they were before the method was asked"


def _traces(generations: list[Generation]) -> list[tuple[list[int], list[int], list[int]]]:
    return [(g.token_ids, g.exit_layers, g.head_rows) for g in generations]
