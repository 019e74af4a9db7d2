"""Parameters of methods: allowed values, and messages about others."""

from __future__ import annotations

import math
from typing import Any

import pytest

from exitbench.errors import UserError
from exitbench.methods.registry import get_method


@pytest.mark.parametrize(
    ("name", "params", "says"),
    [
        ("calm-softmax", {"treshold": 0.5}, "has no parameter 'treshold'. Did you mean 'threshold'?"),
        ("full", {"depth": 3}, "has no parameter 'depth'. Allowed: temperature."),
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
        ("calm-softmax", {"every": 0}, ".every = 0 is out of range; allowed: at least 1."),
        ("calm-softmax", {"levels": 0.5}, ".levels must be a list, not 0.5."),
        ("calm-softmax", {"levels": [0.5, "a"]}, ".levels[1] must be of type float, not 'a'."),
        ("calm-softmax", {"levels": [0.5, -1]}, ".levels[1] = -1.0 is out of range; allowed: at least 0.0."),
        ("calm-softmax", {"kv_policy": "exakt"}, ".kv_policy cannot be 'exakt'. Did you mean 'exact'?"),
        ("static", {"exit_layer": 0}, ".exit_layer = 0 is out of range; allowed: at least 1."),
        ("static", {"exit_layer": True}, ".exit_layer must be of type int, not True."),
        ("oracle", {"match": "stabel"}, ".match cannot be 'stabel'. Did you mean 'stable'?"),
        ("random", {"mean_exit": 0.9}, ".mean_exit = 0.9 is out of range; allowed: at least 1.0."),
    ],
)
def test_invalid_parameter_error_names_it_and_the_allowed_values(name: str, params: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError) as caught:
        get_method(name).from_params(params, location="my.toml, line 7")
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
        (
            "max-prob",
            {"rule": "per-block", "levels": [0.5] * 6},
            "max-prob.levels has 6 values; 6 blocks need 5.",
        ),
        ("max-prob", {"rule": "per-block"}, "max-prob.levels has 0 values; 6 blocks need 5."),
        (
            "mee-top3",
            {"rule": "epsilon", "variant": "code"},
            "mee-top3.rule = 'epsilon' does not go with variant = 'code'; allowed: constant, per-block.",
        ),
        ("patience", {"k_first": 9, "k_min": 10}, "patience.k_min = 10 is above k_first = 9."),
    ],
)
def test_parameter_that_conflicts_with_the_model_or_another_parameter_is_named(
    name: str, params: dict[str, Any], says: str
) -> None:
    with pytest.raises(UserError) as caught:
        get_method(name).from_params(params).check(6)
    assert str(caught.value).startswith(says)


def test_integers_are_accepted_for_float_parameters_and_stored_as_floats() -> None:
    result = get_method("calm-softmax").from_params({"threshold": 1, "levels": [0, 1, 0.5]})
    assert result.params()["threshold"] == 1.0
    assert isinstance(result.params()["threshold"], float)
    assert result.params()["levels"] == (0.0, 1.0, 0.5)
    assert {type(level) for level in result.params()["levels"]} == {float}
