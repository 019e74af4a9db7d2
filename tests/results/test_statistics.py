"""Intervals: what holds for every input, what is known for some, and what is not claimed for too few documents."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exitbench.results.statistics import aggregate_interval, bootstrap_weights, mean_interval, ratio_interval

N_BOOT = 200
values = st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=20)
times = st.lists(st.integers(1, 10**10), min_size=2, max_size=20)
seeds = st.integers(0, 2**32)


@given(values, seeds)
def test_an_interval_holds_its_estimate(sample: list[float], seed: int) -> None:
    interval = mean_interval(sample, seed=seed, n_boot=N_BOOT)
    assert interval.low <= interval.value <= interval.high
    assert interval.value == pytest.approx(np.mean(sample), abs=1e-6)


@given(values, seeds)
def test_an_interval_of_a_mean_lies_within_the_values(sample: list[float], seed: int) -> None:
    interval = mean_interval(sample, seed=seed, n_boot=N_BOOT)
    slack = 1e-9 * max(map(abs, sample))
    assert min(sample) - slack <= interval.low <= interval.high <= max(sample) + slack


@given(times, seeds)
def test_a_ratio_of_equal_times_is_exactly_one(sample: list[int], seed: int) -> None:
    interval = ratio_interval(sample, sample, seed=seed, n_boot=N_BOOT)
    assert (interval.low, interval.value, interval.high) == (1.0, 1.0, 1.0)


@given(times, st.integers(2, 9), seeds)
def test_a_constant_factor_is_found_exactly_whatever_the_spread(sample: list[int], factor: int, seed: int) -> None:
    interval = ratio_interval([factor * ns for ns in sample], sample, seed=seed, n_boot=N_BOOT)
    assert (interval.low, interval.value, interval.high) == (factor, factor, factor)


@given(times, st.data())
def test_a_ratio_is_of_sums_over_documents(full: list[int], data: st.DataObject) -> None:
    method = data.draw(st.lists(st.integers(1, 10**10), min_size=len(full), max_size=len(full)))
    interval = ratio_interval(full, method, seed=0, n_boot=N_BOOT)
    assert interval.value == pytest.approx(sum(full) / sum(method))
    assert interval.low <= interval.value <= interval.high


@given(values, seeds)
@settings(max_examples=20)
def test_equal_seeds_give_equal_intervals(sample: list[float], seed: int) -> None:
    assert mean_interval(sample, seed=seed, n_boot=N_BOOT) == mean_interval(sample, seed=seed, n_boot=N_BOOT)


@given(values)
@settings(max_examples=20)
def test_a_mean_is_the_aggregate_of_sums(sample: list[float]) -> None:
    column = np.array(sample)[:, None]
    aggregated = aggregate_interval(column, lambda total, n: total[..., 0] / n, seed=1, n_boot=N_BOOT)
    assert aggregated == mean_interval(sample, seed=1, n_boot=N_BOOT)


def test_every_resample_draws_as_many_documents_as_there_are() -> None:
    weights = np.concatenate(list(bootstrap_weights(7, 1000, seed=0)))
    assert weights.shape == (1000, 7)
    assert (weights.sum(axis=1) == 7).all()
    assert weights.mean() == 1
    assert weights.var() == pytest.approx(6 / 7, rel=0.05)


def test_blocks_of_resamples_are_bounded_in_memory() -> None:
    shapes = [block.shape for block in bootstrap_weights(1_000_000, 5, seed=0)]
    assert shapes == [(2, 1_000_000), (2, 1_000_000), (1, 1_000_000)]


def test_the_interval_of_a_mean_covers_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    samples = rng.normal(size=(300, 60))
    intervals = [mean_interval(sample, seed=i, n_boot=400) for i, sample in enumerate(samples)]
    covered = np.mean([interval.low <= 0 <= interval.high for interval in intervals])
    assert 0.90 <= covered <= 0.98


def test_pairing_removes_what_documents_share() -> None:
    rng = np.random.default_rng(0)
    full = rng.integers(10**6, 10**9, size=40)
    paired = ratio_interval(full, full // 2, seed=0)
    shuffled = ratio_interval(full, rng.permutation(full // 2), seed=0)
    assert paired.high - paired.low < 1e-5 < shuffled.high - shuffled.low


def test_a_corpus_metric_is_computed_anew_from_each_resamples_sums() -> None:
    # A geometric mean of two rates, which is no mean over documents.
    statistics = np.array([[1, 4], [3, 4], [2, 2], [0, 5]], dtype=float)
    interval = aggregate_interval(statistics, lambda total, n: np.sqrt(total[..., 0] * total[..., 1]) / n, seed=0)
    assert interval.value == pytest.approx(math.sqrt(6 * 15) / 4)
    assert interval.low < interval.value < interval.high
    assert interval.method == "bootstrap-percentile-10000"


def test_an_interval_is_widened_to_hold_a_biased_estimate() -> None:
    # Distinct documents are never more in a resample than in the whole: every resample is at or below the estimate.
    statistics = np.eye(30)
    interval = aggregate_interval(statistics, lambda total, n: (total > 0).sum(axis=-1).astype(float), seed=0)
    assert interval.low < 25
    assert interval.high == interval.value == 30


@pytest.mark.parametrize("level", [0.5, 0.99])
def test_a_wider_level_gives_a_wider_interval(level: float) -> None:
    at_95, other = (mean_interval(range(20), seed=0, level=chosen) for chosen in (0.95, level))
    assert (other.high - other.low > at_95.high - at_95.low) == (level > 0.95)


def test_one_document_has_an_estimate_and_no_interval() -> None:
    for interval in (mean_interval([4.0], seed=0), ratio_interval([8], [2], seed=0)):
        assert (interval.value, interval.low, interval.high, interval.method, interval.n) == (4.0, None, None, None, 1)


def test_no_document_has_neither() -> None:
    for interval in (mean_interval([], seed=0), ratio_interval([], [], seed=0)):
        assert math.isnan(interval.value)
        assert (interval.low, interval.high, interval.n) == (None, None, 0)


def test_a_ratio_over_nothing_is_undefined() -> None:
    interval = ratio_interval([1, 2], [0, 0], seed=0)
    assert math.isnan(interval.value)
    assert (interval.low, interval.high) == (None, None)


def test_resamples_over_nothing_are_left_out() -> None:
    interval = ratio_interval([0, 3, 0], [0, 1, 0], seed=0)
    assert (interval.low, interval.value, interval.high) == (3, 3, 3)


@pytest.mark.parametrize(
    ("full", "method", "message"),
    [
        ([1, 2], [1], "same documents: 2 against 1"),
        ([1, 2], [1, -1], "negative"),
        ([1, math.inf], [1, 1], "full has entries that are not finite"),
        ([[1], [2]], [1, 1], "full has 2 dimensions"),
    ],
)
def test_a_ratio_of_what_does_not_pair_is_refused(full: list[float], method: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ratio_interval(full, method, seed=0)
