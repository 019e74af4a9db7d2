"""Metrics that are not means over documents: the contribution of each document to BLEU, F1 or a correlation.

Tasks define these metrics (`exitbench.tasks`) and store the statistics of each document. Here the metrics are defined
again, to compute them with a document left out: `results` cannot import tasks. Tests check that both definitions agree.
"""

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from exitbench.results.statistics.intervals import Aggregate, Floats, jackknife


def contributions(metric: str, statistics: Floats) -> Floats | None:
    """Return each document's contribution to a metric: the metric's value plus the document's jackknife influence, [n].

    The mean of the contributions is the metric's value.

    Args:
        metric: Name of the metric.
        statistics: Statistics that the task stores for each document, [n, S].

    Returns:
        The contributions; None if this module does not compute the metric from S statistics, or if n is below 2.

    Examples:
        >>> contributions("f1", np.array([[1.0, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]])).round(3).tolist()
        [1.117, 1.117, 0.217, 0.217]
    """
    aggregate = _AGGREGATES.get((metric, statistics.shape[-1]))
    if aggregate is None or len(statistics) < 2:
        return None
    value = float(aggregate(statistics.sum(axis=0), np.asarray(float(len(statistics)))))
    document_values: Floats = value + jackknife(statistics, aggregate)
    return document_values


def largest_contribution(metric: str, statistics: Floats) -> float:
    """Return the largest contribution of one document to the difference between two runs in a metric.

    This is n times the change in the metric if one document's answer changes from one extreme to the other. It may
    exceed the metric's scale: with few positive labels, one answer changes F1 by more than 1 / n.

    Args:
        metric: Name of the metric.
        statistics: Statistics of one run, as in `contributions`, [n, S].

    Returns:
        The largest contribution over the documents of the run; 0 if this module does not compute the metric.

    Examples:
        >>> largest_contribution("f1", np.array([[1.0, 0, 0, 0]] + [[0.0, 0, 0, 1]] * 9))  # one positive label of ten
        10.0
    """
    key, n = (metric, statistics.shape[-1]), len(statistics)
    if key not in _AGGREGATES:
        return 0.0
    total, counts = statistics.sum(axis=0), np.full(n, float(n))
    least, most = (_AGGREGATES[key](total - statistics + rows, counts) for rows in _EXTREMES[key](statistics))
    return n * float(np.abs(most - least).max())


def _bleu(total: Floats, _: Floats) -> Floats:
    """Return corpus BLEU, 0..1, with the smoothing of mteval-v13a (as in sacrebleu).

    Args:
        total: Sums over documents, [..., 10]: length of the answers, length of the references, number of matching
            n-grams for n = 1 to 4, number of n-grams in the answers for n = 1 to 4.
    """
    lengths, matches, grams = total[..., :2], total[..., 2:6], total[..., 6:]
    smoothed = np.where(matches == 0, 0.5 ** np.cumsum(matches == 0, axis=-1), matches)
    with np.errstate(divide="ignore", invalid="ignore"):
        brevity = np.minimum(1.0, np.exp(1 - lengths[..., 1] / lengths[..., 0]))
        score = brevity * np.exp(np.log(smoothed / grams).mean(axis=-1))
    return np.where(matches.any(axis=-1) & grams.all(axis=-1), score, 0.0)


def _f1(total: Floats, _: Floats) -> Floats:
    """Return F1 from true positives, false positives, false negatives and true negatives, [..., 4]."""
    hits, false, missed, _rest = np.moveaxis(total, -1, 0)
    return _ratio(2 * hits, 2 * hits + false + missed)


def _matthews(total: Floats, _: Floats) -> Floats:
    """Return the Matthews correlation from true and false positives, and false and true negatives, [..., 4]."""
    tp, fp, fn, tn = np.moveaxis(total, -1, 0)
    return _ratio(tp * tn - fp * fn, np.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)))


def _pearson(total: Floats, n: Floats) -> Floats:
    """Return Pearson's correlation from sums of x, y, x², y² and xy over n documents, [..., 5]."""
    x, y, xx, yy, xy = np.moveaxis(total, -1, 0)
    return _ratio(n * xy - x * y, np.sqrt(np.maximum(n * xx - x * x, 0) * np.maximum(n * yy - y * y, 0)))


def _ratio(numerator: Floats, denominator: Floats) -> Floats:
    ratio: Floats = np.zeros(np.shape(numerator))
    np.divide(numerator, denominator, out=ratio, where=np.asarray(denominator) > 0)
    return ratio


_AGGREGATES: Final[Mapping[tuple[str, int], Aggregate]] = {
    ("bleu", 10): _bleu,
    ("f1", 4): _f1,
    ("mcc", 4): _matthews,
    ("pearson", 5): _pearson,
}
"""Metrics by name and width of the statistics."""


def _right_and_wrong(rows: Floats) -> tuple[Floats, Floats]:
    """Return the counts of the labels given, and of the opposite labels: `confusion` of each document, [n, 4]."""
    return rows, rows[:, [2, 3, 0, 1]]


def _least_and_most_similar(rows: Floats) -> tuple[Floats, Floats]:
    """Return BLEU's statistics of answers of the same lengths in which no n-gram matches, and in which all do."""
    lengths, grams = rows[:, :2], rows[:, 6:]
    return np.hstack([lengths, 0 * grams, grams]), np.hstack([lengths, grams, grams])


def _least_and_greatest(rows: Floats) -> tuple[Floats, Floats]:
    """Return Pearson's statistics of each document with the run's least, and with its greatest, prediction."""
    gold = rows[:, 0]

    def predicted(y: float) -> Floats:
        return np.stack([gold, np.full_like(gold, y), gold**2, np.full_like(gold, y * y), gold * y], axis=1)

    return predicted(rows[:, 1].min()), predicted(rows[:, 1].max())


_EXTREMES: Final[Mapping[tuple[str, int], Callable[[Floats], tuple[Floats, Floats]]]] = {
    ("bleu", 10): _least_and_most_similar,
    ("f1", 4): _right_and_wrong,
    ("mcc", 4): _right_and_wrong,
    ("pearson", 5): _least_and_greatest,
}
"""Statistics of the two extreme answers to each document, for the keys of `_AGGREGATES`."""
