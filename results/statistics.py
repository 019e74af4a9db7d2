"""Bootstrap intervals over documents: of means, of corpus metrics, and of ratios of sums.

The unit is the document. A resample draws as many documents as there are, with replacement; what is resampled are
per-document numbers that add up, so that a resample is a row of counts times a matrix, whatever the metric.
Equal `n`, `n_boot` and `seed` give equal resamples, which pairs the intervals of everything over the same documents.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Aggregate = Callable[[Floats, Floats], NDArray[np.floating]]
"""Maps summed statistics [..., S] and document counts [...] to values [...]."""

N_BOOT: Final = 10_000
LEVEL: Final = 0.95
_BLOCK_ENTRIES: Final = 2_000_000


@dataclass(frozen=True)
class Interval:
    """An estimate with its percentile-bootstrap interval.

    Attributes:
        value: The estimate over all documents; NaN where it is undefined (no documents, nothing to divide by).
        low: Lower end; None where fewer than two documents leave nothing to resample.
        high: Upper end; None likewise.
        method: How the interval was made; None without one.
        n: Documents.
    """

    value: float
    low: float | None
    high: float | None
    method: str | None
    n: int


def bootstrap_weights(n: int, n_boot: int, seed: int) -> Iterator[Floats]:
    """Yield the bootstrap's counts in blocks of rows, [rows, n], `n_boot` rows in all, each summing to `n`.

    Args:
        n: Documents, at least 1.
        n_boot: Resamples.
        seed: Seed of the draws.
    """
    rng = np.random.default_rng(seed)
    block_rows = max(1, _BLOCK_ENTRIES // n)
    for start in range(0, n_boot, block_rows):
        rows = min(block_rows, n_boot - start)
        drawn = rng.integers(n, size=(rows, n)) + n * np.arange(rows)[:, None]
        yield np.bincount(drawn.ravel(), minlength=rows * n).reshape(rows, n).astype(np.float64)


def mean_interval(values: ArrayLike, *, seed: int, n_boot: int = N_BOOT, level: float = LEVEL) -> Interval:
    """Return the mean of per-document `values` [n] with its interval."""
    column = _documents(values, "values", ndim=1)[:, None]
    return aggregate_interval(column, lambda total, n: total[..., 0] / n, seed=seed, n_boot=n_boot, level=level)


def aggregate_interval(
    statistics: ArrayLike,
    aggregate: Aggregate,
    *,
    seed: int,
    n_boot: int = N_BOOT,
    level: float = LEVEL,
) -> Interval:
    """Return a corpus metric with its interval.

    Args:
        statistics: Per-document statistics that add up, [n, S].
        aggregate: Maps summed statistics [..., S] and document counts [...] to metric values [...].
        seed: Seed of the resamples.
        n_boot: Resamples.
        level: Coverage of the interval.

    Raises:
        ValueError: `statistics` is not two-dimensional or not finite.
    """
    rows = _documents(statistics, "statistics", ndim=2)
    n = len(rows)
    if n == 0:
        return Interval(float("nan"), None, None, None, 0)
    value = float(aggregate(rows.sum(axis=0), np.asarray(float(n))))
    if n == 1:
        return Interval(value, None, None, None, 1)
    return percentile_interval(value, resamples(rows, aggregate, seed=seed, n_boot=n_boot), n, level)


def resamples(rows: Floats, aggregate: Aggregate, *, seed: int, n_boot: int = N_BOOT) -> NDArray[np.floating]:
    """Return a corpus metric's value in every resample, [n_boot].

    Args:
        rows: Per-document statistics that add up, [n, S], n at least 1.
        aggregate: As in `aggregate_interval`.
        seed: Seed of the resamples.
        n_boot: Resamples.
    """
    totals = np.concatenate([weights @ rows for weights in bootstrap_weights(len(rows), n_boot, seed)])
    return aggregate(totals, np.full(n_boot, float(len(rows))))


def ratio_interval(
    full: ArrayLike, method: ArrayLike, *, seed: int, n_boot: int = N_BOOT, level: float = LEVEL
) -> Interval:
    """Return the ratio of sums ``sum(full) / sum(method)`` over the same documents, with its paired interval.

    A speed-up, when both are nanoseconds per document. Resamples without anything to divide by are left out.

    Args:
        full: Numerator per document, [n].
        method: Denominator per document, [n], not negative.
        seed: Seed of the resamples.
        n_boot: Resamples.
        level: Coverage of the interval.

    Raises:
        ValueError: The two differ in length, a value is not finite, or a denominator is negative.
    """
    above, below = _documents(full, "full", ndim=1), _documents(method, "method", ndim=1)
    if len(above) != len(below):
        raise ValueError(f"a paired ratio needs the same documents: {len(above)} against {len(below)}")
    if (below < 0).any():
        raise ValueError("the denominator of a ratio of sums has negative entries")
    with np.errstate(divide="ignore", invalid="ignore"):
        return aggregate_interval(
            np.stack([above, below], axis=1), _ratio_of_sums, seed=seed, n_boot=n_boot, level=level
        )


def _ratio_of_sums(total: Floats, n: Floats) -> Floats:
    ratio: Floats = np.where(total[..., 1] > 0, total[..., 0] / total[..., 1], np.nan)
    return ratio


def _documents(values: ArrayLike, name: str, ndim: int) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0:
        return array.reshape((0,) * ndim)
    if array.ndim != ndim:
        raise ValueError(f"{name} has {array.ndim} dimensions, not {ndim}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} has entries that are not finite")
    return array


def percentile_interval(value: float, resampled: NDArray[np.floating], n: int, level: float = LEVEL) -> Interval:
    """Return `value` with the percentile interval of its resamples [n_boot], widened to hold it; NaNs are left out."""
    defined = resampled[~np.isnan(resampled)]
    if not len(defined) or np.isnan(value):
        return Interval(value, None, None, None, n)
    low, high = np.quantile(defined, [(1 - level) / 2, (1 + level) / 2])
    # Resampling lowers a corpus metric that rewards variety, so its estimate can lie outside: the interval is widened.
    method = f"bootstrap-percentile-{len(resampled)}"
    return Interval(value, min(float(low), value), max(float(high), value), method, n)
