"""Which form of each product is fastest: timed as a step of decoding does them, one after another, and in turn.

A product is read from memory or from a cache by what was multiplied before it, so all are timed in the order of a step.
A form is taken in place of the default only where it was clearly faster in nearly every round: on a machine that does
something else besides, nothing is clear, and the default stays.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

Product = Callable[[Tensor], Tensor]
Clock = Callable[[], float]

CLEARLY: Final = 1.1
"""Times faster than the default that a form must have been,"""
SURELY: Final = 0.8
"""in so large a share of the rounds,"""
LEAST_ROUNDS, MOST_ROUNDS = 3, 6
"""of which there are so many, the first of all left out."""
BUDGET_S: Final = 0.2
"""After so long no further round begins."""


@dataclass(frozen=True)
class Timed:
    """One product of a step.

    Attributes:
        place: Those of a place share a form.
        inputs: What is multiplied, each in turn: [rows, in].
        forms: The product in each form by name, the default first.
    """

    place: str
    inputs: Sequence[Tensor]
    forms: Mapping[str, Product]


def fastest(step: Sequence[Timed], clock: Clock) -> dict[str, str]:
    """Return the form of each place of a step, whose products stand in their order; the clock tells seconds."""
    _round(step, clock)
    ends = clock() + BUDGET_S  # from then on: what is made at first use, as packed weights are, may take as long
    rounds: list[dict[str, dict[str, float]]] = []
    while len(rounds) < MOST_ROUNDS and clock() < ends:
        rounds.append(_round(step, clock))
    return {place: _choice([times[place] for times in rounds], names) for place, names in _places(step).items()}


def _places(step: Sequence[Timed]) -> dict[str, tuple[str, ...]]:
    return {timed.place: tuple(timed.forms) for timed in step}


def _round(step: Sequence[Timed], clock: Clock) -> dict[str, dict[str, float]]:
    """Seconds of a step by place and form; a step of one form follows a step of another."""
    took: dict[str, dict[str, float]] = {timed.place: dict.fromkeys(timed.forms, 0.0) for timed in step}
    for name in dict.fromkeys(name for timed in step for name in timed.forms):
        for timed in step:
            if name in timed.forms:
                product, started = timed.forms[name], clock()
                for rows in timed.inputs:
                    product(rows)
                took[timed.place][name] += clock() - started
    return took


def _choice(rounds: Sequence[Mapping[str, float]], names: Sequence[str]) -> str:
    """The fastest of the forms that are clearly faster than the first, else the first."""
    default, *others = names
    if len(rounds) < LEAST_ROUNDS:
        return default
    clear = [
        name for name in others if sum(took[default] > CLEARLY * took[name] for took in rounds) >= SURELY * len(rounds)
    ]
    return min(clear, key=lambda name: statistics.median(took[name] for took in rounds), default=default)


def rows_to_multiply(numbers: Sequence[int], width: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """So many rows at a time, each [rows, in]."""
    return tuple(torch.ones(rows, width, dtype=dtype) for rows in numbers)
