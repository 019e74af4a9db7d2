"""Paired significance tests of two runs over the same documents: McNemar, permutation, Holm, detectable effect.

The unit is the document, and values of one document stay together: intervals are over documents with both outputs;
tests exchange the two outputs of a document (under the null hypothesis it does not matter which run they are from).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray

from exitbench.results.statistics.bounded_mean import lower_bound, upper_bound
from exitbench.results.statistics.intervals import (
    LEVEL,
    PERCENT,
    Aggregate,
    Floats,
    Interval,
    jackknife,
    point,
    standard_error,
    t_quantile,
)

EXACT_DOCUMENTS: Final = 16
"""Up to this many differing documents, all exchanges are evaluated: at most 65,536."""
DRAWS: Final = 20_000
"""Number of exchanges evaluated beyond that: the observed one and random ones, so p is a multiple of 1 / DRAWS."""
POWER: Final = 0.8
LEAST_DIFFERING: Final = 6
"""Minimum documents that differ in one direction for a test to reject at 5%: 2 / 2 ** 6 is less, 2 / 2 ** 5 more."""
NOTHING_DIFFERS: Final = "no document differs"
_BLOCK_ENTRIES: Final = 4_000_000
_ROUNDING: Final = 1e-9


@dataclass(frozen=True)
class Difference:
    """Comparison of run B with run A in one metric over the same documents.

    Attributes:
        a: Metric of run A.
        b: Metric of run B.
        delta: b - a with its paired interval.
        p: Two-sided p-value for the hypothesis of no difference.
        test: Name of the test that gave p, or `NOTHING_DIFFERS`.
        detectable: Smallest true difference that the test detects at 5%, two-sided, with 80% power, at the observed
            spread. None if it detects none (fewer than `LEAST_DIFFERING` documents), or if no document differs.
    """

    a: float
    b: float
    delta: Interval
    p: float
    test: str
    detectable: float | None


def difference(
    rows_a: Floats,
    rows_b: Floats,
    aggregate: Aggregate,
    *,
    seed: int,
    scale: float | None = PERCENT[1],
    largest: float = 0.0,
) -> Difference:
    """Compare two runs in one metric.

    Args:
        rows_a: Statistics of run A, one row per document, [n, S], n at least 1.
        rows_b: Statistics of run B for the same documents in the same order, [n, S].
        aggregate: Function from statistics summed over documents to the metric.
        seed: Seed of the permutation test.
        scale: Size of the metric's scale, from the smallest to the largest value; None if it has none.
        largest: Largest contribution of one document to the difference (`pooled.largest_contribution`); 0 if unknown.
    """
    n, width = rows_a.shape
    a, b = (float(aggregate(rows.sum(axis=0), np.asarray(float(n)))) for rows in (rows_a, rows_b))

    def delta(total: Floats, count: Floats) -> Floats:
        value: Floats = aggregate(total[..., width:], count) - aggregate(total[..., :width], count)
        return value

    if n == 1:
        interval, detectable = point(b - a, n), None
    else:
        # Contributions of the documents to the difference; their mean is the difference.
        contributions = b - a + jackknife(np.concatenate([rows_a, rows_b], axis=1), delta)
        interval = difference_interval(b - a, contributions, scale, largest)
        detectable = detectable_effect(contributions, differs=(rows_a != rows_b).any(axis=1))
    if np.array_equal(rows_a, rows_b):
        return Difference(a, b, interval, 1.0, NOTHING_DIFFERS, None)
    p, test = permutation_test(rows_a, rows_b, aggregate, seed=seed)
    return Difference(a, b, interval, p, test, detectable)


def binary_difference(right_a: Floats, right_b: Floats) -> Difference:
    """Compare two runs in a binary metric, from its value for each document and run, 0 or 100, [n]."""
    n, gained, lost = len(right_a), int((right_a < right_b).sum()), int((right_a > right_b).sum())
    a, b = float(right_a.mean()), float(right_b.mean())
    interval = point(b - a, n) if n == 1 else difference_interval(b - a, right_b - right_a)
    if not gained + lost:
        return Difference(a, b, interval, 1.0, NOTHING_DIFFERS, None)
    share = detectable_share(n, (gained + lost) / n)
    detectable = None if share is None else PERCENT[1] * share
    return Difference(a, b, interval, mcnemar(gained, lost), "McNemar, exact", detectable)


def difference_interval(
    value: float, contributions: Floats, scale: float | None = PERCENT[1], largest: float = 0.0
) -> Interval:
    """Return the paired 95% interval of the difference between two runs in a metric.

    On a bounded scale, each end is Gaffke's bound (`bounded_mean`), which adds one document that gains or loses the
    most that one document can: the whole scale, or more in a corpus metric. So the interval also holds for rare large
    losses, and a document with a larger loss never raises the lower end. Without a scale it is Student's t, and no
    interval if no document differs.

    Args:
        value: Difference between the two runs.
        contributions: Contribution of each document to the difference, [n], n at least 2; their mean is the difference.
        scale: Size of the metric's scale, from the smallest to the largest value; None if it has none.
        largest: Largest contribution of one document (`pooled.largest_contribution`), if it may exceed the scale.
    """
    n = len(contributions)
    if scale is None:
        reach = standard_error(contributions) * t_quantile(n)
        return Interval(value, value - reach, value + reach, "Student's t", n) if reach > 0 else point(value, n)
    greatest = max(scale, largest, float(np.abs(contributions).max()))
    low, high = lower_bound(contributions, -greatest), upper_bound(contributions, greatest)
    return Interval(value, max(-scale, min(value, low)), min(scale, max(value, high)), "Gaffke", n)


def mcnemar(gained: int, lost: int) -> float:
    """Return McNemar's exact two-sided p-value from the numbers of documents that only B, or only A, got right.

    Under the null hypothesis each of these documents is a fair coin, so this is a symmetric binomial test.

    >>> round(mcnemar(gained=1, lost=9), 4)
    0.0215
    """
    from scipy.special import bdtr

    return min(1.0, 2 * float(bdtr(min(gained, lost), gained + lost, 0.5)))


def permutation_test(rows_a: Floats, rows_b: Floats, aggregate: Aggregate, *, seed: int) -> tuple[float, str]:
    """Test whether two runs differ in a metric by exchanging their outputs; return two-sided p-value and test's name.

    For a mean this is the sign-flip test; for a corpus metric, the statistics are summed and aggregated for every
    exchange. The test is exact up to `EXACT_DOCUMENTS` documents that differ, else it draws `DRAWS` exchanges.

    Args:
        rows_a: Statistics of run A, one row per document, [n, S].
        rows_b: Statistics of run B for the same documents in the same order, [n, S].
        aggregate: Function from summed statistics to the metric.
        seed: Seed of the random exchanges.
    """
    change = rows_b - rows_a
    change = change[change.any(axis=1)]
    n_differ, count = len(change), np.asarray(float(len(rows_a)))
    total_a, total_b = rows_a.sum(axis=0), rows_b.sum(axis=0)
    a, b = float(aggregate(total_a, count)), float(aggregate(total_b, count))
    reached = abs(b - a) - _ROUNDING * (abs(a) + abs(b))

    def count_at_least_as_far(exchanged: Floats) -> int:
        """Return the number of exchanges (rows of 0 and 1) for which the runs differ at least as much as observed."""
        shift = exchanged @ change
        counts = np.full(len(shift), count)
        return int((np.abs(aggregate(total_b - shift, counts) - aggregate(total_a + shift, counts)) >= reached).sum())

    if n_differ <= EXACT_DOCUMENTS:
        codes = np.arange(2**n_differ)
        exchanged = ((codes[:, None] >> np.arange(n_differ)) & 1).astype(np.float64)
        return count_at_least_as_far(exchanged) / 2**n_differ, "permutation, exact"
    rng = np.random.default_rng(seed)
    block_rows = max(1, _BLOCK_ENTRIES // n_differ)
    n_reaching = 1
    for start in range(1, DRAWS, block_rows):
        rows = min(block_rows, DRAWS - start)
        n_reaching += count_at_least_as_far(rng.integers(2, size=(rows, n_differ)).astype(np.float64))
    return n_reaching / DRAWS, f"permutation, {DRAWS:,} draws"


def detectable_effect(contributions: Floats, differs: NDArray[np.bool_]) -> float | None:
    """Return the smallest true difference that the permutation test detects at 5%, two-sided, with 80% power.

    None if no document differs, or there are too few documents to detect any difference. The result is based on
    Student's t, but at least the difference at which `LEAST_DIFFERING` documents differ in one direction.

    Args:
        contributions: Contribution of each document to the observed difference, [n].
        differs: True if the document's two outputs differ, [n].
    """
    from scipy.special import betaincinv

    n = len(contributions)
    if n < LEAST_DIFFERING or not differs.any():
        return None
    error = standard_error(contributions)
    # Probability of a document to differ in one direction at which `LEAST_DIFFERING` of them do so with 80%
    # probability.
    chance = float(betaincinv(LEAST_DIFFERING, n - LEAST_DIFFERING + 1, POWER))
    return max(
        (t_quantile(n) + t_quantile(n, POWER)) * error,
        NormalDist().inv_cdf(chance) * error * float(np.sqrt(n)),
        chance * float(np.abs(contributions[differs]).mean()),
    )


def detectable_share(n: int, discordant: float) -> float | None:
    """Return the smallest difference of two shares that McNemar's exact test detects at 5%, two-sided, with 80% power.

    Args:
        n: Number of documents.
        discordant: Share of documents that only one run got right. It is raised to the difference if it is smaller.

    Returns:
        The difference, 0..1; None if no difference is detected with this power.
    """
    from scipy.special import bdtr, bdtrik, gammaln, xlog1py, xlogy

    if n < LEAST_DIFFERING:
        return None
    differ = np.arange(LEAST_DIFFERING, n + 1)
    # Per number of differing documents, the largest count on the smaller side for which the test rejects.
    fewest = np.floor(bdtrik((1 - LEVEL) / 2, differ, 0.5))
    fewest -= bdtr(fewest, differ, 0.5) > (1 - LEVEL) / 2
    ways = gammaln(n + 1) - gammaln(differ + 1) - gammaln(n - differ + 1)

    def power(share: float) -> float:
        share_differing = max(share, discordant)
        gains = (1 + share / share_differing) / 2
        chances = np.exp(ways + xlogy(differ, share_differing) + xlog1py(n - differ, -share_differing))
        return float(chances @ (bdtr(fewest, differ, 1 - gains) + bdtr(fewest, differ, gains)))

    low, high = 0.0, 1.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (low, middle) if power(middle) >= POWER else (middle, high)
    return high


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted by Holm's method, in the given order; they control the family-wise error rate.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]

    Source: Holm (1979), A simple sequentially rejective multiple test procedure.
    """
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted
