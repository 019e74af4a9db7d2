"""95% confidence intervals over documents: for means, corpus metrics, shares, and ratios of sums.

The unit is the document; values of one document are summed first. The kinds of intervals were chosen by simulation
(tests/results/statistics/test_coverage.py asserts the coverage of each, from 5 to 200 documents):

- Binary values per document: Clopper-Pearson's exact interval, which covers 95% or more.
- Bounded values (a score, a share, a mean exit layer), also of corpus metrics: Korn and Graubard's interval, which is
  Clopper-Pearson's for the number of documents that gives the jackknife's standard error, reduced by the width of
  Student's t. It stays on the scale, and is asymmetric near its ends.
- Values without a scale (a perplexity, a log-likelihood per byte): Student's t of the jackknife.
- Ratios of sums, such as speed-ups: Student's t of the jackknife on the logarithm, or a studentised bootstrap if it
  reaches further, at most 1.3 times as far. The first alone is too narrow for skewed documents, the second for few
  documents. Without the limit one outlying document makes the bootstrap reach to 1e50.
- If no document differs, the spread is unknown: other documents may differ, anywhere on the scale, up to the share that
  can remain unseen in n documents (about 3.7 / n: the rule of three, two-sided). Without a scale there is no interval.
  No interval has a width of 0.

Sources: Clopper and Pearson (1934); Korn and Graubard (1998), Confidence intervals for proportions with small expected
number of positive counts; Efron and Tibshirani (1993), An introduction to the bootstrap, sections 11 and 12.5.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Aggregate = Callable[[Floats, Floats], NDArray[np.floating]]
"""Function from summed statistics [..., S] and document counts [...] to values [...]."""
Bounds = tuple[float, float]

N_BOOT: Final = 10_000
LEVEL: Final = 0.95
PERCENT: Final[Bounds] = (0.0, 100.0)
SHARE: Final[Bounds] = (0.0, 1.0)
NONE_DIFFERS: Final = "no document differs"
"""Method of the interval if no document differs: based on the share of unseen documents that may differ."""
_TAIL: Final = (1 - LEVEL) / 2
_EQUAL: Final = 1e-7
# With fewer documents too many resamples consist of one or two of them, and the spread is arbitrary.
_LEAST_RESAMPLED: Final = 5
# Upper limit of the bootstrap's reach, relative to Student's t.
_FURTHEST: Final = 1.3
_BLOCK_ENTRIES: Final = 2_000_000


@dataclass(frozen=True)
class Interval:
    """Estimate with its 95% interval.

    Attributes:
        value: Estimate over all documents; NaN if undefined (no documents, or division by zero).
        low: Lower end; None if undefined: fewer than two documents, or no difference and no scale.
        high: Upper end; None if `low` is None.
        method: Name of the interval's method; None without an interval.
        n: Number of documents.
    """

    value: float
    low: float | None
    high: float | None
    method: str | None
    n: int


def mean_interval(values: ArrayLike, bounds: Bounds) -> Interval:
    """Return the mean of per-document `values` [n], each within `bounds`, with its interval."""
    column = _documents(values, "values", ndim=1)[:, None]
    return aggregate_interval(column, lambda total, n: total[..., 0] / n, bounds)


def aggregate_interval(statistics: ArrayLike, aggregate: Aggregate, bounds: Bounds | None = PERCENT) -> Interval:
    """Return a corpus metric, computed from sums over documents, with its 95% interval.

    Args:
        statistics: Statistics to be summed, one row per document, [n, S].
        aggregate: Maps summed statistics [..., S] and document counts [...] to metric values [...].
        bounds: Smallest and largest possible value of the metric; None if unbounded.

    Raises:
        ValueError: `statistics` is not two-dimensional or not finite.
    """
    rows = _documents(statistics, "statistics", ndim=2)
    n = len(rows)
    if n == 0:
        return point(float("nan"), 0)
    value = float(aggregate(rows.sum(axis=0), np.asarray(float(n))))
    if n == 1:
        return point(value, 1)
    if bounds is None:
        return _unbounded(value, jackknife(rows, aggregate))
    if rows.shape[1] == 1 and np.isin(rows, bounds).all() and np.isclose(value, rows.mean()):
        return _on_scale(value, *clopper_pearson(_share(value, bounds), n), bounds, "Clopper-Pearson", n)
    return _bounded(value, jackknife(rows, aggregate), bounds)


def bounded_ratio_interval(numerator: ArrayLike, denominator: ArrayLike, bounds: Bounds = SHARE) -> Interval:
    """Return a ratio of sums on a bounded scale, such as a share of tokens or a mean over tokens, with its interval.

    Args:
        numerator: Numerator per document, [n].
        denominator: Denominator per document, [n], not negative.
        bounds: Smallest and largest possible value of the ratio.

    Raises:
        ValueError: As for `ratio_interval`.
    """
    rows = _pairs(numerator, denominator)
    value = float(_ratio_of_sums(rows.sum(axis=0), np.asarray(float(len(rows)))))
    if len(rows) < 2 or np.isnan(value):
        return point(value, len(rows))
    return _bounded(value, jackknife(rows, _ratio_of_sums), bounds)


def ratio_interval(numerator: ArrayLike, denominator: ArrayLike, *, seed: int, n_boot: int = N_BOOT) -> Interval:
    """Return the ratio of sums ``sum(numerator) / sum(denominator)`` over the same documents, with its paired interval.

    For a speed-up, both are nanoseconds per document: full depth's in `numerator`, the method's in `denominator`.

    Args:
        numerator: Numerator per document, [n].
        denominator: Denominator per document, [n], not negative.
        seed: Seed of the resamples.
        n_boot: Number of resamples.

    Raises:
        ValueError: The two differ in length, a value is not finite, or a denominator is negative.
    """
    return product_interval(_pairs(numerator, denominator), (1, -1), seed=seed, n_boot=n_boot)


def product_interval(rows: Floats, powers: Sequence[int], *, seed: int, n_boot: int = N_BOOT) -> Interval:
    """Sum each column over documents, raise each sum to its power, and multiply; return the product with its interval.

    A ratio of ratios is an example.

    Args:
        rows: Values to sum: n documents, S columns, [n, S].
        powers: One exponent per column; they sum to 0, so the product has no unit.
        seed: Seed of the resamples.
        n_boot: Number of resamples.
    """
    n, exponents = len(rows), np.asarray(powers, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        # Without documents, or with a sum of 0 in the denominator, the value is undefined.
        value = float(np.prod(rows.sum(axis=0) ** exponents)) if n else float("nan")
        if not np.isfinite(value):
            return point(float("nan"), n)
        if n < 2 or value <= 0:
            return point(value, n)
        influence = jackknife(rows, lambda total, _n: np.log(total) @ exponents)
        error = standard_error(influence)
        # NaN if all but one document are 0.
        if not error > _EQUAL:
            return point(value, n)
        reach = t_quantile(n)
        reach_low = reach_high = reach
        if n >= _LEAST_RESAMPLED:
            lower_quantile, upper_quantile = np.quantile(
                _studentised(rows, exponents, seed, n_boot), [_TAIL, 1 - _TAIL]
            )
            reach_low, reach_high = np.clip([upper_quantile, -lower_quantile], reach, _FURTHEST * reach)
        low, high = float(value * np.exp(-error * reach_low)), float(value * np.exp(error * reach_high))
    if low == 0 or np.isinf(high):
        return point(value, n)
    return Interval(value, low, high, f"Student's t of the logarithm, studentised-bootstrap-{n_boot}", n)


def _studentised(rows: Floats, powers: Floats, seed: int, n_boot: int) -> Floats:
    """Return, per bootstrap resample, the error of the product's logarithm over its standard error, [n_boot] or fewer.

    Resamples without spread, such as n copies of one document, are left out. Arguments as in `product_interval`.
    """
    n, width = rows.shape
    # Relative to the totals, so that squares of numbers of any size keep their precision.
    parts = rows / rows.sum(axis=0)
    squares = (parts[:, :, None] * parts[:, None, :]).reshape(n, width * width)
    blocks = []
    for weights in bootstrap_weights(n, n_boot, seed):
        totals = weights @ parts
        slopes = powers / totals
        variance = np.einsum("bs,bst,bt->b", slopes, (weights @ squares).reshape(-1, width, width), slopes)
        error = np.sqrt(np.maximum(variance, 0) * n / (n - 1))
        blocks.append(np.where(error > _EQUAL, np.log(totals) @ powers / error, np.nan))
    studentised = np.concatenate(blocks)
    studentised = studentised[np.isfinite(studentised)]
    return studentised if len(studentised) else np.zeros(1)


def bootstrap_weights(n: int, n_boot: int, seed: int) -> Iterator[Floats]:
    """Yield bootstrap resamples in blocks, [resamples, n]: how often each of n documents is drawn, n draws in total.

    Args:
        n: Number of documents, at least 1.
        n_boot: Number of resamples in all blocks together.
        seed: Seed of the resamples.
    """
    block_rows = max(1, _BLOCK_ENTRIES // n)
    if n_boot <= block_rows:
        yield _cached_resamples(n, n_boot, seed)
        return
    rng = np.random.default_rng(seed)
    for start in range(0, n_boot, block_rows):
        yield _counts(rng, n, min(block_rows, n_boot - start))


@functools.lru_cache(1)
def _cached_resamples(n: int, rows: int, seed: int) -> Floats:
    """Return all resamples of `bootstrap_weights` in one block; cached, since all ratios of a cell use the same."""
    counts = _counts(np.random.default_rng(seed), n, rows)
    counts.flags.writeable = False
    return counts


def _counts(rng: np.random.Generator, n: int, rows: int) -> Floats:
    drawn = rng.integers(n, size=(rows, n)) + n * np.arange(rows)[:, None]
    return np.bincount(drawn.ravel(), minlength=rows * n).reshape(rows, n).astype(np.float64)


def jackknife(rows: Floats, aggregate: Aggregate) -> Floats:
    """Return each document's influence on a metric, [n]; for a mean, this is the document's deviation from the mean.

    The standard deviation of the influences, divided by the root of n, is the jackknife's standard error.

    Args:
        rows: Statistics to be summed, one row per document, [n, S], n at least 2.
        aggregate: Maps summed statistics [..., S] and document counts [...] to metric values [...].
    """
    n = len(rows)
    left_out_values = np.asarray(aggregate(rows.sum(axis=0) - rows, np.full(n, n - 1.0)), dtype=np.float64)
    influences: Floats = (n - 1) * (left_out_values.mean() - left_out_values)
    return influences


def clopper_pearson(share: float, n: float) -> tuple[float, float]:
    """Return the exact 95% interval of a binomial probability, given the share of successes in n trials.

    n may be fractional.
    """
    from scipy.special import betaincinv  # a quarter of a second that other commands should not wait for

    hits, misses = share * n, (1 - share) * n
    low = float(betaincinv(hits, misses + 1, _TAIL)) if hits > 0 else 0.0
    high = float(betaincinv(hits + 1, misses, 1 - _TAIL)) if misses > 0 else 1.0
    return min(low, share), max(high, share)


def korn_graubard(share: float, influence: Floats) -> tuple[float, float]:
    """Return Korn and Graubard's 95% interval of a share, 0..1, from the influence of each document.

    Args:
        share: The estimate, 0..1.
        influence: Result of `jackknife` for the share, [n].
    """
    n, error = len(influence), standard_error(influence)
    if not error > _EQUAL or not 0 < share < 1:
        unseen = 1 - _TAIL ** (1 / n)
        return share * (1 - unseen), share + (1 - share) * unseen
    wider = NormalDist().inv_cdf(1 - _TAIL) / t_quantile(n)
    return clopper_pearson(share, share * (1 - share) / error**2 * wider**2)


def _bounded(value: float, influence: Floats, bounds: Bounds) -> Interval:
    """Return the interval of a value on a bounded scale, from each document's influence (`jackknife`), [n]."""
    n, (least, greatest) = len(influence), bounds
    relative, share = influence / (greatest - least), _share(value, bounds)
    if not 0 <= share <= 1 or not np.isfinite(relative).all():
        return point(value, n)
    differs = standard_error(relative) > _EQUAL
    return _on_scale(value, *korn_graubard(share, relative), bounds, "Korn-Graubard" if differs else NONE_DIFFERS, n)


def _unbounded(value: float, influence: Floats) -> Interval:
    """Return the interval of a value without a scale, from each document's influence (`jackknife`), [n]."""
    n, error = len(influence), standard_error(influence)
    if not np.isfinite(error) or not error > _EQUAL * abs(value):
        return point(value, n)
    reach = error * t_quantile(n)
    return Interval(value, value - reach, value + reach, "Student's t of the jackknife", n)


def _on_scale(value: float, low: float, high: float, bounds: Bounds, method: str, n: int) -> Interval:
    """Return the interval of a value on the scale `bounds`, from the ends `low` and `high` of the interval on 0..1.

    The interval contains the value in spite of rounding.
    """
    least, span = bounds[0], bounds[1] - bounds[0]
    return Interval(value, min(value, least + span * low), max(value, least + span * high), method, n)


def _share(value: float, bounds: Bounds) -> float:
    share = (value - bounds[0]) / (bounds[1] - bounds[0])
    # Rounding of sums over many documents may exceed the end of the scale.
    return float(np.clip(share, 0, 1)) if -_EQUAL < share < 1 + _EQUAL else share


def standard_error(influence: Floats) -> float:
    """Return the jackknife's standard error of a metric, from each document's influence (`jackknife`), [n]."""
    return float(influence.std(ddof=1) / np.sqrt(len(influence)))


def t_quantile(n: int, probability: float = 1 - _TAIL) -> float:
    """Return Student's t quantile for the mean of n documents, with n - 1 degrees of freedom.

    The default `probability` gives the half-width of a 95% interval in standard errors.
    """
    from scipy.special import stdtrit

    return float(stdtrit(n - 1, probability))


def point(value: float, n: int) -> Interval:
    """Return a point estimate from n documents, without an interval."""
    return Interval(value, None, None, None, n)


def _pairs(numerator: ArrayLike, denominator: ArrayLike) -> Floats:
    numerators = _documents(numerator, "numerator", ndim=1)
    denominators = _documents(denominator, "denominator", ndim=1)
    if len(numerators) != len(denominators):
        raise ValueError(f"a paired ratio needs the same documents: {len(numerators)} against {len(denominators)}")
    if (denominators < 0).any():
        raise ValueError("the denominator of a ratio of sums has negative entries")
    return np.stack([numerators, denominators], axis=1)


def _ratio_of_sums(total: Floats, n: Floats) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
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


def as_sums(rows: Floats, aggregate: Aggregate) -> tuple[Floats, Aggregate]:
    """Return one row of numbers per document, and the function from the sum of the rows to the metric.

    For a metric that is no function of sums, such as a rank correlation, the rows are one-hot: each document has its
    own column, so a sum of rows is the count of each document. In this way, intervals and tests need only sums.

    Args:
        rows: Statistics of each document, [n, S].
        aggregate: Function from summed statistics to the metric. If it has a true attribute `of_columns`, its arguments
            are instead the statistics of all documents and the count of each document, [..., n].
    """
    if not getattr(aggregate, "of_columns", False):
        return rows, aggregate
    return np.eye(len(rows)), lambda total, n: aggregate(rows, total)


def paired_as_sums(rows_a: Floats, rows_b: Floats, aggregate: Aggregate) -> tuple[Floats, Floats, Aggregate]:
    """Return rows of numbers per document for runs A and B, and the function from a sum of rows to the metric.

    As in `as_sums`, a metric that is no function of sums gets one-hot rows, whose sum counts each document. A document
    with equal statistics in both runs has equal rows.
    """
    n = len(rows_a)
    rows, from_sums = as_sums(np.concatenate([rows_a, rows_b]), aggregate)
    differs = (rows_a != rows_b).any(axis=1, keepdims=True)
    return rows[:n], np.where(differs, rows[n:], rows[:n]), from_sums
