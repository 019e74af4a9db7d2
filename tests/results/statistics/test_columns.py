"""A metric computed from columns has the same intervals and tests as the same metric computed from sums."""

import numpy as np
import pytest

from exitbench.results.statistics.intervals import aggregate_interval, as_sums, paired_as_sums
from exitbench.results.statistics.paired import NOTHING_DIFFERS, difference

RNG = np.random.default_rng(0)
RUN_A, RUN_B = RNG.integers(1, 100, size=(2, 30, 2)).astype(float)
RUN_B[:12] = RUN_A[:12]


def of_sums(total, n):
    """Return a ratio of sums, on 0..100."""
    return 100 * total[..., 0] / (total[..., 0] + total[..., 1])


def of_columns(rows, counts):
    """Return the same ratio from the documents' rows, each counted `counts` times."""
    return of_sums(counts @ rows, counts.sum(-1))


of_columns.of_columns = True


def test_metric_of_sums_is_returned_unchanged():
    rows, aggregate = as_sums(RUN_A, of_sums)
    assert rows is RUN_A and aggregate is of_sums


def test_interval_of_a_column_metric_equals_that_of_its_sums():
    wanted, interval = aggregate_interval(RUN_A, of_sums), aggregate_interval(*as_sums(RUN_A, of_columns))
    assert (interval.value, interval.low, interval.high) == pytest.approx((wanted.value, wanted.low, wanted.high))
    assert (interval.method, interval.n) == (wanted.method, 30)


def test_paired_test_of_a_column_metric_equals_that_of_its_sums():
    wanted = difference(RUN_A, RUN_B, of_sums, seed=0)
    result = difference(*paired_as_sums(RUN_A, RUN_B, of_columns), seed=0)
    assert (result.a, result.b, result.p) == pytest.approx((wanted.a, wanted.b, wanted.p))
    assert (result.delta.low, result.delta.high) == pytest.approx((wanted.delta.low, wanted.delta.high))
    assert (result.test, result.detectable) == (wanted.test, pytest.approx(wanted.detectable))


def test_equal_runs_show_no_difference():
    assert difference(*paired_as_sums(RUN_A, RUN_A.copy(), of_columns), seed=0).test == NOTHING_DIFFERS
