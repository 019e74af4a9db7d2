"""Random exits: the distribution of exit layers, and draws from it."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from exitbench.methods.base import ActiveRows, BlockView
from exitbench.methods.heads import LMHead
from exitbench.methods.random_exit import RandomDraw, exit_distribution, uniform


def view(n_rows: int, position: int, block: int = 1) -> BlockView:
    """Rows of seeds 0, 1, ... at a block."""
    model: Any = None
    return BlockView(
        block=block,
        active=ActiveRows((position,) * n_rows, tuple(range(n_rows))),
        max_new_tokens=10,
        hidden_AD=torch.zeros(n_rows, 4),
        memory={},
        model=model,
        head=LMHead(),
    )


@settings(max_examples=60)
@given(st.integers(2, 48).flatmap(lambda n: st.tuples(st.just(n), st.floats(1, n))))
def test_exit_distribution_has_the_requested_mean_and_maximum_entropy(depth_and_mean: tuple[int, float]) -> None:
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
def test_mean_exit_outside_the_decoder_is_refused(mean: float) -> None:
    with pytest.raises(ValueError, match=f"a mean exit layer of {mean} is impossible with 12 blocks"):
        exit_distribution(mean, 12)


@pytest.mark.parametrize("mean", [1.0, 2.5, 6.5, 11.0])
def test_mean_and_variance_of_20000_draws_match_the_distribution(mean: float) -> None:
    gate, n_draws = RandomDraw(mean, n_blocks=12, seed=3), 20_000
    about = [view(n_rows=200, position=t) for t in range(1, 101)]
    for one in about:
        gate.score(one)
    layers = torch.cat([one.memory["exit_A"] for one in about]).double()
    assert len(layers) == n_draws
    shares = torch.tensor(exit_distribution(mean, 12), dtype=torch.double)
    blocks = torch.arange(1, 13)
    variance = (shares * (blocks - mean) ** 2).sum().item()
    assert abs(layers.mean().item() - mean) <= 4 * math.sqrt(variance / n_draws) + 1e-12
    assert layers.var().item() == pytest.approx(variance, rel=0.1, abs=1e-12)


def test_draws_of_neighboring_seeds_and_positions_are_uncorrelated() -> None:
    draws = torch.tensor([[uniform(0, seed, t) for t in range(1, 201)] for seed in range(200)])
    assert draws.min() >= 0
    assert draws.max() < 1
    limit = 4 / math.sqrt(draws.numel())  # four standard errors of a correlation
    for one, other in ((draws[:-1], draws[1:]), (draws[:, :-1], draws[:, 1:]), (draws[:-1, 1:], draws[1:, :-1])):
        pair = torch.stack([one.flatten(), other.flatten()])
        assert abs(torch.corrcoef(pair)[0, 1].item()) < limit


def test_another_seed_gives_other_draws() -> None:
    assert [uniform(0, 5, t) for t in range(5)] != [uniform(1, 5, t) for t in range(5)]


def test_token_exits_at_its_drawn_block_and_draws_once() -> None:
    gate = RandomDraw(3.0, n_blocks=6, seed=1)
    memory: dict[str, Tensor] = {}
    scores = []
    for block in range(1, 6):
        at = view(n_rows=50, position=2, block=block)
        at.memory = memory
        scores.append(gate.score(at))
    drawn_A = memory["exit_A"]
    assert drawn_A.min() >= 1
    assert drawn_A.max() <= 6
    assert len(drawn_A.unique()) > 3
    for block, score_A in enumerate(scores, 1):
        assert score_A.tolist() == [float(layer <= block) for layer in drawn_A.tolist()]


@pytest.mark.parametrize(("mean", "layer"), [(1.0, 1), (6.0, 6)])
def test_extreme_means_exit_every_token_at_one_block(mean: float, layer: int) -> None:
    at = view(n_rows=300, position=1)
    RandomDraw(mean, n_blocks=6, seed=0).score(at)
    assert set(at.memory["exit_A"].tolist()) == {layer}
