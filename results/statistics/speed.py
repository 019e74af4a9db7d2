"""Speed-ups from repeated timings: the median time of each document, then the ratio of sums over documents.

A process that loses its core for a moment makes one reading 2 to 20 times as long. That affects a mean or a sum fully,
but the median of ten readings hardly. The median is taken per document, so the result is still a ratio of times, in
which long documents weigh as much as the time they take. `tests/results/statistics/test_speed.py` simulates timings
with and without such stalls; `python tests/benchmarks/interval_coverage.py speed` prints a table.
"""

from collections import defaultdict
from collections.abc import Iterable
from statistics import median
from typing import Final

from exitbench.results.statistics.intervals import N_BOOT, Interval, ratio_interval

MIN_ROUNDS: Final = 5
"""Minimum rounds over the documents before a timing may stop: ten readings per arm, most of them without stalls."""


def median_times(readings: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Return the median time by document key, from (document key, time) pairs of full depth or of a method."""
    by_document: defaultdict[str, list[float]] = defaultdict(list)
    for doc_key, reading in readings:
        by_document[doc_key].append(reading)
    return {doc_key: float(median(values)) for doc_key, values in by_document.items()}


def speedup_interval(
    full: Iterable[tuple[str, float]], other: Iterable[tuple[str, float]], *, seed: int, n_boot: int = N_BOOT
) -> Interval:
    """Return full depth's time divided by a method's, with the paired 95% interval over documents.

    Args:
        full: (Document key, time) pairs of full depth, any number per document.
        other: (Document key, time) pairs of the method, or of full depth timed again, for the same documents.
        seed: Seed of the bootstrap.
        n_boot: Number of resamples.
    """
    full_times, other_times = median_times(full), median_times(other)
    return ratio_interval(
        list(full_times.values()), [other_times[doc_key] for doc_key in full_times], seed=seed, n_boot=n_boot
    )
