"""Drawing tokens at random: their distribution, and that a draw depends only on logits, document and position."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from exitbench.harness.engine.decoding.decode import decode, prefill
from exitbench.harness.engine.decoding.generation import Generation, Request
from exitbench.methods.base import Method, argmax_token
from exitbench.methods.registry import get_method
from exitbench.methods.sampling import drawn_index, uniform
from exitbench.methods.thresholds import Constant

L = 6
MAX_NEW_TOKENS = 8


def answers(
    tiny: Any, method: Method, prompts: list[list[int]], first_seed: int = 0, never: bool = False
) -> list[Generation]:
    """Return answers to prompts with seeds from ``first_seed`` on; with ``never``, no token exits early."""
    model = tiny.checkpoint.model
    parts = method.bound_to(model.exit_blocks).parts(L)
    if never:
        parts = dataclasses.replace(parts, threshold=Constant(float("inf")))
    requests = [Request(prompt, seed) for seed, prompt in enumerate(prompts, first_seed)]
    return decode(tiny.checkpoint, prefill(model, requests, MAX_NEW_TOKENS), parts)


def tokens(generations: list[Generation]) -> list[list[int]]:
    return [generation.token_ids for generation in generations]


# ------------------------------------------------------------------------------------------ one draw


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_sampled_tokens_follow_the_softmax_at_the_temperature(temperature: float) -> None:
    n_draws, n_tokens = 20_000, 12
    logits_V = 1.5 * torch.randn(n_tokens, generator=torch.Generator().manual_seed(1))
    draws_N = torch.tensor([uniform(0, row, 1 + row % 7) for row in range(n_draws)], dtype=torch.float64)
    drawn_N = drawn_index(logits_V.expand(n_draws, -1), temperature, draws_N)
    seen_V = torch.bincount(drawn_N, minlength=n_tokens).double()
    expected_V = n_draws * torch.softmax(logits_V.double() / temperature, -1)
    assert expected_V.min() > 5, "else the statistic is not chi-squared"
    assert ((seen_V - expected_V) ** 2 / expected_V).sum() < 31.3  # 99.9 % of 11 degrees of freedom


def draw(logits: list[float], temperature: float, *numbers: float) -> list[int]:
    logits_AV = torch.tensor(logits).expand(len(numbers), -1)
    index_A: Tensor = drawn_index(logits_AV, temperature, torch.tensor(numbers, dtype=torch.float64))
    return index_A.tolist()


def test_uniform_draw_selects_the_token_by_cumulative_probability() -> None:
    shares = torch.tensor([0.2, 0.5, 0.3]).log().tolist()
    assert draw(shares, 1.0, 0.0, 0.19, 0.21, 0.69, 0.71, 1 - 2**-53) == [0, 0, 1, 1, 2, 2]


def test_zero_probability_token_is_never_sampled() -> None:
    nothing = float("-inf")
    assert set(draw([nothing, 0.0, nothing, 0.0, nothing], 1.0, 0.0, 0.3, 0.5, 0.9, 1 - 2**-53)) == {1, 3}


def test_rare_token_of_a_large_vocabulary_can_be_sampled() -> None:
    """The token's probability is too small to change a single-precision sum near 1."""
    logits_V = torch.zeros(50_001)
    logits_V[0] = 25.0
    share = float(torch.softmax(logits_V.double(), -1)[1])
    (index,) = draw(logits_V.tolist(), 1.0, 1 - 1.5 * share)
    assert index == 49_999


def test_sampling_near_temperature_0_is_greedy() -> None:
    logits_AV = torch.randn(200, 30, generator=torch.Generator().manual_seed(3))
    draws_A = torch.rand(200, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    assert torch.equal(drawn_index(logits_AV, 1e-5, draws_A), argmax_token(logits_AV))
    assert not torch.equal(drawn_index(logits_AV, 1.0, draws_A), argmax_token(logits_AV))


# ------------------------------------------------------------------------------------------ whole answers

SAMPLED = [("full", {}), ("heads", {"threshold": 0.3}), ("heads", {"threshold": 0.3, "kv_policy": "noisy"})]


@pytest.mark.parametrize(("name", "params"), SAMPLED)
def test_batched_sampling_equals_single_row_sampling(tiny: Any, prompts: Any, name: str, params: Any) -> None:
    method = get_method(name).from_params({"temperature": 1.0, **params})
    together = answers(tiny, method, prompts)
    alone = [answers(tiny, method, [prompt], seed)[0] for seed, prompt in enumerate(prompts)]
    assert [(g.token_ids, g.exit_layers, g.head_rows) for g in together] == [
        (g.token_ids, g.exit_layers, g.head_rows) for g in alone
    ]


@pytest.mark.parametrize(("name", "params"), SAMPLED)
def test_temperature_near_0_equals_greedy_and_1_does_not(tiny: Any, prompts: Any, name: str, params: Any) -> None:
    at = {
        temperature: tokens(
            answers(tiny, get_method(name).from_params({"temperature": temperature, **params}), prompts)
        )
        for temperature in (0.0, 1e-4, 1.0)
    }
    assert at[1e-4] == at[0.0]
    assert at[1.0] != at[0.0]


def test_every_token_is_sampled_including_the_first(tiny: Any, prompts: Any) -> None:
    same = [prompts[1]] * 64
    drawn = answers(tiny, get_method("full").from_params({"temperature": 2.0}), same)
    for place in range(3):
        assert len({g.token_ids[place] for g in drawn if len(g.token_ids) > place}) > 5
    assert tokens(drawn) != tokens(answers(tiny, get_method("full").from_params({"temperature": 2.0}), same, 64))


def test_methods_with_equal_logits_sample_equal_tokens(tiny: Any, prompts: Any) -> None:
    full = answers(tiny, get_method("full").from_params({"temperature": 1.0}), prompts)
    heads = answers(tiny, get_method("heads").from_params({"temperature": 1.0}), prompts, never=True)
    assert tokens(heads) == tokens(full)
