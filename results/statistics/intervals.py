"""95% confidence intervals over documents: of means, of corpus metrics, of shares and of ratios of sums.

The unit is the document; what belongs to one document is summed first. Which interval is taken was chosen by simulation
(tests/results/statistics/test_coverage.py asserts what each of them covers, from 5 to 200 documents):

- All or nothing for a document: Clopper-Pearson's exact interval, which covers 95% or more.
- Bounded (a score, a share, a mean exit layer), corpus metrics too: Korn and Graubard's, which is Clopper-Pearson's
  for as many documents as would make the jackknife's standard error, fewer where Student's t is wide. It stays
  on the scale, and is lopsided near its ends.
- Without a scale (a perplexity, a log-likelihood a byte): Student's t of the jackknife.
- Ratios of sums, such as speed-ups: Student's t of the jackknife on the logarithm, and a studentised bootstrap where
  that reaches further, up to 1.3 times as far. The first alone is too narrow for skewed documents, the second for few.
  Without the limit one document unlike the others makes the bootstrap reach to 1e50.
- Where no document differs, nothing tells the spread: others may differ, anywhere on the scale, in as large a share of
  documents as could have stayed unseen (about 3.7 / n: the rule of three, two-sided). Without a scale there is no
  interval. None has a width of 0.

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
"""Maps summed statistics [..., S] and document counts [...] to values [...]."""
Bounds = tuple[float, float]

N_BOOT: Final = 10_000
LEVEL: Final = 0.95
PERCENT: Final[Bounds] = (0.0, 100.0)
SHARE: Final[Bounds] = (0.0, 1.0)
NONE_DIFFERS: Final = "no document differs"
"""How the interval is made where no document moves the value: of the share of others that may."""
_TAIL: Final = (1 - LEVEL) / 2
_EQUAL: Final = 1e-7
# Fewer documents have too many resamples of one or two of them, of which nearly anything can be the spread.
_LEAST_RESAMPLED: Final = 5
# The bootstrap reaches this much further than Student's t at most.
_FURTHEST: Final = 1.3
_BLOCK_ENTRIES: Final = 2_000_000


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95% interval.

    Attributes:
        value: The estimate over all documents; NaN where it is undefined (no documents, nothing to divide by).
        low: Lower end; None where fewer than two documents, or no difference and no scale, leave nothing to go by.
        high: Upper end; None likewise.
        method: How the interval was made; None without one.
        n: Documents.
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
    """Return a corpus metric with its interval.

    Args:
        statistics: Per-document statistics that add up, [n, S].
        aggregate: Maps summed statistics [..., S] and document counts [...] to metric values [...].
        bounds: Least and greatest value that the metric can have; None where it has none.

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


def bounded_ratio_interval(above: ArrayLike, below: ArrayLike, bounds: Bounds = SHARE) -> Interval:
    """Return a ratio of sums as `ratio_interval` does, where it lies on a scale: a share of tokens, a mean over them.

    Args:
        above: Numerator per document, [n].
        below: Denominator per document, [n], not negative.
        bounds: Least and greatest value that the ratio can have.

    Raises:
        ValueError: As `ratio_interval`.
    """
    rows = _pairs(above, below)
    value = float(_ratio_of_sums(rows.sum(axis=0), np.asarray(float(len(rows)))))
    if len(rows) < 2 or np.isnan(value):
        return point(value, len(rows))
    return _bounded(value, jackknife(rows, _ratio_of_sums), bounds)


def ratio_interval(above: ArrayLike, below: ArrayLike, *, seed: int, n_boot: int = N_BOOT) -> Interval:
    """Return the ratio of sums ``sum(above) / sum(below)`` over the same documents, with its paired interval.

    A speed-up, when both are nanoseconds per document: full depth's above, the method's below.

    Args:
        above: Numerator per document, [n].
        below: Denominator per document, [n], not negative.
        seed: Seed of the resamples.
        n_boot: Resamples.

    Raises:
        ValueError: The two differ in length, a value is not finite, or a denominator is negative.
    """
    return product_interval(_pairs(above, below), (1, -1), seed=seed, n_boot=n_boot)


def product_interval(rows: Floats, powers: Sequence[int], *, seed: int, n_boot: int = N_BOOT) -> Interval:
    """Return the product of powers of sums over documents, such as a ratio of ratios, with its interval.

    Args:
        rows: What is summed, [n, S].
        powers: One a column, adding up to 0: the product has no unit.
        seed: Seed of the resamples.
        n_boot: Resamples.
    """
    n, exponents = len(rows), np.asarray(powers, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        # A sum of no documents, and one over nothing, is no number.
        value = float(np.prod(rows.sum(axis=0) ** exponents)) if n else float("nan")
        if not np.isfinite(value):
            return point(float("nan"), n)
        if n < 2 or value <= 0:
            return point(value, n)
        influence = jackknife(rows, lambda total, _n: np.log(total) @ exponents)
        error = standard_error(influence)
        # NaN where one document is all there is.
        if not error > _EQUAL:
            return point(value, n)
        reach = t_quantile(n)
        reach_low = reach_high = reach
        if n >= _LEAST_RESAMPLED:
            below, above = np.quantile(_studentised(rows, exponents, seed, n_boot), [_TAIL, 1 - _TAIL])
            reach_low, reach_high = np.clip([above, -below], reach, _FURTHEST * reach)
        low, high = float(value * np.exp(-error * reach_low)), float(value * np.exp(error * reach_high))
    if low == 0 or np.isinf(high):
        return point(value, n)
    return Interval(value, low, high, f"Student's t of the logarithm, studentised-bootstrap-{n_boot}", n)


def _studentised(rows: Floats, powers: Floats, seed: int, n_boot: int) -> Floats:
    """By how many of its own standard errors the logarithm of each resample's product is off, [n_boot] or fewer.

    Resamples without a spread, such as one document over and over, say nothing and are left out.
    """
    n, width = rows.shape
    # Relative to the totals, so that numbers of any size are squared without loss.
    parts = rows / rows.sum(axis=0)
    squares = (parts[:, :, None] * parts[:, None, :]).reshape(n, width * width)
    found = []
    for weights in bootstrap_weights(n, n_boot, seed):
        totals = weights @ parts
        slopes = powers / totals
        variance = np.einsum("bs,bst,bt->b", slopes, (weights @ squares).reshape(-1, width, width), slopes)
        error = np.sqrt(np.maximum(variance, 0) * n / (n - 1))
        found.append(np.where(error > _EQUAL, np.log(totals) @ powers / error, np.nan))
    studentised = np.concatenate(found)
    studentised = studentised[np.isfinite(studentised)]
    return studentised if len(studentised) else np.zeros(1)


def bootstrap_weights(n: int, n_boot: int, seed: int) -> Iterator[Floats]:
    """Yield the bootstrap's counts in blocks of rows, [rows, n], `n_boot` rows in all, each summing to `n`.

    Args:
        n: Documents, at least 1.
        n_boot: Resamples.
        seed: Seed of the draws.
    """
    block_rows = max(1, _BLOCK_ENTRIES // n)
    if n_boot <= block_rows:
        yield _only_block(n, n_boot, seed)
        return
    rng = np.random.default_rng(seed)
    for start in range(0, n_boot, block_rows):
        yield _counts(rng, n, min(block_rows, n_boot - start))


@functools.lru_cache(1)
def _only_block(n: int, rows: int, seed: int) -> Floats:
    """The counts of all resamples, where they are few enough to be kept: a cell's ratios are resampled alike."""
    counts = _counts(np.random.default_rng(seed), n, rows)
    counts.flags.writeable = False
    return counts


def _counts(rng: np.random.Generator, n: int, rows: int) -> Floats:
    drawn = rng.integers(n, size=(rows, n)) + n * np.arange(rows)[:, None]
    return np.bincount(drawn.ravel(), minlength=rows * n).reshape(rows, n).astype(np.float64)


def jackknife(rows: Floats, aggregate: Aggregate) -> Floats:
    """Return how much each document moves a metric, [n]: of a mean, by how far the document is from it.

    Their standard deviation over the root of n is the jackknife's standard error.

    Args:
        rows: Per-document statistics that add up, [n, S], n at least 2.
        aggregate: As in `aggregate_interval`.
    """
    n = len(rows)
    without = np.asarray(aggregate(rows.sum(axis=0) - rows, np.full(n, n - 1.0)), dtype=np.float64)
    moved: Floats = (n - 1) * (without.mean() - without)
    return moved


def clopper_pearson(share: float, n: float) -> tuple[float, float]:
    """Return the exact interval of a binomial probability from `share` of `n` trials, 0..1; n need not be whole."""
    from scipy.special import betaincinv  # a quarter of a second that no other command should wait for

    hits, misses = share * n, (1 - share) * n
    low = float(betaincinv(hits, misses + 1, _TAIL)) if hits > 0 else 0.0
    high = float(betaincinv(hits + 1, misses, 1 - _TAIL)) if misses > 0 else 1.0
    return min(low, share), max(high, share)


def korn_graubard(share: float, influence: Floats) -> tuple[float, float]:
    """Return the interval of a share, 0..1, by documents that each count for as much as they move it.

    Args:
        share: The estimate, 0..1.
        influence: As `jackknife` returns it for the share, [n].
    """
    n, error = len(influence), standard_error(influence)
    if not error > _EQUAL or not 0 < share < 1:
        unseen = 1 - _TAIL ** (1 / n)
        return share * (1 - unseen), share + (1 - share) * unseen
    wider = NormalDist().inv_cdf(1 - _TAIL) / t_quantile(n)
    return clopper_pearson(share, share * (1 - share) / error**2 * wider**2)


def _bounded(value: float, influence: Floats, bounds: Bounds) -> Interval:
    """The interval of a value on a scale, from how much each document moves it, [n]."""
    n, (least, greatest) = len(influence), bounds
    relative, share = influence / (greatest - least), _share(value, bounds)
    if not 0 <= share <= 1 or not np.isfinite(relative).all():
        return point(value, n)
    differs = standard_error(relative) > _EQUAL
    return _on_scale(value, *korn_graubard(share, relative), bounds, "Korn-Graubard" if differs else NONE_DIFFERS, n)


def _unbounded(value: float, influence: Floats) -> Interval:
    """The interval of a value without a scale, from how much each document moves it, [n]."""
    n, error = len(influence), standard_error(influence)
    if not np.isfinite(error) or not error > _EQUAL * abs(value):
        return point(value, n)
    reach = error * t_quantile(n)
    return Interval(value, value - reach, value + reach, "Student's t of the jackknife", n)


def _on_scale(value: float, low: float, high: float, bounds: Bounds, method: str, n: int) -> Interval:
    """An interval of a share, 0..1, on the scale of its value, which it holds in spite of rounding."""
    least, span = bounds[0], bounds[1] - bounds[0]
    return Interval(value, min(value, least + span * low), max(value, least + span * high), method, n)


def _share(value: float, bounds: Bounds) -> float:
    share = (value - bounds[0]) / (bounds[1] - bounds[0])
    # Sums of many documents can miss an end of the scale by their last digits.
    return float(np.clip(share, 0, 1)) if -_EQUAL < share < 1 + _EQUAL else share


def standard_error(influence: Floats) -> float:
    """Return the jackknife's standard error, from how much each document moves a value, [n]."""
    return float(influence.std(ddof=1) / np.sqrt(len(influence)))


def t_quantile(n: int, probability: float = 1 - _TAIL) -> float:
    """Return the quantile of Student's t for the mean of n documents."""
    from scipy.special import stdtrit

    return float(stdtrit(n - 1, probability))


def point(value: float, n: int) -> Interval:
    """Return a point estimate from n documents, without an interval."""
    return Interval(value, None, None, None, n)


def _pairs(above: ArrayLike, below: ArrayLike) -> Floats:
    numerator, denominator = _documents(above, "above", ndim=1), _documents(below, "below", ndim=1)
    if len(numerator) != len(denominator):
        raise ValueError(f"a paired ratio needs the same documents: {len(numerator)} against {len(denominator)}")
    if (denominator < 0).any():
        raise ValueError("the denominator of a ratio of sums has negative entries")
    return np.stack([numerator, denominator], axis=1)


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
    """Return rows that add up, and what turns their sums into the metric.

    Of a metric that no sums tell, such as a rank correlation, which document it is is summed: each has a column of its
    own, so that a sum says how often each one counts, and intervals and tests need to know of nothing but sums.

    Args:
        rows: Documents' statistics, [n, S].
        aggregate: Of sums; or, where it has a true attribute `of_columns`, of these statistics and how often each of
            them counts, [..., n].
    """
    if not getattr(aggregate, "of_columns", False):
        return rows, aggregate
    return np.eye(len(rows)), lambda total, n: aggregate(rows, total)


def paired_as_sums(rows_a: Floats, rows_b: Floats, aggregate: Aggregate) -> tuple[Floats, Floats, Aggregate]:
    """Return rows of two runs over the same documents that add up; those that were equal still are."""
    n = len(rows_a)
    rows, of_sums = as_sums(np.concatenate([rows_a, rows_b]), aggregate)
    differs = (rows_a != rows_b).any(axis=1, keepdims=True)
    return rows[:n], np.where(differs, rows[n:], rows[:n]), of_sums
