"""Parameters that a method declares unused change neither its threshold nor its fit."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from exitbench.methods.gated import Gated, Thresholded
from exitbench.methods.registry import get_method, method_names

RULES: dict[str, dict[str, Any]] = {
    "constant": {"rule": "constant"},
    "per-block": {"rule": "per-block", "levels": (0.1, 0.2, 0.3, 0.4)},
    "epsilon": {"rule": "epsilon"},
}
OTHER = {"threshold": 0.123, "levels": (0.5, 0.6, 0.7, 0.8), "epsilon": 0.321, "temperature": 1.5, "decay": "paper"}


def settings() -> list[Thresholded]:
    results: list[Thresholded] = []
    for name in method_names():
        kind = get_method(name)
        if not issubclass(kind, Thresholded):
            continue
        for rule in RULES.values():
            decays = [{"decay": one} for one in ("none", "code")] if issubclass(kind, Gated) else [{}]
            results += [kind.from_params({**rule, **decay}) for decay in decays]
    return results


def compared_with(method: Thresholded) -> Any:
    """Return a method's threshold, and the parameters with which it is fitted.

    Half of the fitted tokens agree with full depth, and all of those with the largest score.
    """
    scores, agrees = torch.tensor([[1.0, 2.0, 3.0, 4.0]]), torch.tensor([[False, True, False, True]])
    return method.threshold_rule({"epsilon_scores": scores, "epsilon_agrees": agrees}), method.fit_params()


@pytest.mark.parametrize("method", settings(), ids=lambda one: f"{one.name}-{one.rule}-{getattr(one, 'decay', '')}")
def test_unused_params_have_no_effect_and_the_rules_own_parameter_has(method: Thresholded) -> None:
    unused = method.unused_params()
    assert unused <= method.params().keys()
    for name in OTHER.keys() & unused:
        assert compared_with(replace(method, **{name: OTHER[name]})) == compared_with(method), name
    looked_at = {"constant": "threshold", "per-block": "levels", "epsilon": "epsilon"}[method.params()["rule"]]
    assert looked_at not in unused
    assert compared_with(replace(method, **{looked_at: OTHER[looked_at]})) != compared_with(method)


def test_methods_without_a_threshold_rule_have_no_unused_params() -> None:
    assert get_method("static")().unused_params() == get_method("oracle")().unused_params() == frozenset()
