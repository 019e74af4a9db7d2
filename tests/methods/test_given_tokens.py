"""Log-probabilities of given tokens equal those of the slow decoder (`conftest.py`), which runs choices separately."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import slow_rules
import torch

from exitbench.harness.engine.decoding.branches import Context
from exitbench.harness.engine.decoding.likelihood import score, why_not
from exitbench.methods.base import ActiveRows, BlockView
from exitbench.methods.heads import LMHead
from exitbench.methods.registry import get_method, method_names
from exitbench.methods.sampling import Sampling

L = 6
MAX_NEW_TOKENS = 8
TOO_CLOSE = 1e-5  # of two numbers that a choice hangs on: single precision may decide it either way
WAITING = ("sync-parallel", "state-copy-lazy", "recompute-backlog")
NONE = {"decay": "none"}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("full", {}),
    ("full", {"temperature": 0.5}),
    *(("static", {"exit_layer": layer}) for layer in (1, 4, L)),
    *(("static", {"exit_layer": 2, "kv_policy": policy}) for policy in ("exact", "noisy")),
    *(("calm-softmax", {"threshold": 0.3, **NONE, "kv_policy": policy}) for policy in ("state-copy", "exact", "noisy")),
    ("calm-softmax", {"threshold": 0.4, "decay": "code", "temperature": 3.0}),
    *(("calm-softmax", {"threshold": 0.3, **NONE, "kv_policy": policy}) for policy in WAITING),
    *(
        ("free", {"exit_layer": 2, "threshold": 0.3, "kv_policy": policy})
        for policy in ("sync-parallel", "state-copy-lazy")
    ),
    ("calm-saturation", {"threshold": 0.8, **NONE}),
    ("max-prob", {"threshold": 0.4, **NONE}),
    ("entropy", {"threshold": 1.5, **NONE}),
    ("patience", {"patience": 1}),
    ("mee-top3", {"threshold": 0.2, **NONE, "min_exit": 3}),
    ("random", {"mean_exit": 3.0}),
    ("oracle", {}),
    ("heads", {"threshold": 0.4, "exit_blocks": (1, 3, 4)}),
    ("heads", {"threshold": 0.4, "exit_blocks": (1, 3), "temperature": 2.0}),
    ("contrastive", {"threshold": 0.3, **NONE}),
    ("contrastive", {"threshold": 0.3, **NONE, "emit_score": "dcd", "mass": "head"}),
    ("contrastive-jsd", {"threshold": 0.2, **NONE, "min_exit": 2}),
]


def name_of(case: Any) -> str:
    return "-".join(map(str, case.values())) if isinstance(case, dict) else str(case)


def contexts(prompts: list[list[int]]) -> list[Context]:
    """Return contexts with choices of mixed length, some of which differ in their last token only."""
    rows = [[17], *prompts[:4]]
    choices = [[5, 9, 12, 7], [5, 9, 12, 30], [8], [22], [31, 6, 6], [8, 3]]
    return [Context(row, choices[: 2 + place], seed=place) for place, row in enumerate(rows)]


def log_softmax(z: Any) -> Any:
    return z - z.max() - np.log(np.exp(z - z.max()).sum())


def emitted(name: str, params: dict[str, Any], view: Any, layer: int, policy: str) -> Any:
    """Return the log-probabilities [V] from which a token that exits after ``layer`` blocks is chosen."""
    temperature = params.get("temperature", 0.0) if name in ("full", "heads") else 0.0
    if layer == L or policy == "noisy":
        return log_softmax(view.logits[L] / (temperature or 1.0))
    if name == "heads" and view.heads[layer] is not None:
        return log_softmax(view.heads[layer] / (temperature or 1.0))
    if params.get("emit_score", "plain") != "plain":
        return np.log(slow_rules.contrastive_emission(slow_rules.RuleState(view, params, {}), layer))
    return log_softmax(view.logits[layer])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("gated", [True, False], ids=["gated", "first-at-full-depth"])
@pytest.mark.parametrize(("name", "params"), CASES, ids=name_of)
def test_log_probabilities_and_exits_equal_the_slow_decoders(
    tiny: Any, prompts: Any, slow_decode: Any, name: str, params: dict[str, Any], gated: bool
) -> None:
    method = get_method(name).from_params(params).bound_to(tiny.checkpoint.model.exit_blocks)
    asked, compared, layers = method.params(), 0, set()
    policy, asked_of = asked.get("kv_policy", "state-copy"), contexts(prompts)
    scored = score(
        tiny.checkpoint, asked_of, method.parts(L), gates_first_token=gated, rows=4, max_new_tokens=MAX_NEW_TOKENS
    )
    for context, ours in zip(asked_of, scored, strict=True):
        for given, mine in zip(context.continuations, ours, strict=True):
            views: list[Any] = []
            start = tiny, list(context.context_ids), context.seed, MAX_NEW_TOKENS
            theirs = slow_decode(*start, name, asked, gates_first_token=gated, given=given, views=views)
            n = next((at for at, choice in enumerate(theirs) if choice.gap < TOO_CLOSE), len(theirs))
            assert mine.token_ids == list(given)
            assert mine.exit_layers[:n] == [choice.exit_layer for choice in theirs[:n]]
            for at in range(n):
                log_p = emitted(name, asked, views[at], theirs[at].exit_layer, policy)
                assert mine.logprobs[at] == pytest.approx(log_p[given[at]], abs=2e-4)
                assert mine.greedy[at] == (int(log_p.argmax()) == given[at])
                expected = None if theirs[at].score is None else pytest.approx(theirs[at].score, abs=1e-4)
                assert mine.scores[at] == expected
                layers.add(mine.exit_layers[at])
            compared += n
    assert compared >= 25
    assert name == "full" or params.get("exit_layer") == L or min(layers) < L, "no token left early"


@pytest.mark.parametrize("name", method_names())
def test_verifying_methods_provide_no_log_probabilities(name: str) -> None:
    method = get_method(name)()
    if name in ("self-speculation", "del", "prompt-lookup"):
        assert "verifies its drafts" in str(why_not(method.parts(L)))
    else:
        assert why_not(method.parts(L)) is None
    if name == "free":
        rolls_back = get_method(name).from_params({"kv_policy": "sync-parallel-rollback"})
        assert "a given token is not to be replaced" in str(why_not(rolls_back.parts(L)))


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"head": "pruned-fixed"}, "reads only a part of the vocabulary"),
        ({"emit_score": "lcd"}, "gives tokens outside the plausible set no probability"),
        ({"emit_score": "dcd"}, "sums to more than 1"),
        ({"emit_score": "dcd", "mass": "head"}, None),
    ],
    ids=name_of,
)
def test_contrastive_settings_without_a_distribution_state_the_reason(params: dict[str, Any], says: str | None) -> None:
    reason = why_not(get_method("contrastive").from_params(params).parts(L))
    assert reason is None if says is None else says in str(reason)


class OwnChoice(Sampling):
    """Sampling gate with its own `choose` and without `log_p`."""

    def score(self, view: BlockView) -> torch.Tensor:
        return torch.ones(len(view.hidden_AD))

    def choose(self, view: BlockView) -> torch.Tensor:
        return view.logits_AK.argmin(-1)


class OwnDistribution(OwnChoice):
    """Sampling gate with its own `choose` and the matching `log_p`."""

    def log_p(self, view: BlockView) -> torch.Tensor:
        return torch.log_softmax(-view.logits_AK, dim=-1)


def test_gate_that_overrides_choose_must_define_log_probabilities() -> None:
    assert "in a way that gives them no probabilities" in str(OwnChoice().why_no_log_p)
    assert OwnDistribution().why_no_log_p is None


EMITTING = [case for case in CASES if "temperature" not in case[1] or "decay" in case[1]]


@pytest.mark.parametrize(("name", "params"), EMITTING, ids=name_of)
def test_chosen_token_has_the_largest_log_probability(tiny: Any, name: str, params: dict[str, Any]) -> None:
    """At every gated block, `choose` takes the most probable token of `log_p`, which is a distribution."""
    model = tiny.checkpoint.model
    method = get_method(name).from_params(params).bound_to(model.exit_blocks)
    parts = method.parts(L)
    states_LND = torch.randn(L + 1, 9, model.d_model, generator=torch.Generator().manual_seed(3))
    for block in [*parts.gate_blocks(L), L]:
        view = BlockView(
            block=block,
            active=ActiveRows((1,) * 9, tuple(range(9))),
            max_new_tokens=1,
            hidden_AD=states_LND[block],
            memory={},
            model=model,
            head=parts.head,
            earlier=states_LND[:block].unbind(),
        )
        log_p_AV = parts.gate.log_p(view)
        assert torch.equal(log_p_AV.argmax(-1), parts.gate.choose(view))
        torch.testing.assert_close(log_p_AV.exp().sum(-1), torch.ones(9))


def test_log_probabilities_at_a_temperature_equal_the_sampling_distribution(tiny: Any) -> None:
    model = tiny.checkpoint.model
    states_AD = torch.randn(5, model.d_model, generator=torch.Generator().manual_seed(3))
    view = BlockView(
        block=L,
        active=ActiveRows((1,) * 5, tuple(range(5))),
        max_new_tokens=1,
        hidden_AD=states_AD,
        memory={},
        model=model,
        head=LMHead(),
    )
    parts = get_method("full").from_params({"temperature": 0.7}).parts(L)
    torch.testing.assert_close(parts.gate.log_p(view), torch.log_softmax(model.logits(states_AD) / 0.7, dim=-1))
