"""The int8 copy of an LM head: its intervals contain the exact logits for any rows and states.

The head is multiplied as in the engine: alone and in a batch, in every number format. Heads and states are difficult:
rows that are equal, zero, huge, tiny or nearly tied, and states of all sizes.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from exitbench.harness.engine.model.int8_head import (
    ByBfloat16,
    ByFloat32,
    ByIntegers,
    Int8Head,
    Int8Product,
    LogitIntervals,
    product_of,
)
from exitbench.harness.engine.model.weights import Linear

V, D = 37, 64
ODD = 24  # a width that the library has no product for
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SCALES = st.sampled_from([0.0, 1e-6, 1e-2, 1.0, 30.0])
WAYS = st.sampled_from([ByIntegers, ByBfloat16, ByFloat32])
TWISTS = st.sampled_from(["none", "ties", "zeros", "all-equal", "one-large", "near-ties"])


@st.composite
def heads(draw: st.DrawFn) -> Linear:
    """Draw an LM head with random rows, some of them tied, zero or huge, with or without a bias."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    weight_VD = torch.randn(V, draw(st.sampled_from([D, ODD])), generator=generator)
    twist, dtype = draw(TWISTS), draw(st.sampled_from(DTYPES))
    if twist == "ties":
        weight_VD[::3] = weight_VD[0].clone()
    if twist == "near-ties":
        weight_VD[::2] = weight_VD[0] * (1 + 1e-6 * torch.randn(len(weight_VD[::2]), 1, generator=generator))
    if twist == "zeros":
        weight_VD[5:] = 0
    if twist == "all-equal":
        weight_VD[:] = 0.125
    if twist == "one-large":  # what is left of the others is lost in its scale
        weight_VD[:, 0] = 100.0
    bias_V = torch.randn(V, generator=generator) * draw(SCALES) if draw(st.booleans()) else None
    weight_VD = weight_VD * draw(st.sampled_from([1e-3, 1.0, 20.0]))
    return Linear(weight_VD.to(dtype), None if bias_V is None else bias_V.to(dtype))


@st.composite
def states(draw: st.DrawFn, rows: int = 3) -> Tensor:
    """Draw a batch of states of very different sizes; a state may be zero."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    sizes = torch.tensor([draw(SCALES) for _ in range(rows)])
    return torch.randn(rows, D, generator=generator) * sizes[:, None]


def as_head_input(head: Linear, states_AD: Tensor) -> Tensor:
    """Return the states cut to the head's width and converted to its number format."""
    return states_AD[:, : head.weight.shape[1]].to(head.weight.dtype)


def contains(intervals: LogitIntervals, logits_AV: Tensor) -> bool:
    lower_AV, upper_AV = intervals.lower_AV, intervals.upper_AV
    return bool(((lower_AV <= logits_AV.float()) & (logits_AV.float() <= upper_AV)).all())


@settings(max_examples=150, deadline=None)
@given(heads(), states(), WAYS)
def test_intervals_contain_the_exact_logits_of_single_rows_and_batches(
    head: Linear, states_AD: Tensor, way: type[Int8Product]
) -> None:
    assume(way is not ByBfloat16 or head.weight.shape[1] != ODD)
    states_AD, copy = as_head_input(head, states_AD), Int8Head(head, way)
    assert contains(copy.read(states_AD), head(states_AD))
    for state_1D in states_AD.split(1):
        assert contains(copy.read(state_1D), head(state_1D))


@settings(max_examples=100, deadline=None)
@given(heads(), states())
def test_sharpened_intervals_contain_the_exact_logits_and_are_not_wider(head: Linear, states_AD: Tensor) -> None:
    states_AD = as_head_input(head, states_AD)
    intervals = Int8Head(head).read(states_AD)
    before_AV = intervals.upper_AV - intervals.lower_AV
    intervals.sharpen()
    assert contains(intervals, head(states_AD))
    assert bool((intervals.upper_AV - intervals.lower_AV <= before_AV).all())
    assert intervals.rescored_A.tolist() == [32] * len(states_AD)


@settings(max_examples=150, deadline=None)
@given(heads(), states())
def test_argmax_is_that_of_the_exact_head_or_undecided(head: Linear, states_AD: Tensor) -> None:
    states_AD = as_head_input(head, states_AD)
    told_A = Int8Head(head).read(states_AD).argmax_ids()
    if told_A is not None:
        assert told_A.tolist() == head(states_AD).argmax(-1).tolist()


def test_argmax_is_decided_for_a_clear_maximum_and_undecided_for_a_tie() -> None:
    weight_VD = torch.randn(V, D, generator=torch.Generator().manual_seed(0))
    led, tied = weight_VD.clone(), weight_VD.clone()
    led[7] *= 5
    tied[7] = tied[3] = weight_VD[7] * 5
    state_1D = weight_VD[7:8]
    told = Int8Head(Linear(led)).read(state_1D).argmax_ids()
    assert told is not None and told.tolist() == [7]
    assert Int8Head(Linear(tied)).read(state_1D).argmax_ids() is None


def test_float16_overflow_is_contained_and_leaves_the_argmax_undecided() -> None:
    head = Linear(torch.full((V, D), 2000.0).half())
    state_1D = torch.full((1, D), 30.0).half()
    assert head(state_1D).isinf().all()
    intervals = Int8Head(head).read(state_1D)
    assert contains(intervals, head(state_1D))
    assert intervals.argmax_ids() is None


def test_nan_states_give_intervals_that_contain_nothing_and_no_argmax() -> None:
    head = Linear(torch.randn(V, D))
    intervals = Int8Head(head).read(torch.full((1, D), float("nan")))
    assert not contains(intervals, head(torch.ones(1, D)))
    assert intervals.argmax_ids() is None


def test_row_subset_keeps_intervals_and_resets_the_rescored_count() -> None:
    intervals = Int8Head(Linear(torch.randn(V, D))).read(torch.randn(3, D))
    intervals.sharpen()
    taken = intervals.take(torch.tensor([2]))
    assert taken.rescored_A.tolist() == [0]
    assert torch.equal(taken.lower_AV, intervals.lower_AV[2:])


def test_library_products_less_exact_than_assumed_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    head, state_1D = Linear(torch.randn(V, D)), torch.randn(1, D)
    assert isinstance(Int8Head(head).product, ByIntegers)
    by_integers, by_bfloat16 = ByIntegers.__call__, torch._weight_int8pack_mm

    def off(product: ByIntegers, states_AD: Tensor) -> tuple[Tensor, Tensor]:
        found_AV, lost_A = by_integers(product, states_AD)
        return found_AV * 1.001, lost_A

    monkeypatch.setattr(ByIntegers, "__call__", off)
    assert isinstance(Int8Head(head).product, ByBfloat16)
    monkeypatch.setattr(torch, "_weight_int8pack_mm", lambda *args: by_bfloat16(*args) * 1.02)
    copy = Int8Head(head)
    assert isinstance(copy.product, ByFloat32)
    assert contains(copy.read(state_1D), head(state_1D))


@pytest.mark.parametrize("width", [2, 24, 768, 5000])
def test_integer_products_have_no_rounding_but_that_of_the_result(width: int) -> None:
    """Tested up to the largest integers, whose sums may overflow on processors that accumulate in few bits."""
    draw = torch.Generator().manual_seed(0)
    weight_VD = torch.randint(-127, 128, (50, width), generator=draw).to(torch.int8)
    weight_VD[:10] = torch.where(weight_VD[:10] < 0, -127, 127).to(torch.int8)
    product = ByIntegers(weight_VD, torch.ones(50))
    states_AD = torch.randint(-63, 64, (6, width), generator=draw).float()
    states_AD[:, 0] = 63
    states_AD[:3] = weight_VD[:3].sign() * 63
    found_AV, lost_A = product(states_AD)
    assert lost_A.tolist() == [0.0] * 6
    exact_AV = states_AD.double() @ weight_VD.double().t()
    assert bool(((found_AV.double() - exact_AV).abs() <= 3 * 2.0**-24 * exact_AV.abs()).all())


def test_error_bound_of_two_part_integer_states_is_at_most_a_tenth_of_bfloat16() -> None:
    weight_VD, scale_V = torch.ones(3, D, dtype=torch.int8), torch.ones(3, dtype=torch.bfloat16)
    states_AD = torch.randn(4, D, generator=torch.Generator().manual_seed(0)) * torch.tensor([[1e-20], [1], [1e5], [0]])
    (_, lost_A), (_, rounded_A) = (way(weight_VD, scale_V)(states_AD) for way in (ByIntegers, ByBfloat16))
    assert bool((lost_A <= rounded_A / 10).all())


def test_unsupported_width_falls_back_to_the_float32_product(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("exitbench.harness.engine.model.int8_head.PRODUCT_CLASSES", (ByBfloat16,))
    assert isinstance(product_of(torch.ones(3, ODD, dtype=torch.int8), torch.ones(3)), ByFloat32)
