"""A model that learned one level of the built-in data is not measured on another level by mistake.

A level is a difficulty of that data.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from suite_runs import plan_suite

from exitbench.errors import UserError
from exitbench.harness.planning.plan import Plan
from exitbench.harness.planning.suite import load_suite

SUITE = """\
schema = 1
name = "levels"
seed = 7

[models.small]
recipe = "{recipe}"

[tasks.questions]
task = "squad"
source = "builtin"
limit = 3
level = {level}

[[sweep]]
method = "full"
"""


@pytest.fixture
def plan(tmp_path: Path) -> Callable[..., Plan]:
    """Return a function that plans a suite of one model on one level of the built-in data."""
    return lambda recipe, level: plan_suite(tmp_path, SUITE.format(recipe=recipe, level=level))


@pytest.mark.parametrize("recipe", ["builtin-weighted", "builtin-exit-heads"])
def test_level_the_model_was_not_trained_on_is_refused(plan: Callable[..., Plan], recipe: str) -> None:
    with pytest.raises(
        UserError,
        match=rf"\[tasks.questions\]: level is 3, but model 'small' \(recipe '{recipe}'\) .*level = 1 or level = 2;",
    ):
        plan(recipe, 3)


def test_trained_levels_and_models_of_other_data_are_planned(plan: Callable[..., Plan]) -> None:
    assert plan("builtin-weighted", 2).groups
    assert plan("builtin-exit-heads", 1).groups, "its model learned it, before it had heads"
    assert plan("multi30k-weighted", 3).groups


@pytest.mark.parametrize(("level", "message"), [(4, "is 4. Allowed: 1, 2, 3"), ("'two'", "whole number")])
def test_unknown_level_is_reported_with_its_line(plan: Callable[..., Plan], level: object, message: str) -> None:
    with pytest.raises(UserError, match=rf"suite\.toml:12: .*{message}"):
        plan("builtin-weighted", level)


def test_level_is_refused_without_builtin_data(plan: Callable[..., Plan], tmp_path: Path) -> None:
    path = tmp_path / "hub.toml"
    path.write_text(SUITE.format(recipe="builtin-weighted", level=2).replace('"builtin"\n', '"hub"\n', 1))
    with pytest.raises(UserError, match='goes with source = "builtin" only'):
        load_suite(path)
