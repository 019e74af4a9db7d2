"""Intervals: properties for every input, known values, and no interval for too few documents."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu.metrics import BLEU

from exitbench.results.statistics.intervals import (
    PERCENT,
    SHARE,
    Interval,
    aggregate_interval,
    bootstrap_weights,
    bounded_ratio_interval,
    clopper_pearson,
    jackknife,
    mean_interval,
    product_interval,
    ratio_interval,
)
from exitbench.tasks.translation import Bleu, corpus_bleu

N_BOOT = 200
values = st.lists(st.floats(0, 100), min_size=2, max_size=20)
times = st.lists(st.integers(1, 10**10), min_size=2, max_size=20)
tokens = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=2, max_size=20)
seeds = st.integers(0, 2**32)


def mean_of_percent(sample: list[float]) -> Interval:
    return mean_interval(sample, PERCENT)


@given(values)
def test_mean_interval_contains_the_mean_within_the_scale_and_has_positive_width(sample: list[float]) -> None:
    interval = mean_of_percent(sample)
    assert 0 <= interval.low <= interval.value <= interval.high <= 100 + 1e-9
    assert interval.high > interval.low
    assert interval.value == pytest.approx(np.mean(sample), abs=1e-6)


@given(tokens)
def test_token_share_interval_contains_the_share_within_zero_and_one(
    pairs: list[tuple[int, int]],
) -> None:
    interval = bounded_ratio_interval([a for a, _ in pairs], [a + b for a, b in pairs])
    if interval.low is not None:
        assert 0 <= interval.low <= interval.value <= interval.high <= 1 + 1e-9
        assert interval.high > interval.low


@given(times, st.data(), seeds)
def test_ratio_interval_contains_the_ratio_and_is_not_negative(full: list[int], data: st.DataObject, seed: int) -> None:
    method = data.draw(st.lists(st.integers(1, 10**10), min_size=len(full), max_size=len(full)))
    interval = ratio_interval(full, method, seed=seed, n_boot=N_BOOT)
    assert interval.value == pytest.approx(sum(full) / sum(method))
    if interval.low is not None:
        assert 0 <= interval.low < interval.value < interval.high


@given(values, st.integers(2, 5))
def test_interval_narrows_with_more_documents(sample: list[float], times: int) -> None:
    few, many = mean_of_percent(sample), mean_of_percent(sample * times)
    assert many.high - many.low < few.high - few.low


@given(times, st.integers(2, 9), seeds)
def test_ratio_equal_in_every_document_has_no_interval(sample: list[int], factor: int, seed: int) -> None:
    interval = ratio_interval([factor * ns for ns in sample], sample, seed=seed, n_boot=N_BOOT)
    assert (interval.value, interval.low, interval.high, interval.method) == (pytest.approx(factor), None, None, None)


@given(times, seeds)
@settings(max_examples=20)
def test_swapping_numerator_and_denominator_inverts_the_ratio_interval(sample: list[int], seed: int) -> None:
    other = sample[::-1]
    forward = ratio_interval(sample, other, seed=seed, n_boot=N_BOOT)
    backward = ratio_interval(other, sample, seed=seed, n_boot=N_BOOT)
    if forward.low is not None:
        assert (1 / forward.high, 1 / forward.low) == pytest.approx((backward.low, backward.high), rel=1e-6)


@given(times, seeds)
@settings(max_examples=20)
def test_equal_seeds_give_equal_intervals(sample: list[int], seed: int) -> None:
    first, second = (ratio_interval(sample, sample[::-1], seed=seed, n_boot=N_BOOT) for _ in range(2))
    assert first == second


@given(values)
@settings(max_examples=20)
def test_mean_interval_equals_aggregate_interval_of_sums(sample: list[float]) -> None:
    column = np.array(sample)[:, None]
    assert aggregate_interval(column, lambda total, n: total[..., 0] / n) == mean_of_percent(sample)


def test_every_resample_draws_n_documents() -> None:
    weights = np.concatenate(list(bootstrap_weights(7, 1000, seed=0)))
    assert weights.shape == (1000, 7)
    assert (weights.sum(axis=1) == 7).all()
    assert weights.mean() == 1
    assert weights.var() == pytest.approx(6 / 7, rel=0.05)


def test_few_resamples_are_cached_and_read_only() -> None:
    (drawn,), (redrawn,) = bootstrap_weights(7, 1000, seed=0), bootstrap_weights(7, 1000, seed=0)
    assert redrawn is drawn and not drawn.flags.writeable
    (other,) = bootstrap_weights(7, 1000, seed=1)
    assert (other != drawn).any()


def test_blocks_of_resamples_are_bounded_in_memory() -> None:
    shapes = [block.shape for block in bootstrap_weights(1_000_000, 5, seed=0)]
    assert shapes == [(2, 1_000_000), (2, 1_000_000), (1, 1_000_000)]


@pytest.mark.parametrize(
    ("hits", "n", "low", "high"),
    [
        (0, 10, 0, 0.3085),
        (1, 10, 0.0025, 0.4450),
        (5, 10, 0.1871, 0.8129),
        (10, 10, 0.6915, 1),
        (38, 40, 0.8308, 0.9939),
    ],
)
def test_binary_outcomes_have_the_clopper_pearson_interval(hits: int, n: int, low: float, high: float) -> None:
    # Tables of Clopper-Pearson limits (NIST handbook, R's binom.test).
    interval = mean_of_percent([100.0] * hits + [0.0] * (n - hits))
    assert (interval.low / 100, interval.high / 100) == pytest.approx((low, high), abs=1e-4)
    assert interval.method == "Clopper-Pearson"
    assert clopper_pearson(hits / n, n) == pytest.approx((low, high), abs=1e-4)


@pytest.mark.parametrize(("value", "low", "high"), [(60.0, 60 * 0.05**0.1, 100 - 40 * 0.05**0.1), (0.0, 0, 0)])
def test_interval_of_equal_documents_allows_for_unseen_differences(value: float, low: float, high: float) -> None:
    # Ten documents: with a share of more than 1 - .025 ** .1 = 31% others, one would have been among them.
    unseen = 1 - 0.025**0.1
    interval = aggregate_interval(np.full((10, 2), value / 2), lambda total, n: total.sum(axis=-1) / n)
    assert interval.method == "no document differs"
    assert (interval.low, interval.high) == pytest.approx((value * (1 - unseen), value + (100 - value) * unseen))
    assert low <= high


def test_interval_with_little_variation_equals_students_t() -> None:
    sample = np.random.default_rng(0).normal(50, 1, 8)
    interval = mean_of_percent(sample.tolist())
    half = 2.365 * sample.std(ddof=1) / math.sqrt(8)
    assert (interval.low, interval.high) == pytest.approx((sample.mean() - half, sample.mean() + half), abs=0.05 * half)
    assert interval.method == "Korn-Graubard"


def test_ratio_interval_of_many_similar_documents_equals_students_t_of_the_log_ratio() -> None:
    rng = np.random.default_rng(0)
    full, method = rng.normal(200, 2, 30), rng.normal(100, 1, 30)
    residuals = full / full.mean() - method / method.mean()
    half = 2.045 * residuals.std(ddof=1) / math.sqrt(30)
    interval = ratio_interval(full, method, seed=0)
    assert math.log(interval.value / interval.low) == pytest.approx(half, rel=0.1)
    assert math.log(interval.high / interval.value) == pytest.approx(half, rel=0.1)
    assert math.log(interval.high / interval.low) >= 2 * half * (1 - 1e-3)


def test_single_outlier_widens_the_ratio_interval_boundedly() -> None:
    """Twenty documents are 1.2 times as fast; one took 64 ms longer at full depth. A bootstrap reaches 1e43."""
    full = np.array([2.6 + 0.44 * number for number in range(20)])
    method = full / 1.2 * (1 + 0.01 * (np.arange(20) % 3))
    full[3] += 64
    interval = ratio_interval(full, method, seed=0)
    assert interval.low is not None and interval.high is not None
    assert interval.low < 1.2 < interval.high < 5


def test_pairing_removes_shared_document_variance() -> None:
    rng = np.random.default_rng(0)
    full = rng.integers(10**6, 10**9, size=40)
    method = full // 2 + rng.integers(0, 10**3, size=40)
    paired = ratio_interval(full, method, seed=0)
    shuffled = ratio_interval(full, rng.permutation(method), seed=0)
    assert paired.high - paired.low < 1e-5 < shuffled.high - shuffled.low


def test_corpus_metric_interval_uses_leave_one_out_scores() -> None:
    rng = np.random.default_rng(0)
    words = np.array(["the", "a", "cat", "dog", "sat", "ran", "on", "under", "mat", "tree", "and", "then", "it", "he"])
    references = [" ".join(rng.choice(words, 12)) for _ in range(8)]
    outputs = [" ".join(w if rng.random() < 0.9 else "oh" for w in reference.split()) for reference in references]
    statistics = np.array([Bleu().statistics(a, b) for a, b in zip(outputs, references, strict=True)])

    def corpus(documents: list[int]) -> float:
        return BLEU().corpus_score([outputs[i] for i in documents], [[references[i] for i in documents]]).score

    jackknife_scores = np.array([corpus([i for i in range(8) if i != omitted]) for omitted in range(8)])
    moved = jackknife(statistics, lambda total, _n: corpus_bleu(total))
    assert moved == pytest.approx(7 * (jackknife_scores.mean() - jackknife_scores))
    interval = aggregate_interval(statistics, lambda total, _n: corpus_bleu(total))
    assert interval.value == pytest.approx(corpus(list(range(8))))
    assert 0 <= interval.low < interval.value < interval.high <= 100


def test_a_metric_off_the_scale_has_no_interval() -> None:
    interval = mean_interval([90.0, 130.0], PERCENT)
    assert (interval.value, interval.low) == (110, None)


def test_product_interval_of_a_ratio_of_ratios_contains_their_quotient() -> None:
    rng = np.random.default_rng(0)
    rows = rng.lognormal(size=(12, 4))
    product = product_interval(rows, (-1, 1, 1, -1), seed=0)
    a, b, c, d = rows.sum(axis=0)
    assert product.value == pytest.approx((b / a) * (c / d))
    assert product.low < product.value < product.high


def test_one_document_has_an_estimate_and_no_interval() -> None:
    intervals = (mean_of_percent([4.0]), ratio_interval([8], [2], seed=0), bounded_ratio_interval([8], [2], (1, 9)))
    for interval in intervals:
        assert (interval.value, interval.low, interval.high, interval.method, interval.n) == (4.0, None, None, None, 1)


def test_no_documents_have_neither_estimate_nor_interval() -> None:
    for interval in (mean_of_percent([]), ratio_interval([], [], seed=0), bounded_ratio_interval([], [])):
        assert math.isnan(interval.value)
        assert (interval.low, interval.high, interval.n) == (None, None, 0)


def test_ratio_with_zero_denominator_is_undefined() -> None:
    for interval in (ratio_interval([1, 2], [0, 0], seed=0), bounded_ratio_interval([0, 0], [0, 0])):
        assert math.isnan(interval.value)
        assert (interval.low, interval.high) == (None, None)


def test_single_nonzero_document_gives_no_interval() -> None:
    for interval in (
        ratio_interval([0, 3, 0], [0, 1, 0], seed=0),
        bounded_ratio_interval([0, 3, 0], [0, 1, 0], (1, 9)),
    ):
        assert (interval.value, interval.low, interval.high) == (3, None, None)


@pytest.mark.parametrize(
    ("full", "method", "message"),
    [
        ([1, 2], [1], "same documents: 2 against 1"),
        ([1, 2], [1, -1], "negative"),
        ([1, math.inf], [1, 1], "numerator has entries that are not finite"),
        ([[1], [2]], [1, 1], "numerator has 2 dimensions"),
    ],
)
def test_ratio_of_unpaired_or_invalid_values_is_refused(full: list[float], method: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ratio_interval(full, method, seed=0)
    with pytest.raises(ValueError, match=message):
        bounded_ratio_interval(full, method, SHARE)
