"""How two things compare that are timed in turn, in one process: nothing else survives a shared machine.

Where others load its processors too, `--benchmark-timer=time.thread_time` counts what one thread takes of them.
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
"""About how long one comparison takes, warm-up apart."""
LEAST_ROUNDS, MOST_ROUNDS = 3, 20


def nothing() -> None:
    """Nothing to prepare."""


@dataclass(frozen=True)
class Timed:
    """Something to time.

    Attributes:
        run: What is timed, given what was prepared.
        prepare: What comes before, untimed, each time anew.
        traced: The same with more to tell; None where ``run`` tells all.
    """

    run: Callable[[Any], Any]
    prepare: Callable[[], Any] = nothing
    traced: Callable[[Any], Any] | None = None

    def once(self) -> Any:
        """What it gives."""
        return self.run(self.prepare())

    def told(self) -> Any:
        """What it gives with its trace, where it has one that is left out while the clock runs."""
        return (self.traced or self.run)(self.prepare())

    def seconds(self, clock: Callable[[], float] = time.perf_counter) -> float:
        """How long it takes once, without garbage collection."""
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
    """Times of something, each taken between two times of what it is compared with.

    Attributes:
        base_s: Of what it is compared with: one more than rounds.
        measured_s: Of what is measured, one a round.
    """

    base_s: list[float]
    measured_s: list[float]

    @property
    def ratios(self) -> list[float]:
        """How many times faster it is, a round: what drifts steadily favours neither."""
        around = itertools.pairwise(self.base_s)
        return [(before + after) / 2 / took for (before, after), took in zip(around, self.measured_s, strict=True)]

    @property
    def ratio(self) -> float:
        """Median of the ratios."""
        return statistics.median(self.ratios)

    def about(self) -> dict[str, object]:
        """What is kept beside the result."""
        return {"ratios": self.ratios, "base_s": self.base_s, "measured_s": self.measured_s}

    def spread(self, over: float = 1.0) -> str:
        """Quartiles of the ratios, divided by ``over``, and how many rounds there were."""
        low, _, high = statistics.quantiles((ratio / over for ratio in self.ratios), n=4, method="inclusive")
        return f"quartiles {low:.2f} to {high:.2f} of {len(self.ratios)} rounds"


def rounds_within(budget_s: float, base: Timed, measured: Timed) -> int:
    """How many rounds of both fit into a budget, by one of each."""
    round_s = base.seconds() + measured.seconds()
    return min(MOST_ROUNDS, max(LEAST_ROUNDS, round(budget_s / round_s)))


def compare(benchmark: Any, base: Timed, measured: Timed, budget_s: float = BUDGET_S) -> Comparison:
    """Time two things in turn, from ``base`` to ``base``; the benchmark's own times are those of ``measured``.

    The benchmark must have been told not to collect garbage (`pytest.mark.benchmark(disable_gc=True)`).
    """
    clock = benchmark._timer  # --benchmark-timer
    rounds = rounds_within(budget_s, base, measured)
    base_s: list[float] = []

    def before_round() -> tuple[tuple[Any], dict[str, Any]]:
        base_s.append(base.seconds(clock))
        return (measured.prepare(),), {}

    benchmark.pedantic(measured.run, setup=before_round, rounds=rounds)
    base_s.append(base.seconds(clock))
    return Comparison(base_s, list(benchmark.stats.stats.data))
