"""GLUE's metrics: functions of sums over documents; and of ranks, which no sums tell, of how often each counts.

On the 0..100 scale, correlations on -100..100. Where one side is constant it tells nothing of the other: a correlation
is 0 then, as Matthews' is by convention, and not NaN.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
_CONSTANT: Final = 1e-12
"""A share of a sum of squares that is rounding."""


def confusion(gold: int, predicted: int) -> list[float]:
    """Return true positives, false positives, false negatives and true negatives of one document of classes 0 and 1."""
    return [
        float(gold == 1 == predicted),
        float(gold == 0 and predicted == 1),
        float(gold == 1 and predicted == 0),
        float(gold == 0 == predicted),
    ]


def f1(total: FloatArray) -> FloatArray:
    """Return F1 of class 1 from sums [..., 4] of `confusion`; 0 where there is no positive at all."""
    hits, false, missed, _ = np.moveaxis(total, -1, 0)
    return 100 * _divided(2 * hits, 2 * hits + false + missed)


def matthews(total: FloatArray) -> FloatArray:
    """Return Matthews' correlation from sums [..., 4] of `confusion`."""
    tp, fp, fn, tn = np.moveaxis(total, -1, 0)
    return 100 * _divided(tp * tn - fp * fn, np.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)))


def moments(gold: float, predicted: float) -> list[float]:
    """Return what `pearson` sums of one document, [5]."""
    return [gold, predicted, gold * gold, predicted * predicted, gold * predicted]


def pearson(total: FloatArray, n: FloatArray) -> FloatArray:
    """Return Pearson's correlation from sums [..., 5] of `moments` over [...] documents."""
    x, y, xx, yy, xy = np.moveaxis(total, -1, 0)
    spread_x, spread_y = (
        np.where(n * squares - total_ * total_ > _CONSTANT * n * squares, n * squares - total_ * total_, 0)
        for total_, squares in ((x, xx), (y, yy))
    )
    return 100 * np.clip(_divided(n * xy - x * y, np.sqrt(spread_x * spread_y)), -1, 1)


def spearman(rows: FloatArray, counts: FloatArray) -> FloatArray:
    """Return Spearman's correlation, Pearson's of ranks (means of ranks where several are equal).

    Args:
        rows: Gold and predicted value of each document, [n, 2].
        counts: How often each counts, [..., n].
    """
    gold, predicted = (_ranks(column, counts) for column in rows.T)
    products = (gold, predicted, gold * gold, predicted * predicted, gold * predicted)
    total = np.stack([(counts * product).sum(-1) for product in products], axis=-1)
    return pearson(total, counts.sum(-1))


spearman.of_columns = True  # type: ignore[attr-defined]


def _ranks(values: FloatArray, counts: FloatArray) -> FloatArray:
    """Ranks [..., n] of values [n] that each count [..., n] times, from half of all below to half of all above 0."""
    _, place = np.unique(values, return_inverse=True)
    order = np.argsort(place, kind="stable")
    starts = np.flatnonzero(np.diff(place[order], prepend=-1))
    group = np.add.reduceat(counts[..., order], starts, axis=-1)
    middle = np.cumsum(group, axis=-1) - (group + counts.sum(-1, keepdims=True)) / 2
    ranks: FloatArray = middle[..., place]
    return ranks


def _divided(above: FloatArray, below: FloatArray) -> FloatArray:
    ratio: FloatArray = np.zeros(np.broadcast(above, below).shape)
    np.divide(above, below, out=ratio, where=np.asarray(below) > 0)
    return ratio
