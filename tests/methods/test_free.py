"""FREE and self-speculation: parameters, fitted thresholds, gates."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from exitbench.errors import UserError
from exitbench.methods.base import FitData, Method, argmax_token
from exitbench.methods.beta_mixture import adaptive_threshold
from exitbench.methods.free import Free
from exitbench.methods.kv_policies import KV_POLICIES, Rollback
from exitbench.methods.self_speculation import SelfSpeculation
from exitbench.methods.thresholds import Constant

L = 6


def data(tiny: Any, n_documents: int = 40, order: torch.Tensor | None = None) -> FitData:
    """Return fit data: states of random tokens, eight per document."""
    model = tiny.checkpoint.model
    tokens = torch.randint(2, model.vocab_size, (n_documents, 8), generator=torch.Generator().manual_seed(8))
    tokens = tokens if order is None else tokens[order]
    cache, _ = model.start([[5, 6]] * n_documents, room=8)
    hidden, context = model.embed(tokens, cache)
    states = [hidden]
    for block in range(1, L + 1):
        hidden = model.block(block, hidden, context)
        states.append(hidden)
    states_LND = torch.stack([state.flatten(0, 1) for state in states])
    final = argmax_token(model.logits(states_LND[-1]))
    return FitData(model, states_LND, final, final, torch.arange(n_documents).repeat_interleave(8))


def fit(method: Method, seen: FitData) -> float:
    return float(method.fit(seen, lambda share: None).tensors["threshold"])


def margins(seen: FitData, block: int) -> tuple[torch.Tensor, torch.Tensor]:
    logits = seen.model.logits(seen.states_LND[block])
    first, second = torch.softmax(logits, -1).topk(2).values.unbind(-1)
    return first - second, argmax_token(logits) == seen.final_token_N


def test_adaptive_threshold_is_fitted_to_the_margins_of_all_tokens(tiny: Any) -> None:
    seen = data(tiny)
    margin_N, agrees_N = margins(seen, 5)
    level = fit(Free(exit_layer=5, threshold=0.5, rule="adaptive"), seen)
    assert level == adaptive_threshold(margin_N, agrees_N, 0.5)
    assert level != 0.5, "or nothing is learned here"


def test_adaptive_code_threshold_is_fitted_to_tokens_in_parallel_passes(tiny: Any) -> None:
    seen = data(tiny)
    margin_N, agrees_N = margins(seen, 5)
    used, waiting = [], list[int]()
    for at, margin in enumerate(margin_N.tolist()):
        waiting = [] if at % 8 == 0 else waiting
        if margin > 0.5:
            waiting.append(at)
        else:
            used += [*waiting, at] if waiting else []
            waiting = []
    assert 0 < len(used) < len(margin_N)
    expected = adaptive_threshold(margin_N[used], agrees_N[used], 0.5, "code")
    assert fit(Free(exit_layer=5, threshold=0.5, rule="adaptive-code"), seen) == expected


@pytest.mark.parametrize("rule", ["adaptive", "adaptive-code"])
def test_fitted_threshold_does_not_depend_on_document_order(tiny: Any, rule: str) -> None:
    method = Free(exit_layer=5, threshold=0.5, rule=rule)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(1))
    assert fit(method, data(tiny)) == fit(method, data(tiny, order=order))


def test_adaptive_rule_uses_the_fitted_threshold_and_constant_rule_needs_no_fit() -> None:
    adaptive = Free(exit_layer=5, rule="adaptive")
    fitted = {"threshold": torch.tensor(0.3666, dtype=torch.float64)}
    assert adaptive.parts(L, fitted).threshold == Constant(0.3666)
    assert adaptive.parts(L).threshold == Constant(float("inf")), "nothing leaves before it is fitted"
    assert adaptive.fit_params() == {"exit_layer": 5, "threshold": 0.9, "rule": "adaptive"}
    assert Free().fit_params() == {}
    assert Free(threshold=0.4).parts(L).threshold == Constant(0.4)


def test_fit_at_full_depth_keeps_the_initial_threshold(tiny: Any) -> None:
    assert fit(Free(exit_layer=L, threshold=0.4, rule="adaptive"), data(tiny)) == 0.4


def test_only_rollback_policies_use_the_rollback_bound() -> None:
    for name, verifies_tail in (("sync-parallel-rollback", True), ("sync-parallel-rollback-code", False)):
        policy = Free(kv_policy=name, rollback=0.7).parts(L).kv_policy
        assert isinstance(policy, Rollback)
        assert (policy.name, policy.bound, policy.verifies_tail) == (name, 0.7, verifies_tail)
    for name in ("sync-parallel", "state-copy-lazy"):
        assert Free(kv_policy=name).parts(L).kv_policy is KV_POLICIES[name]
    assert not any(policy.verifies for policy in KV_POLICIES.values()), "others cannot be given one that verifies"


@pytest.mark.parametrize(
    ("cls", "params", "says"),
    [
        (Free, {"kv_policy": "exact"}, "free.kv_policy cannot be 'exact'"),
        (Free, {"rule": "epsilon"}, "free.rule cannot be 'epsilon'"),
        (Free, {"rollback": -0.1}, "free.rollback = -0.1 is out of range; allowed: at least 0.0"),
        (SelfSpeculation, {"drafts": 0}, "self-speculation.drafts = 0 is out of range; allowed: at least 1"),
        (Free, {"exit_layer": 7}, "free.exit_layer = 7 is above the depth of the model; allowed: between 1 and 6"),
        (SelfSpeculation, {"exit_layer": 7}, "self-speculation.exit_layer = 7 is above the depth"),
    ],
)
def test_invalid_parameters_are_refused(cls: type[Method], params: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError) as caught:
        cls.from_params(params).check(L)
    assert says in str(caught.value)
