"""Time ratios of two actions that alternate in one process, so that other load on a shared machine affects both.

With `--benchmark-timer=time.thread_time`, only one thread's CPU time counts, whatever else the processors run.
"""

from __future__ import annotations

import gc
import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

BUDGET_S = 3.0
"""Approximate seconds per comparison, without warm-up."""
LEAST_ROUNDS, MOST_ROUNDS = 3, 20


def nothing() -> None:
    """Do nothing: the default preparation of an action."""


@dataclass(frozen=True)
class Timed:
    """Action to time.

    Attributes:
        run: The timed function, called with the result of ``prepare``.
        prepare: Untimed preparation before each run.
        traced: Variant of ``run`` with a trace; None if ``run`` records one.
    """

    run: Callable[[Any], Any]
    prepare: Callable[[], Any] = nothing
    traced: Callable[[Any], Any] | None = None

    def once(self) -> Any:
        """Prepare and run the action once; return its result."""
        return self.run(self.prepare())

    def run_traced(self) -> Any:
        """Prepare and run the action once with a trace; return its result."""
        return (self.traced or self.run)(self.prepare())

    def seconds(self, clock: Callable[[], float] = time.perf_counter) -> float:
        """Return the seconds of one run, without garbage collection."""
        prepared = self.prepare()
        gc.disable()
        try:
            started = clock()
            self.run(prepared)
            return clock() - started
        finally:
            gc.enable()


@dataclass(frozen=True)
class Comparison:
    """Times of an action, each taken between two times of the base.

    Attributes:
        base_s: Seconds of the base: one more than rounds.
        measured_s: Seconds of the measured action, one per round.
    """

    base_s: list[float]
    measured_s: list[float]

    @property
    def ratios(self) -> list[float]:
        """Speed-up over the base per round; steady drift favours neither side."""
        around = itertools.pairwise(self.base_s)
        return [(before + after) / 2 / took for (before, after), took in zip(around, self.measured_s, strict=True)]

    @property
    def ratio(self) -> float:
        """Median of the ratios."""
        return statistics.median(self.ratios)

    def about(self) -> dict[str, object]:
        """Return the ratios and the times in seconds, to be stored with the benchmark's result."""
        return {"ratios": self.ratios, "base_s": self.base_s, "measured_s": self.measured_s}

    def spread(self, over: float = 1.0) -> str:
        """Return the quartiles of the ratios, divided by ``over``, and the number of rounds, as text."""
        low, _, high = statistics.quantiles((ratio / over for ratio in self.ratios), n=4, method="inclusive")
        return f"quartiles {low:.2f} to {high:.2f} of {len(self.ratios)} rounds"


def rounds_within(budget_s: float, base: Timed, measured: Timed) -> int:
    """Return the number of rounds that fit a budget, estimated from one run of each."""
    round_s = base.seconds() + measured.seconds()
    return min(MOST_ROUNDS, max(LEAST_ROUNDS, round(budget_s / round_s)))


def compare(benchmark: Any, base: Timed, measured: Timed, budget_s: float = BUDGET_S) -> Comparison:
    """Time two actions in turn, beginning and ending with ``base``; pytest-benchmark stores the times of ``measured``.

    The benchmark must disable garbage collection (`pytest.mark.benchmark(disable_gc=True)`).
    """
    clock = benchmark._timer  # as set with --benchmark-timer
    rounds = rounds_within(budget_s, base, measured)
    base_s: list[float] = []

    def before_round() -> tuple[tuple[Any], dict[str, Any]]:
        base_s.append(base.seconds(clock))
        return (measured.prepare(),), {}

    benchmark.pedantic(measured.run, setup=before_round, rounds=rounds)
    base_s.append(base.seconds(clock))
    return Comparison(base_s, list(benchmark.stats.stats.data))
