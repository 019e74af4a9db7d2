"""FREE's threshold from a Beta mixture, against the formulas of methods.md 1.4 in plain Python."""

from __future__ import annotations

import math
import random
from typing import Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from exitbench.methods.beta_mixture import adaptive_threshold
from exitbench.methods.free import in_parallel_passes

DEFAULT = 0.77
Form = Literal["correct", "code"]
LEVELS = [0.3 + 0.6 * step / 9 for step in range(10)]


def choose(scores: list[float], agrees: list[bool], form: Form) -> float:
    return adaptive_threshold(
        torch.tensor(scores, dtype=torch.float64), torch.tensor(agrees, dtype=torch.bool), DEFAULT, form
    )


def density(x: float, alpha: float, beta: float) -> float:
    log_beta = math.lgamma(alpha) + math.lgamma(beta) - math.lgamma(alpha + beta)
    return math.exp((alpha - 1) * math.log(x) + (beta - 1) * math.log(1 - x) - log_beta)


def by_hand(scores: list[float], agrees: list[bool], form: Form) -> float:
    """One supervised step, the moments of each component, and the grid."""
    components = []
    weights = []
    for score, label in zip(scores, agrees, strict=True):
        one_hot = [0.0, 1.0] if label else [1.0, 0.0]
        if form == "code":
            pair = [max(value, 1e-4) for value in one_hot]
        else:
            likelihood = [density(score, 1, 2), density(score, 2, 1)]
            pair = [0.8 * p / sum(likelihood) + value for p, value in zip(likelihood, one_hot, strict=True)]
        weights.append([value / sum(pair) for value in pair])
    for component in (0, 1):
        total = sum(weight[component] for weight in weights)
        mean = sum(w[component] * c for w, c in zip(weights, scores, strict=True)) / total
        spread = sum(w[component] * (c - mean) ** 2 for w, c in zip(weights, scores, strict=True)) / total
        alpha = mean * (mean * (1 - mean) / spread - 1)
        components.append((mean, alpha, alpha * (1 - mean) / mean))
    (_, *low), (_, *high) = sorted(components)
    sure = sum(density(x, *high) / (density(x, *high) + density(x, *low)) > 0.4 for x in LEVELS)
    return LEVELS[min(max(0, 10 - sure), 9)]


def calibrated(seed: int, n: int = 500) -> tuple[list[float], list[bool]]:
    """The probability of agreement is the confidence itself."""
    draw = random.Random(seed)
    scores = [min(max(draw.betavariate(4, 1.5), 0.001), 0.999) for _ in range(n)]
    return scores, [draw.random() < score for score in scores]


@pytest.mark.parametrize("form", ["code", "correct"])
@pytest.mark.parametrize("seed", range(10))
def test_the_threshold_is_the_one_worked_out_by_hand(form: Form, seed: int) -> None:
    scores, agrees = calibrated(seed)
    assert choose(scores, agrees, form) == pytest.approx(by_hand(scores, agrees, form))


def test_the_two_forms_differ() -> None:
    drawn = [calibrated(seed, n=60) for seed in range(40)]
    assert any(by_hand(*data, "code") != by_hand(*data, "correct") for data in drawn)


def test_calibrated_confidences_give_a_threshold_about_0_633() -> None:
    found = [choose(*calibrated(seed), "code") for seed in range(20)]
    assert sum(found) / len(found) == pytest.approx(0.65, abs=0.04)
    assert any(level == pytest.approx(0.3 + 0.6 * 5 / 9) for level in found)


@pytest.mark.parametrize("label", [True, False])
def test_one_label_alone_teaches_nothing(label: bool) -> None:
    """The published code then takes the least threshold, also where the early choice is never right."""
    scores, _ = calibrated(1)
    assert choose(scores, [label] * len(scores), "code") == pytest.approx(0.3)
    assert choose(scores, [label] * len(scores), "correct") == DEFAULT


@pytest.mark.parametrize("seed", range(5))
def test_labels_that_the_confidence_does_not_tell_teach_nothing(seed: int) -> None:
    scores, agrees = calibrated(seed)
    random.Random(seed).shuffle(agrees)
    assert choose(scores, agrees, "code") < 0.6
    assert choose(scores, agrees, "correct") == DEFAULT
    assert choose(scores, [score < 0.7 for score in scores], "correct") == DEFAULT, "sure where it is wrong"


@pytest.mark.parametrize("form", ["code", "correct"])
@pytest.mark.parametrize("scores", [[], [0.4], [0.4] * 30, [1.0] * 30, [0.0] * 30])
def test_without_spread_the_threshold_stays(form: Form, scores: list[float]) -> None:
    assert choose(scores, [at % 2 == 0 for at in range(len(scores))], form) == DEFAULT


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), max_size=40), st.sampled_from(["code", "correct"]))
def test_any_data_gives_a_level_or_the_default(data: list[tuple[float, bool]], form: Form) -> None:
    level = choose([score for score, _ in data], [agrees for _, agrees in data], form)
    assert level == DEFAULT or any(level == pytest.approx(known) for known in LEVELS)


def test_the_order_of_tokens_does_not_matter() -> None:
    scores, agrees = calibrated(3)
    assert choose(scores[::-1], agrees[::-1], "correct") == choose(scores, agrees, "correct")


def test_parallel_passes_hold_what_waits_and_the_deep_token_that_runs_it() -> None:
    """Two documents: a deep token alone, three that wait and their deep one, and a shallow one nobody runs."""
    shallow = [False, True, True, True, False, False, True, *[False, True, False]]
    used = in_parallel_passes(torch.tensor(shallow), torch.tensor([0] * 7 + [1] * 3))
    assert used.tolist() == [False, True, True, True, True, False, False, *[False, True, True]]
