"""Two runs over the same documents: how far they are apart, and how sure that is.

The unit is the document, and what belongs to one document stays together: intervals resample documents with both
outputs, tests exchange the two outputs of a document (it does not matter, under the null hypothesis, whose they are).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Final

import numpy as np

from exitbench.results.statistics import LEVEL, N_BOOT, Aggregate, Floats, Interval, percentile_interval, resamples

EXACT_DOCUMENTS: Final = 16
"""Up to this many differing documents, every exchange is tried: 65,536 at most."""
DRAWS: Final = 20_000
"""Exchanges considered beyond that: the observed one and random ones, so that p is a multiple of 1 / DRAWS."""
POWER: Final = 0.8
NOTHING_DIFFERS: Final = "no document differs"
_BLOCK_ENTRIES: Final = 4_000_000
_ROUNDING: Final = 1e-9


@dataclass(frozen=True)
class Difference:
    """Run B against run A over the same documents.

    Attributes:
        a: Value of run A.
        b: Value of run B.
        delta: b - a with its paired percentile-bootstrap interval.
        p: Two-sided p-value of no difference.
        test: How p was found, or `NOTHING_DIFFERS`.
        detectable: Smallest true difference that a two-sided test at 5% finds with 80% power, at the spread seen here;
            None for a single document, and where no document differs, since there is no spread then.
    """

    a: float
    b: float
    delta: Interval
    p: float
    test: str
    detectable: float | None


def difference(rows_a: Floats, rows_b: Floats, aggregate: Aggregate, *, seed: int, n_boot: int = N_BOOT) -> Difference:
    """Compare two runs in one metric.

    Args:
        rows_a: Statistics of A's documents that add up, [n, S], n at least 1.
        rows_b: Those of B for the same documents in the same order, [n, S].
        aggregate: Turns summed statistics into the metric.
        seed: Of the bootstrap, and of random exchanges.
        n_boot: Resamples.
    """
    n, width = rows_a.shape
    a, b = (float(aggregate(rows.sum(axis=0), np.asarray(float(n)))) for rows in (rows_a, rows_b))

    def delta(total: Floats, count: Floats) -> Floats:
        value: Floats = aggregate(total[..., width:], count) - aggregate(total[..., :width], count)
        return value

    both = np.concatenate([rows_a, rows_b], axis=1)
    interval, detectable = Interval(b - a, None, None, None, n), None
    if n > 1:
        resampled = resamples(both, delta, seed=seed, n_boot=n_boot)
        interval, detectable = percentile_interval(b - a, resampled, n), detectable_effect(float(np.nanstd(resampled)))
    if np.array_equal(rows_a, rows_b):
        return Difference(a, b, interval, 1.0, NOTHING_DIFFERS, None)
    p, test = permutation_test(rows_a, rows_b, aggregate, seed=seed)
    return Difference(a, b, interval, p, test, detectable)


def binary_difference(right_a: Floats, right_b: Floats, *, seed: int, n_boot: int = N_BOOT) -> Difference:
    """Compare two runs in a metric that is all or nothing for a document: the mean of values [n] that are 0 or 100."""

    def mean(total: Floats, count: Floats) -> Floats:
        value: Floats = total[..., 0] / count
        return value

    found = difference(right_a[:, None], right_b[:, None], mean, seed=seed, n_boot=n_boot)
    if found.test == NOTHING_DIFFERS:
        return found
    p = mcnemar(int((right_a < right_b).sum()), int((right_a > right_b).sum()))
    return replace(found, p=p, test="McNemar, exact")


def mcnemar(gained: int, lost: int) -> float:
    """Return McNemar's exact two-sided p-value from the documents that only B, or only A, got right.

    Under the null hypothesis each of them is a fair coin, so it is a binomial test, which is symmetric.
    """
    n, tail, ways = gained + lost, 0, 1
    for k in range(min(gained, lost) + 1):
        tail += ways
        ways = ways * (n - k) // (k + 1)
    # Divided as whole numbers: 2 ** n does not fit a float for thousands of documents.
    p: float = 2 * tail / 2**n
    return min(1.0, p)


def permutation_test(rows_a: Floats, rows_b: Floats, aggregate: Aggregate, *, seed: int) -> tuple[float, str]:
    """Return the two-sided p-value of exchanging the two outputs of documents, and how it was found.

    For a mean this is the sign-flip test; for a corpus metric every exchange is summed and aggregated anew. Exact up
    to `EXACT_DOCUMENTS` documents that differ, else over `DRAWS` exchanges drawn with `seed`.

    Args:
        rows_a: [n, S], as in `difference`.
        rows_b: [n, S].
        aggregate: Turns summed statistics into the metric.
        seed: Of random exchanges.
    """
    change = rows_b - rows_a
    change = change[change.any(axis=1)]
    n_differ, count = len(change), np.asarray(float(len(rows_a)))
    total_a, total_b = rows_a.sum(axis=0), rows_b.sum(axis=0)
    a, b = float(aggregate(total_a, count)), float(aggregate(total_b, count))
    reached = abs(b - a) - _ROUNDING * (abs(a) + abs(b))

    def as_far(exchanged: Floats) -> int:
        """How many of the exchanges [rows, n_differ] of 0 and 1 lie as far apart as what was observed."""
        moved = exchanged @ change
        counts = np.full(len(moved), count)
        return int((np.abs(aggregate(total_b - moved, counts) - aggregate(total_a + moved, counts)) >= reached).sum())

    if n_differ <= EXACT_DOCUMENTS:
        codes = np.arange(2**n_differ)
        exchanged = ((codes[:, None] >> np.arange(n_differ)) & 1).astype(np.float64)
        return as_far(exchanged) / 2**n_differ, "permutation, exact"
    rng = np.random.default_rng(seed)
    block_rows = max(1, _BLOCK_ENTRIES // n_differ)
    found = 1
    for start in range(1, DRAWS, block_rows):
        rows = min(block_rows, DRAWS - start)
        found += as_far(rng.integers(2, size=(rows, n_differ)).astype(np.float64))
    return found / DRAWS, f"permutation, {DRAWS:,} draws"


def detectable_effect(standard_error: float) -> float:
    """Return the smallest effect that a two-sided normal test at 5% finds with 80% power."""
    normal = NormalDist()
    return (normal.inv_cdf((1 + LEVEL) / 2) + normal.inv_cdf(POWER)) * standard_error


def holm(p_values: Sequence[float]) -> list[float]:
    """Return Holm's adjusted p-values of a family, in the order given; they control the family-wise error rate.

    Source: Holm (1979), A simple sequentially rejective multiple test procedure.
    """
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted
