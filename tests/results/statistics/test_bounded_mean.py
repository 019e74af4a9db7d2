"""Bounds of a bounded mean: equal to slow references, monotone, and valid for rare large losses."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import betaincinv

from exitbench.results.statistics import bounded_mean
from exitbench.results.statistics.bounded_mean import lower_bound, upper_bound
from exitbench.results.statistics.intervals import standard_error, t_quantile

Rng = np.random.Generator


def few_lose_some_all(rng: Rng, n: int) -> np.ndarray:
    """Draw losses in points: 10 % of the documents lose, most of them little, and a fifth of them everything."""
    loses, all_of_it = rng.random(n) < 0.1, rng.random(n) < 0.2
    return np.where(loses, np.where(all_of_it, 100.0, 10 * rng.random(n)), 0.0)


def some_change(rng: Rng, n: int) -> np.ndarray:
    """Draw losses in points: 15 % of the documents change, and 70 % of these lose."""
    return np.where(rng.random(n) < 0.15, np.where(rng.random(n) < 0.7, 1, -1) * 100 * rng.random(n), 0.0)


def all_move_one_loses_all(rng: Rng, n: int) -> np.ndarray:
    """Draw losses around 0 with a spread of one point; one document in a hundred loses everything instead."""
    return np.where(rng.random(n) < 0.01, 100.0, rng.normal(0, 1, n).clip(-100, 100))


def few_lose_evenly(rng: Rng, n: int) -> np.ndarray:
    """Draw losses in points: 5 % of the documents lose, with uniform amounts up to everything."""
    return np.where(rng.random(n) < 0.05, 100 * rng.random(n), 0.0)


LOSSES: dict[str, tuple[Callable[[Rng, int], np.ndarray], float]] = {
    "10 % lose, mostly little, some all": (few_lose_some_all, 0.1 * (0.2 * 100 + 0.8 * 5)),
    "15 % change, 70 % of them lose": (some_change, 0.15 * 0.4 * 50),
    "all move a little, 1 % lose all": (all_move_one_loses_all, 1.0),
    "5 % lose U(0, 100)": (few_lose_evenly, 0.05 * 50),
}
SIZES = (20, 40, 100, 200, 500)


def gaffke(losses: np.ndarray) -> float:
    return upper_bound(losses, 100.0)


def students_t(losses: np.ndarray) -> float:
    """Return an upper bound from Student's t, for comparison: it depends only on the sample's mean and spread."""
    return float(losses.mean() + t_quantile(len(losses)) * standard_error(losses))


def coverage_and_width(
    what: str, n: int, samples: int, bound: Callable[[np.ndarray], float] = gaffke
) -> tuple[float, float]:
    """Return the percentage of valid bounds, and their mean distance above the true loss in points."""
    draw, truth = LOSSES[what]
    rng = np.random.default_rng(n)
    bounds = np.array([bound(draw(rng, n)) for _ in range(samples)])
    return 100 * float((bounds >= truth).mean()), float(bounds.mean() - truth)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("what", LOSSES)
@pytest.mark.parametrize("n", [40, 100, 200, 500])
def test_bound_has_nominal_coverage_for_rare_large_losses(what: str, n: int) -> None:
    assert coverage_and_width(what, n, 150)[0] >= 96.5


@given(st.integers(1, 80), st.data())
@settings(max_examples=40, deadline=None)
def test_binary_losses_have_the_exact_binomial_bound(n: int, data: st.DataObject) -> None:
    lost = data.draw(st.integers(0, n))
    exact = float(betaincinv(lost + 1, n - lost, 0.975)) if lost < n else 1.0
    assert upper_bound([1.0] * lost + [0.0] * (n - lost), 1.0) == pytest.approx(exact, abs=1e-4)


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=12))
@settings(max_examples=25, deadline=None)
def test_bound_equals_the_quantile_under_dirichlet_weights(values: list[float]) -> None:
    weights = np.random.default_rng(0).dirichlet(np.ones(len(values) + 1), size=40_000)
    drawn = np.quantile(weights @ np.append(values, 100.0), 0.975)
    assert upper_bound(values, 100.0) == pytest.approx(drawn, abs=2.0)
    assert lower_bound([-value for value in values], -100.0) == -upper_bound(values, 100.0)


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=40), st.data())
@settings(max_examples=60, deadline=None)
def test_more_loss_never_tightens_the_bound(values: list[float], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(values) - 1))
    more = [*values[:place], data.draw(st.floats(values[place], 100)), *values[place + 1 :]]
    assert upper_bound(more, 100.0) >= upper_bound(values, 100.0) - 1e-4


def test_bound_of_one_small_loss_is_not_below_the_bound_of_no_loss() -> None:
    """At n = 100, an earlier method's bound was 3.62 points for no loss, but 0.06 if one document lost one point."""
    none, ones, three, large = np.zeros((4, 100))
    ones[0], three[:3], large[0] = 1.0, 1.0, 100.0
    bounds = [upper_bound(losses, 100.0) for losses in (none, ones, three, large)]
    assert bounds == sorted(bounds)
    assert bounds[0] == pytest.approx(100 * (1 - 0.025 ** (1 / 100)), abs=0.01)


def test_very_many_distinct_values_are_merged_without_moving_the_bound() -> None:
    values = np.random.default_rng(0).normal(0, 20, 5_000).clip(-100, 100)
    normal = values.mean() + 1.96 * values.std() / np.sqrt(len(values))
    assert normal < upper_bound(values, 100.0) < normal + 0.06


@pytest.mark.parametrize("draw", ["normal", "lognormal", "student"])
@pytest.mark.parametrize("farther", [1, 30])
def test_merging_many_distinct_values_hardly_moves_a_bound(
    draw: str, farther: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(1)
    draws = {"normal": rng.normal, "lognormal": rng.lognormal, "student": lambda size: rng.standard_t(2, size)}
    values = draws[draw](size=1500)
    greatest = farther * float(np.abs(values).max())
    merged = np.array([lower_bound(values, -greatest), upper_bound(values, greatest)]) - values.mean()
    monkeypatch.setattr(bounded_mean, "_MOST_DISTINCT", 4096)
    exact = np.array([lower_bound(values, -greatest), upper_bound(values, greatest)]) - values.mean()
    assert merged == pytest.approx(exact, rel=5e-4)
    assert not np.array_equal(merged, exact)
