"""The quick conformance check that `exitbench list methods` prints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from exitbench.harness import cli
from exitbench.harness.conformance import verdict
from exitbench.methods.base import BlockView, Gate, param
from exitbench.methods.gated import Gated
from exitbench.methods.registry import get_method, method_names


class Broken(Gate):
    """Scores that the tests break in different ways."""

    def __init__(self, how: str) -> None:
        self.how = how
        self.calls = 0

    def score(self, view: BlockView) -> Tensor:
        self.calls += 1
        n_rows = len(view.hidden_AD)
        if self.how == "batch":
            return torch.full((n_rows,), float(n_rows > 1))
        if self.how == "seed":
            return torch.full((n_rows,), float(self.calls % 7 == 0))
        if self.how == "nan":
            return torch.full((n_rows,), float("nan"))
        return torch.zeros(n_rows)

    def choose(self, view: BlockView) -> Tensor:
        chosen = super().choose(view)
        return (chosen + 1) % 40 if self.how == "emission" else chosen


@dataclass(frozen=True)
class BrokenMethod(Gated):
    """A method that is broken as asked."""

    name: ClassVar[str] = "broken"
    how: str = param("", "how")

    def gate(self, fitted: Mapping[str, Tensor]) -> Gate:
        return Broken(self.how)


@pytest.mark.parametrize("name", method_names())
def test_every_method_that_ships_conforms(name: str) -> None:
    assert verdict(get_method(name)()) == "conforms"


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("batch", "fails: a batch is not its rows one by one"),
        ("seed", "fails: a batch is not its rows one by one"),
        ("nan", "fails: ArithmeticError: the confidence scores at block 1 are not finite"),
        ("emission", "fails: a threshold that never opens changes the answer"),
    ],
)
def test_a_broken_method_is_told_what_is_wrong(how: str, says: str) -> None:
    assert verdict(BrokenMethod(how=how)).startswith(says)
    assert verdict(BrokenMethod()) == "conforms"


def test_the_list_of_methods_names_needs_and_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", "methods"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("  conformance: conforms\n") == len(method_names())
    assert "  needs: a fit on the train split, a scores cell before a replay\n" in printed
    assert "  kv_policy = 'state-copy': " in printed
