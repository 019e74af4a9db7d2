"""Methods may decode in one pass only if their parts are the same except for the threshold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from exitbench.harness.work.sharing import differ_in_threshold_alone
from exitbench.methods.base import BlockView, Gate
from exitbench.methods.registry import get_method


def alike(method: str, one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    cls = get_method(method)
    return differ_in_threshold_alone(*(cls.from_params(params).parts(8) for params in (one, other)))


@pytest.mark.parametrize(
    ("method", "one", "other"),
    [
        ("calm-softmax", {"threshold": 0.1}, {"threshold": 0.9, "decay": "paper"}),
        ("calm-softmax", {"threshold": 0.1}, {"rule": "per-block", "levels": (0.5,) * 7}),
        ("calm-softmax", {"head": "pruned-fixed"}, {"head": "pruned-fixed", "threshold": 0.1}),
        ("patience", {"patience": 1}, {"patience": 2, "counting": "sentence"}),
        ("entropy", {"threshold": 0.1}, {"threshold": 0.2}),
    ],
)
def test_methods_that_differ_only_in_the_threshold_rule_can_share_a_pass(
    method: str, one: dict[str, Any], other: dict[str, Any]
) -> None:
    assert alike(method, one, other)


@pytest.mark.parametrize(
    ("method", "one", "other"),
    [
        ("calm-softmax", {}, {"min_exit": 2}),
        ("calm-softmax", {}, {"head": "pruned-fixed"}),
        ("calm-softmax", {"head": "pruned-fixed"}, {"head": "pruned-fixed", "k_first": 300}),
        ("calm-softmax", {}, {"kv_policy": "exact"}),
        ("free", {"kv_policy": "sync-parallel-rollback"}, {"kv_policy": "sync-parallel-rollback", "rollback": 1.0}),
        ("static", {"exit_layer": 1}, {"exit_layer": 2}),
        ("random", {"mean_exit": 2.0}, {"mean_exit": 3.0}),
    ],
)
def test_methods_that_differ_in_computation_cannot_share_a_pass(
    method: str, one: dict[str, Any], other: dict[str, Any]
) -> None:
    assert not alike(method, one, other)


class GateWithValue(Gate):
    """Gate that stores a value in an attribute."""

    def __init__(self, what: Any) -> None:
        self.what = what

    def score(self, view: BlockView) -> Tensor:
        return torch.zeros(len(view.hidden_AD))


class GateWithSlot(GateWithValue):
    """Gate with a slot, a place for a value that `vars` does not show."""

    __slots__ = ("hidden",)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (0.3, 0.3, True),
        (0.3, 0.5, False),
        ({"w": torch.ones(2)}, {"w": torch.ones(2)}, True),
        ({"w": torch.ones(2)}, {"w": torch.zeros(2)}, False),
        (lambda: 0.3, lambda: 0.3, False),
        (get_method("calm-softmax")(), get_method("calm-softmax")(), False),
    ],
    ids=["alike", "a threshold of its own", "weights alike", "other weights", "functions", "methods"],
)
def test_gates_share_a_pass_only_if_provably_equal(one: Any, other: Any, same: bool) -> None:
    parts = get_method("calm-softmax")().parts(8)
    assert (
        differ_in_threshold_alone(replace(parts, gate=GateWithValue(one)), replace(parts, gate=GateWithValue(other)))
        is same
    )
    assert not differ_in_threshold_alone(replace(parts, gate=GateWithSlot(0.3)), replace(parts, gate=GateWithSlot(0.3)))
