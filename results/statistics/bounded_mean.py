"""Bounds of a bounded mean that also hold for rare large values that are not in the sample.

A full loss on one document in a hundred is missed by most samples of forty documents. Intervals based on the spread of
the sample (Student's t, a bootstrap, a likelihood ratio) then stay far from the true mean. Gaffke's bound adds one
document with the largest loss and takes

    the upper 97.5 % quantile of  W_1 x_1 + ... + W_n x_n + W_(n+1) * greatest,   W uniform on the simplex.

For binary values it is the bound of Clopper and Pearson. It never decreases if a value increases, so more evidence of
loss never tightens it. Coverage for every bounded distribution is proved for special cases only, and otherwise
supported by simulation, here in `tests/results/statistics/test_coverage.py`.

Sources: Gaffke (2005), Three test statistics for a nonparametric one-sided hypothesis on the mean of a nonnegative
variable. Learned-Miller and Thomas (2020), A new confidence interval for the mean of a bounded random variable. The
quantile is computed by inverting the characteristic function (Imhof, 1961).
"""

import math
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

TAIL: Final = 0.025
"""Probability of a mean above the bound: that of one end of a 95 % interval."""

_LOG_FREQUENCIES: Final = np.linspace(-14.0, 14.0, 351)
_STEP: Final = float(_LOG_FREQUENCIES[1] - _LOG_FREQUENCIES[0])
_MOST_DISTINCT: Final = 256
"""In 1,500 normal, log-normal or Student-distributed values, merging moved a bound by at most 0.05 % of its distance to
the mean."""


def upper_bound(values: ArrayLike, greatest: float) -> float:
    """Return an upper confidence bound of the mean over all possible documents, from a sample of documents.

    Args:
        values: Value of each document in the sample, [n], n at least 1, none above `greatest`.
        greatest: Largest possible value of a document.

    Example:
        >>> round(upper_bound([0.0] * 100, 1.0), 4)  # nothing lost in 100 documents: the rule of three
        0.0362
    """
    from scipy.optimize import brentq

    sample = np.asarray(values, dtype=np.float64)
    levels, counts = _distinct(np.append(sample, greatest))
    n_weights = counts.sum()
    mean = float(counts @ levels / n_weights)
    spread = float(np.sqrt(counts @ (levels - mean) ** 2 / (n_weights * (n_weights + 1))))
    if spread <= 1e-12 * max(1.0, abs(greatest)):
        return greatest
    # Cantelli's inequality: no quantile lies farther from the mean.
    farthest = min(greatest, mean + spread * math.sqrt(1 / TAIL - 1))

    def excess(bound: float) -> float:
        return _chance_above(levels - bound, counts) - TAIL

    if excess(farthest) >= 0:
        return farthest
    bound: float = brentq(excess, mean, farthest, xtol=1e-5 * spread)
    return bound


def least_upper_bound(n: int) -> float:
    """Return the upper bound of the mean loss, 0..1, if none of n documents has one: the smallest that n can give."""
    return 1.0 - float(TAIL ** (1 / n))


def documents_to_bound(loss: float) -> int:
    """Return how many documents, all without loss, are needed to bound the mean loss by `loss`, above 0 and below 1."""
    return math.ceil(math.log(TAIL) / math.log1p(-loss))


def lower_bound(values: ArrayLike, least: float) -> float:
    """Return a lower confidence bound of the mean over all possible documents, from a sample [n], none below `least`.

    Arguments as in `upper_bound`.
    """
    return -upper_bound(-np.asarray(values, dtype=np.float64), -least)


def _distinct(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the distinct values and their counts; if there are too many, neighbouring values are replaced by means."""
    levels, counts = np.unique(values, return_counts=True)
    if len(levels) <= _MOST_DISTINCT:
        return levels, counts
    # The last level, the largest possible value, may lie far from the others and stays alone.
    edges = np.linspace(levels[0], levels[-2], _MOST_DISTINCT - 1)
    place = np.digitize(levels, edges, right=True)
    merged = np.bincount(place, counts)
    sums = np.bincount(place, counts * levels)
    nonempty = merged > 0
    return sums[nonempty] / merged[nonempty], merged[nonempty].astype(np.int64)


def _chance_above(distances: NDArray[np.float64], counts: NDArray[np.int64]) -> float:
    """Return the probability that the sum of distances, each with an independent exponential weight, is above 0.

    Args:
        distances: Distinct distances, [k].
        counts: How often each distance occurs in the sum, [k].
    """
    scale = np.sqrt(counts @ distances**2)
    products = np.exp(_LOG_FREQUENCIES)[:, None] * (distances / scale)
    angle = np.arctan(products) @ counts
    size = np.exp(-0.5 * (np.log1p(products**2) @ counts))
    return 0.5 + float(np.sin(angle) @ size) * _STEP / np.pi
