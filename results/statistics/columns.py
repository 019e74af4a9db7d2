"""Metrics that no sums of documents' statistics tell, such as rank correlations, as functions of sums all the same.

What is summed is then which document it is: each has a column of its own, so that a sum says how often each one counts,
and intervals and tests need to know of nothing but sums.
"""

import numpy as np

from exitbench.results.statistics.intervals import Aggregate, Floats


def as_sums(rows: Floats, aggregate: Aggregate) -> tuple[Floats, Aggregate]:
    """Return rows that add up, and what turns their sums into the metric.

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
