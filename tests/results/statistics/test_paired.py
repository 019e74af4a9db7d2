"""Paired differences: compared with slow enumerations of the definitions, and properties for every pair of runs."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exitbench.results.statistics import paired
from exitbench.results.statistics.paired import (
    DRAWS,
    EXACT_DOCUMENTS,
    LEAST_DIFFERING,
    binary_difference,
    detectable_effect,
    detectable_share,
    difference,
    difference_interval,
    holm,
    mcnemar,
    permutation_test,
)

scores = st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), min_size=1, max_size=8)
rights = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=9)
p_values = st.lists(st.floats(0, 1), min_size=1, max_size=8)


def mean(total: np.ndarray, n: np.ndarray) -> np.ndarray:
    return total[..., 0] / n


def geometric(total: np.ndarray, n: np.ndarray) -> np.ndarray:
    """Return a corpus metric of two counts that is not a mean over documents, like BLEU."""
    return np.sqrt(total[..., 0] * total[..., 1]) / n


def columns(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    a, b = np.array(pairs, dtype=float).T
    return a[:, None], b[:, None]


def slow_permutation(rows_a: np.ndarray, rows_b: np.ndarray, aggregate: paired.Aggregate) -> float:
    """Return the exact p-value by exchanging the two outputs of every document in every possible way."""
    n = np.asarray(float(len(rows_a)))
    observed = abs(aggregate(rows_b.sum(axis=0), n) - aggregate(rows_a.sum(axis=0), n))
    far = 0
    for flags in itertools.product([False, True], repeat=len(rows_a)):
        first = sum(b if flag else a for a, b, flag in zip(rows_a, rows_b, flags, strict=True))
        second = sum(a if flag else b for a, b, flag in zip(rows_a, rows_b, flags, strict=True))
        far += abs(aggregate(second, n) - aggregate(first, n)) >= observed - 1e-9
    return far / 2 ** len(rows_a)


@given(scores)
def test_permutation_p_of_a_mean_equals_the_share_of_extreme_sign_flips(pairs: list[tuple[int, int]]) -> None:
    d = [b - a for a, b in pairs]
    flips = [sum(s * x for s, x in zip(signs, d, strict=True)) for signs in itertools.product([1, -1], repeat=len(d))]
    expected = sum(abs(flip) >= abs(sum(d)) for flip in flips) / len(flips)
    p, test = permutation_test(*columns(pairs), mean, seed=0)
    assert p == pytest.approx(expected)
    assert test == "permutation, exact"


@given(st.lists(st.tuples(*[st.integers(0, 9)] * 4), min_size=1, max_size=7))
def test_permutation_test_of_a_corpus_metric_reaggregates_every_exchange(rows: list[tuple[int, int, int, int]]) -> None:
    array = np.array(rows, dtype=float)
    rows_a, rows_b = array[:, :2], array[:, 2:]
    assert permutation_test(rows_a, rows_b, geometric, seed=0)[0] == pytest.approx(
        slow_permutation(rows_a, rows_b, geometric)
    )


@given(rights)
def test_mcnemar_equals_the_sign_flip_test_of_binary_scores(pairs: list[tuple[bool, bool]]) -> None:
    a, b = (100.0 * np.array(column) for column in zip(*pairs, strict=True))
    result = binary_difference(a, b)
    assert result.test == ("no document differs" if (a == b).all() else "McNemar, exact")
    assert result.p == pytest.approx(permutation_test(a[:, None], b[:, None], mean, seed=0)[0])


@given(st.integers(0, 30), st.integers(0, 30))
def test_mcnemar_is_the_two_sided_binomial_test(gained: int, lost: int) -> None:
    n = gained + lost
    far = sum(math.comb(n, k) for k in range(n + 1) if abs(2 * k - n) >= abs(gained - lost))
    assert mcnemar(gained, lost) == pytest.approx(far / 2**n)


def test_mcnemar_of_very_many_documents_does_not_overflow() -> None:
    assert mcnemar(3000, 2800) == pytest.approx(0.0090, abs=0.0003)  # normal: z = 199 / sqrt(5800) = 2.613


@given(scores, st.integers(0, 99))
@settings(max_examples=30)
def test_exchanging_the_runs_flips_the_sign_and_nothing_else(pairs: list[tuple[int, int]], seed: int) -> None:
    rows_a, rows_b = columns(pairs)
    forward = difference(rows_a, rows_b, mean, seed=seed)
    backward = difference(rows_b, rows_a, mean, seed=seed)
    assert (forward.delta.value, forward.p, forward.a, forward.b) == (
        -backward.delta.value,
        backward.p,
        backward.b,
        backward.a,
    )
    assert [forward.detectable] == pytest.approx([backward.detectable])
    if len(pairs) > 1:
        assert (forward.delta.low, forward.delta.high) == pytest.approx(
            (-backward.delta.high, -backward.delta.low), abs=1e-9
        )
        assert forward.delta.low <= forward.delta.value <= forward.delta.high


@given(scores)
@settings(max_examples=30)
def test_a_run_does_not_differ_from_itself(pairs: list[tuple[int, int]]) -> None:
    rows, _ = columns(pairs)
    result = difference(rows, rows, mean, seed=0)
    assert (result.delta.value, result.p) == (0, 1)
    assert (result.test, result.detectable) == ("no document differs", None)
    if len(pairs) > 1:
        # As many documents may differ, by all there is, as could have stayed unseen.
        unseen = 100 * (1 - 0.025 ** (1 / len(pairs)))
        assert (result.delta.low, result.delta.high) == pytest.approx((-unseen, unseen), abs=1e-3)


def test_equal_binary_scores_report_no_difference() -> None:
    right = np.array([0.0, 100.0, 100.0])
    result = binary_difference(right, right)
    assert (result.p, result.test, result.detectable) == (1, "no document differs", None)


def test_many_documents_use_sampled_permutations_and_report_their_number() -> None:
    rng = np.random.default_rng(0)
    rows_a = rng.normal(size=(3 * EXACT_DOCUMENTS, 1))
    # All differences are equal: of 2 ** 48 exchanges only all and none lie as far, and the observed one is counted.
    assert permutation_test(rows_a, rows_a + 1, mean, seed=0) == (1 / DRAWS, "permutation, 20,000 draws")


def test_sampled_permutations_agree_with_all_exchanges(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    rows_a = rng.integers(0, 100, size=(12, 1)).astype(float)
    rows_b = rows_a + rng.integers(-10, 20, size=(12, 1))
    exact, _ = permutation_test(rows_a, rows_b, mean, seed=0)
    monkeypatch.setattr(paired, "EXACT_DOCUMENTS", 0)
    drawn, _ = permutation_test(rows_a, rows_b, mean, seed=0)
    assert drawn == pytest.approx(exact, abs=4 * math.sqrt(exact / DRAWS))


def test_permutation_test_rejects_a_true_null_at_the_nominal_rate() -> None:
    rng = np.random.default_rng(2)
    result = [permutation_test(*rng.normal(size=(2, 10, 1)), mean, seed=0)[0] for _ in range(400)]
    assert np.mean(np.array(result) <= 0.05) == pytest.approx(0.05, abs=0.03)


@pytest.mark.parametrize(("n", "tolerance"), [(8, 0.06), (10, 0.04), (12, 0.04)])
def test_detectable_effect_is_found_with_80_percent_power(n: int, tolerance: float) -> None:
    """It is found by the exact permutation test, whose p-value cannot be small for few documents."""
    samples = 4000
    noise = np.random.default_rng(n).normal(size=(samples, n))
    # The typical promise of samples with this spread, which has an error of its own.
    typical = noise[0] - noise[0].mean()
    effect = detectable_effect(typical / typical.std(ddof=1), np.ones(n, dtype=bool))
    signs = 1 - 2 * ((np.arange(2 ** (n - 1))[:, None] >> np.arange(n)) & 1)
    moved = (noise + effect) @ signs.T
    p = (np.abs(moved) >= np.abs(moved[:, :1]) - 1e-9).mean(axis=1)
    assert (p <= 0.05).mean() == pytest.approx(0.8, abs=tolerance)


@pytest.mark.parametrize("discordant", [0.05, 0.1, 0.3])
@pytest.mark.parametrize("n", [6, 10, 16, 40, 100, 400])
def test_mcnemar_finds_the_detectable_share_with_80_percent_power(n: int, discordant: float) -> None:
    share = detectable_share(n, discordant)
    rng = np.random.default_rng(n)
    lower_bound = max(share, discordant)
    chances = [(lower_bound + share) / 2, (lower_bound - share) / 2, max(0.0, 1 - lower_bound)]
    drawn = rng.multinomial(n, chances, size=2000)
    p = np.array([mcnemar(int(gained), int(lost)) for gained, lost, _ in drawn])
    assert (p <= 0.05).mean() == pytest.approx(0.8, abs=0.03)


def test_no_detectable_difference_below_the_minimum_document_count() -> None:
    assert detectable_share(LEAST_DIFFERING - 1, 0.2) is None
    assert detectable_effect(np.arange(5.0), np.ones(5, dtype=bool)) is None
    assert detectable_share(LEAST_DIFFERING, 0.2) == pytest.approx(0.8 ** (1 / 6), abs=1e-5)


def test_detectable_share_of_many_documents_approaches_the_normal_test() -> None:
    for n in (400, 2000):
        normal = (1.959964 + 0.841621) * math.sqrt(0.2 / n)
        assert normal < detectable_share(n, 0.2) < 1.08 * normal


def test_detectable_effect_of_a_mean_follows_its_standard_error() -> None:
    rows_a, rows_b = np.zeros((200, 1)), np.random.default_rng(4).normal(size=(200, 1))
    expected = (1.959964 + 0.841621) * rows_b.std() / math.sqrt(200)
    assert difference(rows_a, rows_b, mean, seed=0).detectable == pytest.approx(expected, rel=0.02)


def test_detectable_effect_assumes_at_least_six_differing_documents() -> None:
    rows_b = np.zeros((40, 1))
    rows_b[:2] = 50.0
    result = difference(np.zeros((40, 1)), rows_b, mean, seed=0)
    # Two documents of 40 that differ by 50 points; to see six such at least, a fifth of them must do so.
    assert result.detectable > 6 / 40 * 50


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=20))
def test_difference_interval_contains_the_difference_within_the_scale(moved: list[float]) -> None:
    value = float(np.mean(moved))
    interval = difference_interval(value, np.array(moved))
    assert -100 <= interval.low <= value <= interval.high <= 100
    assert interval.high > interval.low


def test_one_document_has_a_difference_and_no_interval() -> None:
    result = difference(np.array([[1.0]]), np.array([[3.0]]), mean, seed=0)
    assert (result.delta.value, result.delta.low, result.delta.high, result.detectable, result.p) == (
        2,
        None,
        None,
        None,
        1,
    )


def test_holm_matches_a_hand_computed_example() -> None:
    # 4 * 0.01 = 0.04; 3 * 0.015 = 0.045; 2 * 0.03 = 0.06; 1 * 0.04 is below the one before.
    assert holm([0.04, 0.01, 0.03, 0.015]) == pytest.approx([0.06, 0.04, 0.06, 0.045])
    assert holm([]) == []


@given(p_values)
def test_holm_never_lowers_a_p_value_and_lies_below_bonferroni(family: list[float]) -> None:
    for p, adjusted in zip(family, holm(family), strict=True):
        assert p <= adjusted <= min(1, len(family) * p) or math.isclose(adjusted, p)
