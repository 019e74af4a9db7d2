"""Contract tests of every method, including those of other distributions.

A method registered through the entry-point group ``exitbench.methods`` is tested with its default parameters. Further
parameters to test are in `EXAMPLES`.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from exitbench.harness.conformance.costs import cost_mismatches
from exitbench.harness.engine.decoding.block_runner import BlockRunner
from exitbench.harness.engine.decoding.decode import decode, decode_step, prefill
from exitbench.harness.engine.decoding.generation import Generation, Request
from exitbench.harness.engine.decoding.trace import Trace
from exitbench.methods.base import FitData, Method, Parts, argmax_token
from exitbench.methods.offline import score_states
from exitbench.methods.registry import baseline_method, get_method, method_names
from exitbench.methods.thresholds import Constant

L = 6
EXIT_BLOCKS = (1, 3, 4)  # of the checkpoints of conftest.py
MAX_NEW_TOKENS = 8
_SOFTMAX = [
    {"threshold": 0.3, "decay": "paper"},
    {"threshold": 0.3, "min_exit": 2, "every": 2},
    {"rule": "per-block", "levels": [0.5, 0.4, 0.3, 0.2, 0.1]},
    {"rule": "epsilon", "epsilon": 0.6, "decay": "none"},
    *(
        {"threshold": 0.4, "head": f"pruned-{keeping}", "k_first": 60, "k_min": 4}
        for keeping in ("fixed", "decaying", "decaying-idsorted", "adaptive", "adaptive-code")
    ),
    {"threshold": 0.4, "head": "pruned-fixed", "k_first": 7, "k_min": 1, "k_schedule": "constant"},
]
_PRUNED = {"head": "pruned-decaying", "k_first": 60, "k_min": 4}
_CONTRASTIVE = [
    {"threshold": 0.4},
    {"threshold": 0.4, "alpha_schedule": "hyperbolic", "alpha": 0.3},
    {"threshold": 0.4, "emit_score": "lcd"},
    {"threshold": 0.4, "emit_score": "dcd", "gate_score": "plain"},
    {"threshold": 0.4, "amateur": "dola-low"},
    {"threshold": 0.4, "amateur": "dola-high"},
    {"threshold": 0.4, **_PRUNED},
    {"threshold": 0.4, "head": "pruned-adaptive", "k_first": 60, "k_min": 4},
]
_POLICIES = ("state-copy-lazy", "sync-parallel", "recompute-backlog", "exact", "noisy")
EXAMPLES: dict[str, list[dict[str, Any]]] = {
    "calm-softmax": [*_SOFTMAX, *({"threshold": 0.3, "kv_policy": policy} for policy in _POLICIES)],
    "max-prob": [{"threshold": 0.5}, {"threshold": 0.5, **_PRUNED}],
    "entropy": [{"threshold": 1.5}, {"threshold": 1.5, **_PRUNED}, {"threshold": 1.5, "decay": "code"}],
    "patience": [{"patience": 1}, {"patience": 2, "counting": "sentence"}, {"patience": 1, **_PRUNED}],
    "calm-saturation": [
        {"threshold": 0.8},
        {"threshold": 0.8, "states": "raw", "first": "zero"},
        {"threshold": 0.8, "kv_policy": "sync-parallel"},
        {"rule": "epsilon", "epsilon": 0.5, "decay": "none"},
    ],
    "calm-classifier": [
        {"threshold": 0.5, "network": "mlp", "epochs": 2},
        {"threshold": 0.5, "loss": "geometric", "epochs": 1},
        {"rule": "epsilon", "epsilon": 0.5, "decay": "none", "epochs": 1},
    ],
    "mee-lstm": [
        {"threshold": 0.5, "min_exit": 2, "every": 2, "layers": 1, "hidden": 8, "epochs": 1},
        {"threshold": 0.5, "min_exit": 1, "layers": 1, "hidden": 8, "epochs": 1, "variant": "code"},
    ],
    "mee-mlp3": [{"threshold": 0.5, "min_exit": 1, "epochs": 1}],
    "adainfer": [{"threshold": 0.5, "epochs": 1}, {"rule": "epsilon", "epsilon": 0.5, "decay": "none", "epochs": 1}],
    "mee-top3": [{"threshold": 0.3}, {"threshold": 0.3, "variant": "code"}, {"signal": "logits", "min_exit": 1}],
    "contrastive": [*_CONTRASTIVE, {"threshold": 0.4, "kv_policy": "recompute-backlog"}],
    "contrastive-reweighted": _CONTRASTIVE[:4],
    "contrastive-jsd": _CONTRASTIVE,
    "static": [{"exit_layer": 4}, {"exit_layer": L}, *({"exit_layer": 3, "kv_policy": policy} for policy in _POLICIES)],
    "heads": [
        *({"threshold": 0.3, "confidence": confidence} for confidence in ("breaking-ties", "entropy", "max-prob")),
        {"threshold": 1.5, "confidence": "breaking-ties-logits"},
        {"threshold": 6.0, "confidence": "max-logit"},
        {"threshold": 0.3, "exit_blocks": [3, 4]},
        {"rule": "epsilon", "epsilon": 0.1},
        *({"threshold": 0.3, "kv_policy": policy} for policy in _POLICIES),
    ],
    "free": [
        {"exit_layer": 3, "threshold": 0.3},
        {"exit_layer": 1, "threshold": 0.0, "kv_policy": "state-copy-lazy"},
        {"exit_layer": L},
        {"rule": "adaptive"},
        {"rule": "adaptive-code", "threshold": 0.3},
        {"exit_layer": 2, "threshold": 0.1, "kv_policy": "sync-parallel-rollback", "rollback": 3.0},
        {"exit_layer": 4, "threshold": 0.1, "kv_policy": "sync-parallel-rollback", "rollback": 0.0},
        {"exit_layer": 2, "threshold": 0.1, "kv_policy": "sync-parallel-rollback-code", "rollback": 3.0},
    ],
    "self-speculation": [{"exit_layer": 4, "drafts": 2}, {"exit_layer": 3, "drafts": 1}, {"exit_layer": L}],
    "del": [{"max_drafts": 2}, {"min_exit": 2, "every": 2, "head_blocks": 1.0}, {"memory_decay": 0.0}],
    "prompt-lookup": [{"drafts": 2}, {"ngram_tokens": 1}],
    "random": [{"mean_exit": 3.5}, *({"mean_exit": 2.5, "seed": 9, "kv_policy": policy} for policy in _POLICIES)],
    "oracle": [{"match": "stable"}, *({"kv_policy": policy} for policy in _POLICIES)],
}
KINDS = ("seq2seq", "causal")
CASES = [
    # Defaults are tried on both kinds. `sampled(2)` keeps one of two neighbours: each kind for every other method.
    *((kind, name, {}) for place, name in enumerate(method_names()) for kind in KINDS[:: -1 if place % 2 else 1]),
    # A method does not see which model it runs on: further parameters are tried in turn on either.
    *(
        (kind, name, params)
        for first, kind in enumerate(reversed(KINDS))
        for name in method_names()
        for params in EXAMPLES.get(name, [])[first::2]
    ),
]
NEVER, ALWAYS = Constant(math.inf), Constant(-math.inf)


@pytest.fixture(
    params=CASES,
    ids=[f"{kind}-{name}-{'-'.join(map(str, params.values())) or 'default'}" for kind, name, params in CASES],
)
def case(request: pytest.FixtureRequest) -> Any:
    """Return a kind of model, a registered method, and parameters of the method."""
    return request.param


@pytest.fixture
def tiny(case: Any, request: pytest.FixtureRequest) -> Any:
    """Return the checkpoint of the case's kind of model."""
    return request.getfixturevalue(case[0])


@pytest.fixture
def method(case: Any) -> Method:
    _, name, params = case
    result = get_method(name).from_params(params)
    result.check(L)
    return result.bound_to(EXIT_BLOCKS)


_fits: dict[tuple[str, str, str], dict[str, Tensor]] = {}


@pytest.fixture
def bind(tiny: Any, prompts: Any) -> Callable[[Method], Parts]:
    """Return a function that returns the parts of a method, fitted on a probe if necessary."""
    return binder(tiny, prompts)


def binder(tiny: Any, prompts: Any) -> Callable[[Method], Parts]:
    def bound(method: Method) -> Parts:
        asked = method.fit_params()
        if not asked:
            return method.parts(L)
        key = (tiny.checkpoint.kind, method.name, json.dumps(asked))
        if key not in _fits:
            _fits[key] = method.fit(fit_data(tiny, prompts), lambda share: None).tensors
        return method.parts(L, _fits[key])

    return bound


def run(tiny: Any, parts: Parts, prompts: list[list[int]], first_seed: int = 0) -> list[Generation]:
    requests = [Request(prompt, seed) for seed, prompt in enumerate(prompts, first_seed)]
    return decode(tiny.checkpoint, prefill(tiny.checkpoint.model, requests, MAX_NEW_TOKENS), parts)


_answers: dict[tuple[str, str, str], list[Generation]] = {}


def answers(tiny: Any, method: Method, parts: Parts, prompts: list[list[int]]) -> list[Generation]:
    """Return the method's answers to all prompts in one batch, decoded once for all tests."""
    key = (tiny.checkpoint.kind, method.name, json.dumps(method.params()))
    if key not in _answers:
        _answers[key] = run(tiny, parts, prompts)
    return _answers[key]


def decoded_layers(tiny: Any, generations: list[Generation]) -> list[int]:
    """Return the exit layers that the gate decided.

    Tokens read from a prompt's own pass (decoder-only models) and tokens that replace rejected drafts are left out.
    """
    skip = 0 if tiny.checkpoint.kind == "seq2seq" else 1
    tokens = [pair for g in generations for pair in list(zip(g.exit_layers, g.rejected, strict=True))[skip:]]
    return [layer for layer, rejected in tokens if not rejected]


def allowed(parts: Parts) -> set[int]:
    """Blocks after which a token may end."""
    return {block for block in parts.blocks if block < L} | {L}


# ---------------------------------------------------------------------------------------------- thresholds


@pytest.mark.sampled(2)
def test_unreachable_threshold_equals_full_depth(tiny: Any, prompts: Any, method: Method, bind: Any) -> None:
    never = run(tiny, dataclasses.replace(bind(method), threshold=NEVER), prompts)
    full = answers(tiny, baseline_method()(), baseline_method()().parts(L), prompts)
    assert [g.token_ids for g in never] == [g.token_ids for g in full]
    assert {layer for g in never for layer in g.exit_layers} == {L}


@pytest.mark.sampled(2)
def test_minimal_threshold_exits_at_the_first_allowed_block(tiny: Any, prompts: Any, method: Method, bind: Any) -> None:
    always = dataclasses.replace(bind(method), threshold=ALWAYS)
    result = run(tiny, always, prompts)
    after_drafts = set() if always.kv_policy.max_drafts is None else {L}
    assert set(decoded_layers(tiny, result)) <= {min(allowed(always))} | after_drafts
    assert decoded_layers(tiny, result) or always.kv_policy.verifies


@pytest.mark.sampled(2)
def test_every_token_has_an_exit_layer_among_the_allowed_blocks(
    tiny: Any, prompts: Any, method: Method, bind: Any
) -> None:
    parts = bind(method)
    for g in answers(tiny, method, parts, prompts):
        assert len(g.exit_layers) == len(g.token_ids) > 0
        assert set(g.exit_layers) <= allowed(parts)


def full_depth_states(tiny: Any, prompts: list[list[int]], n_new: int = 4) -> Tensor:
    """Return the states of random tokens of six rows at full depth, after embedding and every block, [L+1, N, D]."""
    model = tiny.checkpoint.model
    cache, _ = model.start(prompts[:6], room=n_new)
    tokens = torch.randint(2, model.vocab_size, (6, n_new), generator=torch.Generator().manual_seed(8))
    hidden, context = model.embed(tokens, cache)
    states = [hidden]
    for block in range(1, L + 1):
        hidden = model.block(block, hidden, context)
        states.append(hidden)
    return torch.stack([state.flatten(0, 1) for state in states])


def fit_data(tiny: Any, prompts: list[list[int]]) -> FitData:
    """Return data to fit methods on: the states of 120 random tokens in six documents."""
    states = full_depth_states(tiny, prompts, n_new=20)
    final = argmax_token(tiny.checkpoint.model.logits(states[-1]))
    return FitData(tiny.checkpoint.model, states, final, final.roll(1), torch.arange(6).repeat_interleave(20))


@pytest.mark.sampled(2)
def test_mean_exit_layer_never_falls_as_the_threshold_rises(tiny: Any, prompts: Any, method: Method, bind: Any) -> None:
    parts = bind(method)
    states = full_depth_states(tiny, prompts)
    scores_LN, _ = score_states(parts, tiny.checkpoint.model, states, seeds_N=range(states.shape[1]))
    asked = parts.gate_blocks(L)
    assert not scores_LN[[block - 1 for block in asked]].isnan().any()
    levels = [-math.inf, *torch.linspace(-0.05, 1.05, 23).tolist(), 2.0, 3.0, math.inf]
    means = []
    for level in levels:
        leaves_LN = scores_LN > level  # NaN where the gate is not asked
        leaves_LN[-1] = True
        means.append((1 + leaves_LN.int().argmax(0)).double().mean().item())
    assert means == sorted(means)
    assert (means[0], means[-1]) == (min(allowed(parts)), L)


@pytest.mark.sampled(2)
def test_scores_of_known_states_equal_those_of_the_decode_loop(
    tiny: Any, prompts: Any, method: Method, bind: Any
) -> None:
    """Fits, calibrations and replays use the same scores as decoding."""
    model, parts = tiny.checkpoint.model, dataclasses.replace(bind(method), threshold=NEVER)
    cache, _ = model.start(prompts[:6], room=2)
    for position in (1, 2):
        (hidden, context), states = model.embed(torch.full((6, 1), 5), cache), []
        for block in range(1, L + 1):
            states.append(hidden[:, 0])
            hidden = model.block(block, hidden, context)
        known = torch.stack([*states, hidden[:, 0]])
        trace, seeds, fed = Trace(model), tuple(range(6)), torch.full((6,), 5)
        step = decode_step(
            BlockRunner(model, cache, parts), fed, (position,) * 6, MAX_NEW_TOKENS, seeds, observer=trace
        )
        scores_LN, emitted_LN = score_states(parts, model, known, position=position, seeds_N=range(6))
        for block, score_A, _ in trace.gate_scores:
            assert torch.allclose(scores_LN[block - 1], score_A, atol=1e-4)
        assert emitted_LN[-1].tolist() == step.token_B.tolist()


# ------------------------------------------------------------------------------------------- independence


@pytest.mark.sampled(2)
def test_batched_answers_equal_single_row_answers(tiny: Any, prompts: Any, method: Method, bind: Any) -> None:
    parts = bind(method)
    together = answers(tiny, method, parts, prompts)
    for seed in (0, len(prompts) - 1):  # of 1 and 8 tokens: the most padding, and none
        (alone,), expected = run(tiny, parts, [prompts[seed]], first_seed=seed), together[seed]
        assert (alone.token_ids, alone.exit_layers) == (expected.token_ids, expected.exit_layers)
        assert alone.head_rows == expected.head_rows


@pytest.mark.sampled(2)
def test_same_seed_gives_the_same_trace(tiny: Any, prompts: Any, method: Method, bind: Any) -> None:
    again = type(method).from_params(method.params())
    assert run(tiny, bind(again), prompts) == answers(tiny, method, bind(method), prompts)


# ------------------------------------------------------------------------------------------- cost


@pytest.mark.sampled(2)
def test_declared_cost_equals_counted_flops_at_every_exit(tiny: Any, prompts: Any, method: Method, bind: Any) -> None:
    """The cost of verification is not per step; tests/harness/engine/test_verification.py counts whole answers."""
    parts = bind(method)
    assert list(cost_mismatches(tiny.checkpoint, parts, prompts[1], sorted(allowed(parts)))) == []
