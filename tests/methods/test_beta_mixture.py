"""FREE's threshold from a Beta mixture, against the published arithmetic written again in NumPy."""

from __future__ import annotations

import math
import random
from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from exitbench.methods.beta_mixture import adaptive_threshold
from exitbench.methods.free import in_parallel_passes

DEFAULT = 0.77
Form = Literal["correct", "code"]
LEVELS = [0.3 + 0.6 * step / 9 for step in range(10)]


def choose(scores: list[float], agrees: list[bool], form: Form) -> float:
    return adaptive_threshold(
        torch.tensor(scores, dtype=torch.float64), torch.tensor(agrees, dtype=torch.bool), DEFAULT, form
    )


def reference_threshold(scores: list[float], agrees: list[bool], form: Form) -> float:
    """Return the threshold by the published arithmetic: responsibilities, one step of weighted moments, and a grid.

    The published code overwrites the likelihood term (weight 0.8) by the label term (weight 0.2). The form ``correct``
    adds them.
    """
    x, y = np.clip(np.asarray(scores, dtype=np.float64), 1e-4, 1 - 1e-4), np.asarray(agrees, dtype=np.int64)
    likelihood = np.stack([0.5 * density(x, 1.0, 2.0), 0.5 * density(x, 2.0, 1.0)])
    label = 0.2 * np.stack([y == 0, y == 1]).astype(np.float64)
    shares = label if form == "code" else 0.8 * likelihood + label
    shares = np.where(shares <= 1e-4, 1e-4, shares)
    shares /= shares.sum(axis=0) + 1e-12
    with np.errstate(all="ignore"):
        mean = (shares * x).sum(axis=1) / shares.sum(axis=1)
        spread = (shares * (x - mean[:, None]) ** 2).sum(axis=1) / shares.sum(axis=1)
        alpha = mean * (mean * (1 - mean) / spread - 1)
        beta = alpha * (1 - mean) / mean
        grid = np.linspace(0.3, 0.9, 10)
        surer = int((alpha / (alpha + beta)).argmax())
        high, low = (density(grid, alpha[at], beta[at]) for at in (surer, 1 - surer))
        sure = int((high / (high + low) > 0.4).sum())
    return float(grid[min(max(0, 10 - sure), 9)])


def density(x: NDArray[np.float64], alpha: float, beta: float) -> NDArray[np.float64]:
    """Return the density of a Beta distribution; NaN if a parameter is infinite or NaN."""
    if not (math.isfinite(alpha) and math.isfinite(beta)):
        return np.full_like(x, np.nan)
    log_norm = math.lgamma(alpha) + math.lgamma(beta) - math.lgamma(alpha + beta)
    return np.exp((alpha - 1) * np.log(x) + (beta - 1) * np.log1p(-x) - log_norm)


def history(seed: int) -> tuple[list[float], list[bool]]:
    """Return random confidences, and whether full depth agreed, for a random number of tokens.

    Agreement may depend on the confidence strongly, weakly or not at all.
    """
    draw = np.random.default_rng(seed)
    n = int(draw.choice([2, 3, 5, 10, 30, 100, 400]))
    scores = draw.beta(*draw.choice([0.4, 1.0, 1.5, 4.0, 12.0], size=2), size=n)
    steepness, level = draw.choice([0.0, 2.0, 6.0, 20.0]), draw.uniform(-4, 4)
    agrees = draw.random(n) < 1 / (1 + np.exp(-(steepness * (scores - scores.mean()) + level)))
    return scores.tolist(), agrees.tolist()


def calibrated(seed: int, n: int = 500) -> tuple[list[float], list[bool]]:
    """Return random confidences and agreements; a token agrees with a probability equal to its confidence."""
    draw = random.Random(seed)
    scores = [min(max(draw.betavariate(4, 1.5), 0.001), 0.999) for _ in range(n)]
    return scores, [draw.random() < score for score in scores]


def test_code_form_equals_the_published_threshold_on_300_histories() -> None:
    result, expected = [], []
    for seed in range(300):
        scores, agrees = history(seed)
        result.append(choose(scores, agrees, "code"))
        expected.append(reference_threshold(scores, agrees, "code"))
    assert result == pytest.approx(expected)
    assert len({round(level, 3) for level in expected}) == len(LEVELS), "every level must come up"


def test_corrected_threshold_equals_the_reference_with_both_terms() -> None:
    drawn = [history(seed) for seed in range(300)]
    told = [data for data in drawn if choose(*data, "correct") != DEFAULT]
    assert len(told) > 50
    assert [choose(*data, "correct") for data in told] == pytest.approx(
        [reference_threshold(*data, "correct") for data in told]
    )


def test_published_and_corrected_thresholds_differ() -> None:
    drawn = [calibrated(seed, n=60) for seed in range(40)]
    assert any(reference_threshold(*data, "code") != reference_threshold(*data, "correct") for data in drawn)


def test_calibrated_confidences_give_a_threshold_near_0_65() -> None:
    result = [choose(*calibrated(seed), "code") for seed in range(20)]
    assert sum(result) / len(result) == pytest.approx(0.65, abs=0.04)
    assert any(level == pytest.approx(0.3 + 0.6 * 5 / 9) for level in result)


@pytest.mark.parametrize("label", [True, False])
def test_single_class_of_labels_gives_the_lowest_or_the_default_threshold(label: bool) -> None:
    """If all tokens agree, or none, the published code takes the lowest threshold; the correct form the default."""
    scores, _ = calibrated(1)
    assert choose(scores, [label] * len(scores), "code") == pytest.approx(0.3)
    assert choose(scores, [label] * len(scores), "correct") == DEFAULT


@pytest.mark.parametrize("seed", range(5))
def test_uninformative_labels_give_the_default_threshold_in_the_corrected_form(seed: int) -> None:
    scores, agrees = calibrated(seed)
    random.Random(seed).shuffle(agrees)
    assert choose(scores, agrees, "code") < 0.6
    assert choose(scores, agrees, "correct") == DEFAULT
    assert choose(scores, [score < 0.7 for score in scores], "correct") == DEFAULT, "sure where it is wrong"


@pytest.mark.parametrize("scores", [[0.4], [0.4] * 30, [1.0] * 30, [0.0] * 30])
def test_equal_scores_give_the_default_or_the_largest_threshold(scores: list[float]) -> None:
    agrees = [at % 2 == 0 for at in range(len(scores))]
    assert choose(scores, agrees, "correct") == DEFAULT
    assert (
        choose(scores, agrees, "code")
        == pytest.approx(reference_threshold(scores, agrees, "code"))
        == pytest.approx(0.9)
    )


@pytest.mark.parametrize("form", ["code", "correct"])
def test_empty_history_gives_the_default_threshold(form: Form) -> None:
    assert choose([], [], form) == DEFAULT


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), max_size=40), st.sampled_from(["code", "correct"]))
def test_threshold_is_always_a_grid_level_or_the_default(data: list[tuple[float, bool]], form: Form) -> None:
    level = choose([score for score, _ in data], [agrees for _, agrees in data], form)
    assert level == DEFAULT or any(level == pytest.approx(known) for known in LEVELS)


def test_threshold_does_not_depend_on_token_order() -> None:
    scores, agrees = calibrated(3)
    assert choose(scores[::-1], agrees[::-1], "correct") == choose(scores, agrees, "correct")


def test_parallel_passes_contain_waiting_tokens_and_the_deep_token_that_runs_them() -> None:
    """A deep token is kept if shallow tokens wait for it, a shallow one if a deep token of its document follows."""
    shallow = [False, True, True, True, False, False, True, *[False, True, False]]
    used = in_parallel_passes(torch.tensor(shallow), torch.tensor([0] * 7 + [1] * 3))
    assert used.tolist() == [False, True, True, True, True, False, False, *[False, True, True]]
