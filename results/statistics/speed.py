"""Speed-ups from repeated readings: of each document an arm's median reading, then the ratio of sums over documents.

A process that loses its core for a moment makes one reading 2 to 20 times as long. A mean takes all of that in, and so
does a sum; the median of ten readings hardly moves. The median is taken within a document, so that the ratio stays
one of times that were spent, and long documents count for as much as they take. Simulated with and without such stalls
in `tests/results/statistics/test_speed.py`; `python tests/benchmarks/interval_coverage.py speed` prints the table.
"""

from collections import defaultdict
from collections.abc import Iterable
from statistics import median
from typing import Final

from exitbench.results.statistics.intervals import N_BOOT, Interval, ratio_interval

MIN_ROUNDS: Final = 5
"""Rounds over the documents before a timing may stop: ten readings of an arm, of which stalls leave most alone."""

WIDEST: Final = 10.0
"""An interval whose upper end is more than this many times its lower end is no measurement."""


def typical(readings: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Return the median reading of each document, from (document key, reading) pairs of one arm."""
    of_document: defaultdict[str, list[float]] = defaultdict(list)
    for doc_key, reading in readings:
        of_document[doc_key].append(reading)
    return {doc_key: float(median(own)) for doc_key, own in of_document.items()}


def speedup_interval(
    full: Iterable[tuple[str, float]], other: Iterable[tuple[str, float]], *, seed: int, n_boot: int = N_BOOT
) -> Interval:
    """Return full depth's time over that of another arm, with its paired 95% interval over documents.

    Args:
        full: (Document key, reading) pairs of full depth, any number of each document.
        other: Those of the method, or of full depth timed again, of the same documents.
        seed: Seed of the bootstrap.
        n_boot: Resamples.
    """
    above, below = typical(full), typical(other)
    return ratio_interval(list(above.values()), [below[doc_key] for doc_key in above], seed=seed, n_boot=n_boot)


def is_measurable(low: float | None, high: float | None) -> bool:
    """Return whether an interval says anything: its ends are at most a factor of `WIDEST` apart, or there is none.

    The macro `is_measurable` in `views.sql` says the same in SQL.
    """
    return low is None or high is None or high <= WIDEST * low
