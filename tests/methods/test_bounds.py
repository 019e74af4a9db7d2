"""Bounds of gates: logits within the intervals never give a score outside the bounds."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from exitbench.methods.base import ActiveRows, BlockView, Gate
from exitbench.methods.entropy import InversePerplexity
from exitbench.methods.gates import SoftmaxMargin
from exitbench.methods.heads import LMHead
from exitbench.methods.max_prob import LargestProbability
from exitbench.methods.registry import certifiable, get_method

GATES: dict[str, Gate] = {"margin": SoftmaxMargin(), "largest": LargestProbability(), "entropy": InversePerplexity()}
LOGITS = st.one_of(st.just(0.0), st.floats(-6, 6, width=32), st.sampled_from([-80.0, -30.0, 30.0, 80.0]))
WIDTHS = st.one_of(st.just(0.0), st.floats(0, 3, width=32), st.just(60.0))


def scores(gate: Gate, logits_AV: Tensor) -> Tensor:
    """Return the gate's scores of given logits."""

    class Itself(LMHead):
        def logits_after(self, model: Any, block: int, hidden_AD: Tensor) -> Tensor:
            return hidden_AD

    class Model:
        vocab_size, n_blocks = logits_AV.shape[1], 2

    model: Any = Model()
    rows = len(logits_AV)
    active = ActiveRows((1,) * rows, (0,) * rows)
    view = BlockView(
        block=1, active=active, max_new_tokens=1, hidden_AD=logits_AV, memory={}, model=model, head=Itself()
    )
    return gate.score(view)


def within(lower_V: Tensor, upper_V: Tensor) -> Tensor:
    """Return logits within the intervals: all at one end, single ids at the other end, and random ones."""
    n = len(lower_V)
    alone_VV = torch.eye(n, dtype=torch.bool)
    generator = torch.Generator().manual_seed(0)
    shares = torch.rand(64, n, generator=generator)
    corners = torch.rand(64, n, generator=generator) < torch.rand(64, 1, generator=generator)
    drawn = lower_V + shares * (upper_V - lower_V)
    # An interpolation may be rounded out of its interval.
    drawn = torch.minimum(torch.maximum(drawn, lower_V), upper_V)
    ends = [torch.where(mask, upper_V, lower_V) for mask in (alone_VV, ~alone_VV, corners)]
    return torch.cat([lower_V[None], upper_V[None], drawn, *ends])


@pytest.mark.parametrize("name", GATES)
@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(LOGITS, WIDTHS), min_size=2, max_size=12))
def test_logits_within_the_intervals_never_score_outside_the_bounds(
    name: str, drawn: list[tuple[float, float]]
) -> None:
    lower_V = torch.tensor([logit for logit, _ in drawn])
    upper_V = lower_V + torch.tensor([width for _, width in drawn])
    low_A, high_A = GATES[name].bounds(lower_V[None], upper_V[None])
    result = scores(GATES[name], within(lower_V, upper_V))
    assert float(low_A) <= float(result.min()) and float(result.max()) <= float(high_A)


@pytest.mark.parametrize("name", GATES)
def test_bounds_of_a_large_vocabulary_hold_and_are_narrow_for_narrow_intervals(name: str) -> None:
    logits_AV = torch.randn(4, 32_128, generator=torch.Generator().manual_seed(1)) * 3
    logits_AV[1, 5] += 20
    low_A, high_A = GATES[name].bounds(logits_AV - 1e-3, logits_AV + 1e-3)
    score_A = scores(GATES[name], logits_AV)
    assert bool(((low_A <= score_A) & (score_A <= high_A)).all())
    assert float((high_A - low_A).max()) < 0.1


@pytest.mark.parametrize("name", GATES)
def test_bounds_lie_between_0_and_1_and_are_nan_for_nan_logits(name: str) -> None:
    wide_1V = torch.full((1, 5), 200.0)
    low_A, high_A = GATES[name].bounds(-wide_1V, wide_1V)
    assert 0 <= float(low_A) <= float(high_A) <= 1
    for bound_A in GATES[name].bounds(wide_1V * float("nan"), wide_1V * float("nan")):
        assert bool(bound_A.isnan().all())


def test_gate_subclass_that_overrides_score_has_no_bounds() -> None:
    class Own(SoftmaxMargin):
        def score(self, view: BlockView) -> Tensor:
            return super().score(view) ** 2

    class Same(SoftmaxMargin):
        pass

    assert SoftmaxMargin().is_bounded and Same().is_bounded
    assert not Own().is_bounded


def test_methods_report_whether_they_are_certifiable_and_why_not() -> None:
    assert certifiable() == ("calm-softmax", "entropy", "free", "full", "max-prob", "self-speculation", "static")
    why = {name: get_method(name)().parts(2).why_not_certified for name in ("calm-classifier", "contrastive")}
    assert all("cannot be bounded" in (reason or "") for reason in why.values())
    pruned = get_method("calm-softmax").from_params({"head": "pruned-fixed"}).parts(2)
    assert "whole vocabulary" in (pruned.why_not_certified or "")
    drawn = get_method("full").from_params({"temperature": 0.5}).parts(2)
    assert "cannot be bounded" in (drawn.why_not_certified or "")


def test_certified_parts_differ_only_in_their_head() -> None:
    parts = get_method("calm-softmax")().parts(4)
    certified = parts.certified()
    names = ("threshold", "kv_policy", "blocks", "gate")
    assert all(getattr(parts, name) is getattr(certified, name) for name in itertools.islice(names, 4))
    assert type(parts.head) is LMHead and isinstance(certified.head, LMHead)
    assert certified.head is not parts.head
