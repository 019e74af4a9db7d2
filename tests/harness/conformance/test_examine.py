"""Contract tests: all included methods pass, and findings on methods that fail."""

from __future__ import annotations

from types import ModuleType

import pytest

from exitbench.harness.conformance import Shape, examine
from exitbench.harness.conformance.shipped import FILE, conforming_sources
from exitbench.methods.registry import distribution, get_method, method_names, syntax_sha256

SAYS = {
    "Nan": "score() must return finite numbers, got [nan, nan",
    "Column": "score() must return one number a row: [A] = [8], got [8, 1]",
    "Scalar": "score() must return one number a row: [A] = [8], got []",
    "Truth": "score() must return floating-point numbers, got torch.bool",
    "Raises": "RuntimeError: oops in my gate (exit_broken.py, line ",
    "Draws": "the same seed gives another trace",
    "OfBatch": "score() of a row depends on the other rows of the batch",
    "HalvesState": "score() changes view.hidden_AD at block 1",
    "OtherState": "score() changes view.hidden_AD at block 1",
    "RollsLogits": "score() changes view.logits_AK at block 1",
    "HalvesHistory": "score() changes view.state(0) at block 1",
    "HalvesWeights": "the model's weights are not what they were",
    "OneMemory": "view.memory['seen'] must have one row a running row: [A, ...] = [8, ...], got [3]",
    "Counts": "score() gives other numbers for the same input when called again",
    "Negative": "no token leaves early at any threshold from 0 to 1: scores are -",
    "Reversed": "scores are the wrong way round",
    "Huge": "every token leaves at block 1 at any threshold from 0 to 1",
    "WrongSql": "score_sql() = '1 - p1[l]' is not what score() returns: at block 1 ",
    "NoSql": "score_sql() = 'p_one[l]' cannot be computed over a probe: Binder Error",
    "Free": "cost() says that the gate does nothing, but score() computes from 40 numbers",
    "ReadsTwice": "FLOPs of matrix products for a token that leaves after block 1, where",
    "OtherToken": "a threshold that never opens changes the answer",
}
APART = {"Hangs", "Exits", "Crashes"}
"""Methods that must not be run in this process."""


@pytest.mark.parametrize("name", method_names())
def test_every_bundled_method_conforms(name: str) -> None:
    assert str(examine(get_method(name)())) == "conforms"


def test_file_of_preapproved_methods_matches_the_current_sources() -> None:
    ours = [cls for cls in map(get_method, method_names()) if distribution(cls)[0] == "exitbench"]
    again = f"python -m exitbench.harness.conformance.shipped ({FILE.name})"
    assert conforming_sources() == {cls.name: syntax_sha256(cls) for cls in ours}, again


@pytest.mark.parametrize("shape", [Shape(12, (3, 6, 9)), Shape(3, ())], ids=["deep", "shallow"])
def test_method_is_examined_on_a_decoder_of_the_models_shape(shape: Shape) -> None:
    static = get_method("static")
    assert examine(static.from_params({"exit_layer": shape.n_blocks - 1}), shape).conforms
    assert examine(get_method("max-prob")(), shape).conforms


def test_every_broken_gate_has_an_expected_finding(broken: ModuleType) -> None:
    assert set(broken.GATES) == {"Honest", "NotReplayable", *SAYS, *APART}


@pytest.mark.parametrize("how", ["Honest", "NotReplayable"])
def test_honest_gate_conforms_with_and_without_sql(broken: ModuleType, how: str) -> None:
    assert examine(broken.Broken(how=how)).conforms


@pytest.mark.parametrize(("how", "says"), SAYS.items())
def test_broken_method_names_the_violated_contract(broken: ModuleType, how: str, says: str) -> None:
    assert says in str(examine(broken.Broken(how=how)))
