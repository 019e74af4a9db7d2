"""Gates, thresholds and draws one by one."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from exitbench.errors import UserError
from exitbench.methods.base import BlockView, Cost, Head, Model
from exitbench.methods.gates import SoftmaxMargin
from exitbench.methods.random_exit import RandomDraw, exit_distribution, uniform
from exitbench.methods.registry import get_method
from exitbench.methods.thresholds import PositionDecayed


class Given(Head):
    """Logits that the test chose."""

    def __init__(self, logits_AV: Tensor) -> None:
        self.given = logits_AV

    def logits(self, view: BlockView) -> Tensor:
        return self.given

    def cost(self, model: Model, block: int) -> Cost:
        return Cost()


def view(head: Head, n_rows: int, block: int = 1, position: int = 1, seeds: tuple[int, ...] | None = None) -> BlockView:
    model: Any = None
    return BlockView(
        block=block,
        position=position,
        max_new_tokens=10,
        hidden_AD=torch.zeros(n_rows, 4),
        seeds_A=seeds or tuple(range(n_rows)),
        memory={},
        model=model,
        head=head,
    )


# ------------------------------------------------------------------------------------------ softmax margin


def test_margin_is_the_difference_of_the_two_best_probabilities_and_zero_in_a_tie() -> None:
    probabilities = torch.tensor([[0.5, 0.3, 0.2], [0.2, 0.2, 0.6], [0.4, 0.4, 0.2], [1.0, 0.0, 0.0]])
    score = SoftmaxMargin().score(view(Given(probabilities.log()), n_rows=4))
    assert score.tolist() == pytest.approx([0.2, 0.4, 0.0, 1.0], abs=1e-6)


def test_a_tie_never_exits_even_at_threshold_zero() -> None:
    parts = get_method("calm-softmax")(threshold=0.0).parts(4)
    score = parts.gate.score(view(Given(torch.tensor([[2.0, 2.0, 1.0]])), n_rows=1))
    assert score.item() == 0.0
    assert not score.item() > parts.threshold.value(1, 1, 10)


def test_margin_of_half_precision_logits_is_taken_in_single_precision() -> None:
    logits = torch.tensor([[8.0, 7.96875, 0.0]], dtype=torch.bfloat16)
    score = SoftmaxMargin().score(view(Given(logits), n_rows=1))
    exact = torch.softmax(logits.double(), -1)[0]
    assert score.item() == pytest.approx((exact[0] - exact[1]).item(), abs=1e-6)


# ------------------------------------------------------------------------------------------ decayed thresholds


@pytest.mark.parametrize(
    ("decay", "level", "t", "expected"),
    [
        ("code", 0.9, 1, 0.81 + 0.09 * 0.6703200460),  # exp(-4 * 1 / 10)
        ("code", 0.9, 10, 0.81 + 0.09 * 0.0183156389),  # exp(-4)
        ("paper", 0.9, 1, 0.81 + 0.1 * 0.6703200460),
        ("paper", 0.2, 1, 0.18 + 0.1 * 0.6703200460),
        ("paper", 0.0, 10, 0.1 * 0.0183156389),
        ("code", 0.0, 10, 0.0),
        ("none", 0.9, 1, 0.9),
        ("none", 0.9, 10, 0.9),
    ],
)
def test_threshold_of_the_first_generated_token_has_t_1(decay: str, level: float, t: int, expected: float) -> None:
    parts = get_method("calm-softmax")(threshold=level, decay=decay, temperature=4.0).parts(4)
    assert parts.threshold.value(block=2, position=t, max_new_tokens=10) == pytest.approx(expected, abs=1e-9)


def test_the_papers_form_is_clipped_to_1() -> None:
    assert PositionDecayed(1.0, 0.0, "paper").value(1, 1, 10) == 1.0
    assert PositionDecayed(1.2, 0.0, "paper").value(1, 1, 10) == 1.0
    assert PositionDecayed(-1.0, 0.0, "paper").value(1, 1, 10) == 0.0


# ------------------------------------------------------------------------------------------ random exits


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 48).flatmap(lambda n: st.tuples(st.just(n), st.floats(1, n))))
def test_the_distribution_has_the_asked_mean_and_the_largest_entropy(depth_and_mean: tuple[int, float]) -> None:
    n_blocks, mean = depth_and_mean
    shares = exit_distribution(mean, n_blocks)
    assert len(shares) == n_blocks
    assert min(shares) >= 0
    assert math.fsum(shares) == pytest.approx(1, abs=1e-12)
    assert math.fsum(block * share for block, share in enumerate(shares, 1)) == pytest.approx(mean, abs=1e-6)
    solid = [share for share in shares if share > 1e-250]
    ratios = [after / before for before, after in itertools.pairwise(solid)]
    assert ratios == pytest.approx(ratios[:1] * len(ratios), rel=1e-6)


@pytest.mark.parametrize("mean", [0.5, 12.5])
def test_a_mean_outside_the_decoder_is_refused(mean: float) -> None:
    with pytest.raises(ValueError, match=f"a mean exit layer of {mean} is impossible with 12 blocks"):
        exit_distribution(mean, 12)


@pytest.mark.parametrize("mean", [1.0, 2.5, 6.5, 11.0])
def test_20000_draws_have_the_asked_mean(mean: float) -> None:
    gate, n_draws = RandomDraw(mean, n_blocks=12, seed=3), 20_000
    about = [view(Given(torch.zeros(1)), n_rows=200, position=t, seeds=tuple(range(200))) for t in range(1, 101)]
    for one in about:
        gate.score(one)
    layers = torch.cat([one.memory["exit_A"] for one in about]).double()
    assert len(layers) == n_draws
    shares = torch.tensor(exit_distribution(mean, 12), dtype=torch.double)
    blocks = torch.arange(1, 13)
    variance = (shares * (blocks - mean) ** 2).sum().item()
    assert abs(layers.mean().item() - mean) <= 4 * math.sqrt(variance / n_draws) + 1e-12
    assert layers.var().item() == pytest.approx(variance, rel=0.1, abs=1e-12)


def test_draws_of_neighbouring_seeds_and_positions_are_unrelated() -> None:
    draws = torch.tensor([[uniform(0, seed, t) for t in range(1, 201)] for seed in range(200)])
    assert draws.min() >= 0
    assert draws.max() < 1
    limit = 4 / math.sqrt(draws.numel())  # four standard errors of a correlation
    for one, other in ((draws[:-1], draws[1:]), (draws[:, :-1], draws[:, 1:]), (draws[:-1, 1:], draws[1:, :-1])):
        pair = torch.stack([one.flatten(), other.flatten()])
        assert abs(torch.corrcoef(pair)[0, 1].item()) < limit


def test_another_seed_gives_other_draws() -> None:
    assert [uniform(0, 5, t) for t in range(5)] != [uniform(1, 5, t) for t in range(5)]


# ------------------------------------------------------------------------------------------ parameters


@pytest.mark.parametrize(
    ("name", "params", "says"),
    [
        ("calm-softmax", {"treshold": 0.5}, "has no parameter 'treshold'. Did you mean 'threshold'?"),
        ("full", {"depth": 3}, "has no parameter 'depth'. It has no parameters."),
        ("calm-softmax", {"threshold": "0.5"}, ".threshold must be of type float, not '0.5'."),
        ("calm-softmax", {"threshold": True}, ".threshold must be of type float, not True."),
        ("calm-softmax", {"threshold": None}, ".threshold must be of type float, not None."),
        ("calm-softmax", {"threshold": math.nan}, ".threshold must be a finite number, not nan."),
        ("calm-softmax", {"threshold": 1.01}, ".threshold = 1.01 is out of range; allowed: between 0.0 and 1.0."),
        ("calm-softmax", {"threshold": -0.1}, ".threshold = -0.1 is out of range; allowed: between 0.0 and 1.0."),
        ("calm-softmax", {"temperature": math.inf}, ".temperature must be a finite number, not inf."),
        ("calm-softmax", {"temperature": -1}, ".temperature = -1.0 is out of range; allowed: at least 0.0."),
        ("calm-softmax", {"decay": "cod"}, ".decay cannot be 'cod'. Did you mean 'code'? Allowed: code, none, paper."),
        ("calm-softmax", {"min_exit": 1.0}, ".min_exit must be of type int, not 1.0."),
        ("static", {"exit_layer": 0}, ".exit_layer = 0 is out of range; allowed: at least 1."),
        ("static", {"exit_layer": True}, ".exit_layer must be of type int, not True."),
        ("oracle", {"stable": 1}, ".stable must be of type bool, not 1."),
        ("random", {"mean_exit": 0.9}, ".mean_exit = 0.9 is out of range; allowed: at least 1.0."),
    ],
)
def test_a_bad_parameter_is_named_with_what_is_allowed(name: str, params: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError) as caught:
        get_method(name).from_params(params, where="my.toml, line 7")
    message = str(caught.value)
    assert message.startswith("my.toml, line 7: ")
    assert name in message
    assert says in message


@pytest.mark.parametrize(
    ("name", "params", "says"),
    [
        (
            "static",
            {"exit_layer": 7},
            "static.exit_layer = 7 is above the depth of the model; allowed: between 1 and 6",
        ),
        ("calm-softmax", {"min_exit": 7}, "calm-softmax.min_exit = 7 is above the depth of the model"),
        ("random", {"mean_exit": 6.5}, "random.mean_exit = 6.5 is above the model's depth; allowed: between 1 and 6."),
    ],
)
def test_a_parameter_that_does_not_fit_the_model_is_named(name: str, params: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError) as caught:
        get_method(name).from_params(params).check(6)
    assert str(caught.value).startswith(says)


def test_whole_numbers_are_accepted_where_a_float_is_asked_and_enter_the_identity_as_floats() -> None:
    made = get_method("calm-softmax").from_params({"threshold": 1})
    assert made.params()["threshold"] == 1.0
    assert isinstance(made.params()["threshold"], float)
    assert made.label() == "calm-softmax(threshold=1.0, decay=code, temperature=4.0, min_exit=1)"
