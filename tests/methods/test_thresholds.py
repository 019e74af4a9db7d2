"""Thresholds at every block and position, by rule and decay."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exitbench.methods.registry import get_method
from exitbench.methods.thresholds import Constant, PerBlock, PositionDecayed


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
def test_decayed_threshold_counts_positions_from_1(decay: str, level: float, t: int, expected: float) -> None:
    parts = get_method("calm-softmax")(threshold=level, decay=decay, temperature=4.0).parts(4)
    assert parts.threshold.value(block=2, position=t, max_new_tokens=10) == pytest.approx(expected, abs=1e-9)


def test_paper_decay_is_clipped_to_0_and_1() -> None:
    assert PositionDecayed(Constant(1.0), 0.0, "paper").value(1, 1, 10) == 1.0
    assert PositionDecayed(Constant(1.2), 0.0, "paper").value(1, 1, 10) == 1.0
    assert PositionDecayed(Constant(-1.0), 0.0, "paper").value(1, 1, 10) == 0.0


def test_per_block_rule_returns_the_level_of_each_block() -> None:
    rule = PerBlock((0.5, 0.4, math.inf))
    assert [rule.value(block, 7, 10) for block in (1, 2, 3)] == [0.5, 0.4, math.inf]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=5), st.floats(0, 9), st.integers(1, 50))
def test_code_decay_lowers_a_blocks_level_by_at_most_a_tenth(levels: list[float], temperature: float, t: int) -> None:
    rule = PositionDecayed(PerBlock(tuple(levels)), temperature, "code")
    for block, level in enumerate(levels, 1):
        value = rule.value(block, t, 50)
        assert value == pytest.approx(0.9 * level + 0.1 * level * math.exp(-temperature * t / 50))
        assert 0.9 * level - 1e-12 <= value <= level + 1e-12


def test_entropy_thresholds_are_in_nats_and_decay_on_the_score_scale() -> None:
    entropy = get_method("entropy")
    assert entropy(threshold=1.5).parts(4).threshold.value(1, 1, 10) == pytest.approx(math.exp(-1.5))
    per_block = entropy(rule="per-block", levels=(0.0, 1.0, 2.0)).parts(4).threshold
    assert [per_block.value(block, 1, 10) for block in (1, 2, 3)] == pytest.approx([1, math.exp(-1), math.exp(-2)])
    decayed = entropy(threshold=1.5, decay="code", temperature=4.0).parts(4).threshold
    assert decayed.value(1, 10, 10) == pytest.approx(math.exp(-1.5) * (0.9 + 0.1 * math.exp(-4)))
