"""Time matrix products in alternative forms (implementations), and choose the fastest of each.

Whether a weight is in the processor's cache depends on the products before it. So all products are timed in the order
of a decode step, in one form after another. A form replaces the default only if it was clearly faster in nearly every
round. On a busy machine no difference is clear, and the default stays.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from exitbench.harness.engine.model.weights import Linear
from exitbench.harness.engine.products.forms import n_parts

Product = Callable[[Tensor], Tensor]
Clock = Callable[[], float]

CLEARLY: Final = 1.1
"""A form must be this many times faster than the one chosen so far"""
SURELY: Final = 0.8
"""in at least this share of the rounds,"""
CALL_S: Final = 3e-6
"""and save this time per product: among the other operations of a step, calling a routine takes longer than here."""
LEAST_ROUNDS, MOST_ROUNDS = 3, 6
"""Fewest and most rounds, after a first one that is discarded."""
BUDGET_S: Final = 0.2
"""Seconds after which no further round begins."""
SAMPLE_BYTES: Final = 24 * 2**20
"""Bytes of weights of blocks or modules that are timed, and most bytes of an LM head: more than most caches hold."""


@dataclass(frozen=True)
class TimedProduct:
    """One matrix product, to be timed in several forms.

    Attributes:
        weight_key: Role and shape of the weight; a form is chosen for all products with the same key.
        inputs: Inputs to multiply, one after another, each [rows, in].
        forms: Functions that compute the product, by the name of their form; the default first.
    """

    weight_key: str
    inputs: Sequence[Tensor]
    forms: Mapping[str, Product]


def step_clock() -> Clock:
    """Return the clock for products on this process's number of threads.

    With one thread, its CPU time is measured, so that other load on the processor does not count. With several threads
    wall time is measured, because waiting for each other is part of the product.
    """
    return time.thread_time if torch.get_num_threads() == 1 else time.perf_counter


def fastest(step: Sequence[TimedProduct], clock: Clock) -> dict[str, str]:
    """Time the products of a decode step in all their forms; return the name of the chosen form by weight key.

    The weight key is the role and shape of a weight. A form takes the place of the one chosen so far, the default at
    first, if it is clearly faster.

    Args:
        step: Products in the order of execution.
        clock: Function that returns the time in seconds.
    """
    _round(step, clock)
    ends = clock() + BUDGET_S  # starts after the first round, in which lazy work such as packing weights may take long
    rounds: list[dict[str, dict[str, float]]] = []
    while len(rounds) < MOST_ROUNDS and clock() < ends:
        rounds.append(_round(step, clock))
    counts = Counter(timed.weight_key for timed in step)
    return {
        key: _choice([times[key] for times in rounds], names, counts[key]) for key, names in _form_names(step).items()
    }


def _form_names(step: Sequence[TimedProduct]) -> dict[str, tuple[str, ...]]:
    return {timed.weight_key: tuple(timed.forms) for timed in step}


def _round(step: Sequence[TimedProduct], clock: Clock) -> dict[str, dict[str, float]]:
    """Time each form of each product once per input; return seconds by weight key (role and shape) and form.

    All products run with one input before the next input, and in one form before the next form.
    """
    took: dict[str, dict[str, float]] = {timed.weight_key: dict.fromkeys(timed.forms, 0.0) for timed in step}
    for name in dict.fromkeys(name for timed in step for name in timed.forms):
        for index in range(max(len(timed.inputs) for timed in step)):
            for timed in step:
                if name in timed.forms and index < len(timed.inputs):
                    product, rows, started = timed.forms[name], timed.inputs[index], clock()
                    product(rows)
                    took[timed.weight_key][name] += clock() - started
    return took


def _choice(rounds: Sequence[Mapping[str, float]], names: Sequence[str], n_products: int) -> str:
    """Return the first of ``names``, the default, unless a later form is clearly faster than the one chosen so far.

    ``rounds`` has the seconds of each form for all ``n_products`` products, by round.
    """
    chosen, *alternatives = names
    for name in alternatives if len(rounds) >= LEAST_ROUNDS else ():
        least = [max(CLEARLY * took[name], took[name] + n_products * CALL_S) for took in rounds]
        if sum(took[chosen] > s for took, s in zip(rounds, least, strict=True)) >= SURELY * len(rounds):
            chosen = name
    return chosen


def ones_inputs(numbers: Sequence[int], width: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Return one input of ones, [rows, ``width``], for each number of rows in ``numbers``."""
    return tuple(torch.ones(rows, width, dtype=dtype) for rows in numbers)


def last_rows(projection: Linear) -> Linear:
    """Return a projection restricted to its last outputs, with at most `SAMPLE_BYTES` of weights.

    Their number is a multiple of the number of parts of a split weight, if the number of all outputs is.
    """
    rows = SAMPLE_BYTES * len(projection.weight) // projection.weight.nbytes
    return projection.outputs(max(0, len(projection.weight) - (rows - rows % n_parts())))
