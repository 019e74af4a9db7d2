"""Every method against its definition, written again in NumPy (`slow_rules.py`) and decoded slowly (`conftest.py`)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from exitbench.harness.engine.decoding.decode import decode, prefill
from exitbench.harness.engine.decoding.generation import Generation, Request
from exitbench.methods.kv_policies import KV_POLICIES
from exitbench.methods.registry import get_method, method_names

L, D = 6, 24
MAX_NEW_TOKENS = 8
N_PROMPTS = 6
LEAST_COMPARED = 25  # tokens a case, of 48 where no answer ends early and no call is close
TOO_CLOSE = 1e-5  # of two numbers that a choice hangs on: single precision may decide it either way

LEVELS = [0.9, 0.2, 0.6, 0.3, 0.15]
EPSILON: dict[str, Any] = {"rule": "epsilon", "decay": "none"}
PER_BLOCK: dict[str, Any] = {"rule": "per-block", "levels": LEVELS, "decay": "none"}
CODE: dict[str, Any] = {"decay": "code", "temperature": 3.0}
PAPER: dict[str, Any] = {"decay": "paper", "temperature": 2.0}
NONE: dict[str, Any] = {"decay": "none"}
SPARSE: dict[str, Any] = {"min_exit": 2, "every": 2}

PRUNED = [
    {"head": head, "k_first": k_first, "k_min": k_min, "k_schedule": schedule}
    for head, k_first, k_min, schedule in [
        ("pruned-fixed", 61, 3, "inverse"),
        ("pruned-fixed", 5, 2, "constant"),
        ("pruned-decaying", 61, 2, "inverse"),
        ("pruned-decaying-idsorted", 190, 3, "inverse"),
        ("pruned-adaptive", 61, 2, "inverse"),
        ("pruned-adaptive", 24, 1, "constant"),
        ("pruned-adaptive-code", 190, 3, "inverse"),
        ("pruned-adaptive-code", 50, 3, "constant"),
    ]
]


def softmax_cases(name: str, threshold: float, low: float) -> list[tuple[str, dict[str, Any]]]:
    """Return test cases of a method whose score comes from the vocabulary's distribution.

    They vary threshold rules, heads and gated blocks.
    """
    return [
        (name, {"threshold": threshold, **NONE}),
        (name, {"threshold": threshold, **CODE}),
        (name, {"threshold": low, **PAPER, "min_exit": 2}),
        (name, {"threshold": threshold, **NONE, **SPARSE}),
        (name, PER_BLOCK),
        (name, {**PER_BLOCK, **CODE}),
        (name, EPSILON),
        *((name, {"threshold": threshold, **NONE, **head}) for head in PRUNED),
        (name, {"threshold": threshold, **CODE, **PRUNED[2], "min_exit": 2}),
        (name, {**EPSILON, **PRUNED[4]}),
    ]


def contrastive_cases(name: str, threshold: float) -> list[tuple[str, dict[str, Any]]]:
    """Return settings of a contrastive method, with one or two parameters changed from their defaults."""
    hyperbolic = {"alpha_schedule": "hyperbolic", "alpha": 0.4, "alpha_decay": 0.5}
    switches: list[dict[str, Any]] = [
        {},
        {"alpha": 0.02},
        hyperbolic,
        {"gate_score": "plain", "emit_score": "lcd"},
        {"gate_score": "lcd", "mass": "one"},
        {"gate_score": "lcd", "mass": "head", "emit_score": "dcd"},
        {"gate_score": "dcd", "mass": "one", "emit_score": "lcd"},
        {"gate_score": "dcd", "mass": "head", "emit_score": "dcd"},
        {"amateur": "half", "min_exit": 2},
        {"amateur": "jsd", "min_exit": 3},
        {"amateur": "dola-low"},
        {"amateur": "dola-high", "gate_score": "lcd"},
        {**CODE, **SPARSE},
        {**PRUNED[0], "emit_score": "lcd"},
        {**PRUNED[2], "amateur": "jsd"},
        {**PRUNED[3], "amateur": "dola-low"},
        {**PRUNED[5], **hyperbolic},
        {**PRUNED[7], "amateur": "half", "emit_score": "dcd"},
    ]
    return [(name, {"threshold": threshold, **NONE, **switch}) for switch in switches] + [(name, EPSILON)]


def fitted_cases(name: str, *networks: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return test cases of a method with a fitted gate: every threshold rule with the parameters of every network."""
    rules: list[dict[str, Any]] = [
        {"threshold": 0.6, **NONE, "min_exit": 1},
        {"threshold": 0.8, **CODE, "min_exit": 2},
        {"threshold": 0.7, **PAPER, **SPARSE},
        {"rule": "per-block", "levels": [0.95, 0.7, 0.8, 0.6, 0.5], **NONE, "min_exit": 1},
        {**EPSILON, "min_exit": 1},
    ]
    return [(name, {**rule, **network}) for rule in rules for network in networks or ({},)]


DRAWN = [{"temperature": 1.0}, {"temperature": 0.4}]

CASES: list[tuple[str, dict[str, Any]]] = [
    *(("full", drawn) for drawn in ({}, *DRAWN)),
    *(
        ("heads", {"confidence": confidence, "threshold": threshold})
        for confidence, threshold in [
            ("breaking-ties", 0.4),
            ("entropy", 0.3),
            ("max-prob", 0.5),
            ("breaking-ties-logits", 1.5),
            ("max-logit", 6.0),
        ]
    ),
    ("heads", {"exit_blocks": [3, 4], "threshold": 0.3}),
    ("heads", {"exit_blocks": [3], "threshold": 0.3}),
    ("heads", {"rule": "per-block", "levels": [0.9, 0.0, 0.5, 0.2, 0.0]}),
    ("heads", {"rule": "epsilon"}),
    *(("heads", {"threshold": 0.4, "kv_policy": policy, **DRAWN[0]}) for policy in KV_POLICIES),
    ("heads", {"threshold": 0.3, "kv_policy": "exact", **DRAWN[1]}),
    *(
        ("free", {"exit_layer": layer, "threshold": threshold, "kv_policy": policy})
        for layer, threshold in [(1, 0.1), (3, 0.3), (5, 0.2)]
        for policy in ("sync-parallel", "state-copy-lazy")
    ),
    ("free", {"exit_layer": 3, "rule": "adaptive", "kv_policy": "sync-parallel"}),
    ("free", {"exit_layer": 2, "rule": "adaptive-code", "kv_policy": "state-copy-lazy"}),
    *(("static", {"exit_layer": layer}) for layer in (1, 4, L)),
    *(("random", {"mean_exit": mean, "seed": seed}) for mean, seed in ((3.0, 5), (1.0, 0), (float(L), 0))),
    *(("oracle", {"match": match}) for match in ("first", "stable")),
    *(("calm-softmax", {"threshold": 0.3, **NONE, "kv_policy": policy}) for policy in KV_POLICIES),
    *(("static", {"exit_layer": 3, "kv_policy": policy}) for policy in KV_POLICIES),
    *(("calm-softmax", {"threshold": 0.1, **NONE, "min_exit": first, "every": L}) for first in (5, L)),
    *softmax_cases("calm-softmax", 0.3, 0.2),
    *softmax_cases("max-prob", 0.5, 0.4),
    *softmax_cases("entropy", 1.0, 1.5),
    *(("patience", {"patience": 2, "counting": counting}) for counting in ("formula", "sentence")),
    ("patience", {"patience": 1, "counting": "formula", **SPARSE}),
    *(("patience", {"patience": 2, "counting": "sentence", **head}) for head in PRUNED),
    *(
        ("calm-saturation", {"states": states, "first": first, **rule})
        for states, first, rule in [
            ("normed", "embedding", {"threshold": 0.75, **NONE}),
            ("normed", "zero", {"threshold": 0.75, **CODE}),
            ("raw", "embedding", {"threshold": 0.8, **PAPER}),
            ("raw", "zero", {"threshold": 0.9, **SPARSE}),
            ("normed", "embedding", {"rule": "per-block", "levels": [0.75, 0.85, 0.8, 0.9, 0.7], "decay": "none"}),
            ("raw", "embedding", EPSILON),
        ]
    ),
    *fitted_cases("calm-classifier", {"network": "linear"}, {"network": "mlp"}),
    *fitted_cases("mee-lstm", {"layers": 1, "hidden": 7}, {"layers": 2, "hidden": 5}),
    *fitted_cases("mee-lstm", {"layers": 2, "hidden": 5, "variant": "code"}),
    *fitted_cases("mee-mlp3"),
    *fitted_cases("adainfer"),
    *(
        ("mee-top3", {"variant": variant, "signal": signal, **rule})
        for variant, signal, rule in [
            ("text", "probabilities", {"threshold": 0.4, **NONE, "min_exit": 1}),
            ("text", "probabilities", {"threshold": 0.5, **CODE, **SPARSE}),
            ("text", "probabilities", {**EPSILON, "min_exit": 3}),
            ("text", "logits", {"threshold": 1.0, **NONE, "min_exit": 1}),
            ("code", "probabilities", {"threshold": 0.4, **CODE, "min_exit": 1}),
            ("code", "probabilities", {**PER_BLOCK, **CODE, "min_exit": 2}),
            ("code", "logits", {"threshold": 0.9, **PAPER, "min_exit": 1}),
        ]
    ),
    *(
        ("deebert", {"threshold": 2.0, "underflow": underflow, **rule})
        for underflow in ("zero", "nan")
        for rule in ({}, SPARSE)
    ),
    ("deebert", {"rule": "per-block", "levels": [0.5, 2.0, 1.0, 2.5, 1.5]}),
    *(("fastbert", {"threshold": 0.4, **rule}) for rule in ({}, SPARSE)),
    *(("pabee", {"patience": 1, "batch": "row", **rule}) for rule in ({}, {"min_exit": 2})),
    *(("berxit", {"threshold": threshold, **rule}) for threshold, rule in ((0.6, {}), (0.5, SPARSE))),
    *contrastive_cases("contrastive", 0.4),
    *contrastive_cases("contrastive-reweighted", 0.3),
    *contrastive_cases("contrastive-jsd", 0.4),
]
POLICIES = itertools.cycle(KV_POLICIES)
CASES = [  # policies in turn where a case does not say which
    (name, params if name == "full" else {"kv_policy": next(POLICIES), **params}) for name, params in CASES
]
KINDS = ("seq2seq", "causal")
ON_BOTH = {"full", "heads"}
"""Methods tested on both kinds of model, because they read a prompt's token or trained heads, which differ by kind."""


def cases_by_kind() -> list[tuple[str, str, dict[str, Any]]]:
    """Return the cases with a kind of model: both kinds for a method's first case and for methods in ON_BOTH, else one.

    Kinds alternate every two cases, because the cases themselves alternate between KV policies.
    """
    result, seen = [], set[str]()
    for number, (name, params) in enumerate(CASES):
        kinds = KINDS if name in ON_BOTH or name not in seen else (KINDS[number // 2 % 2],)
        result += [(kind, name, params) for kind in kinds]
        seen.add(name)
    return result


ONE_DEPTH = {"full", "static", "random"}  # need not spread their exits


def named(name: str, params: dict[str, Any]) -> str:
    return "-".join([name, *(str(value).replace(" ", "") for value in params.values())])


def random_weights(name: str, params: dict[str, Any]) -> dict[str, Tensor]:
    """Return random weights for a fitted method, large enough that its scores differ."""
    generator = torch.Generator().manual_seed(8)

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        return torch.randn(shape, generator=generator) * scale * (shape[-1] ** -0.5 if len(shape) > 1 else 1)

    weights: dict[str, Tensor] = {}
    if params.get("rule") == "epsilon":
        low = 0.4 if name == "calm-saturation" else 0.0  # cosines of neighbours are never small
        levels = low + torch.tensor([10.0, 0.5, 0.45, 0.35, 0.2])[:, None]  # 10: never at block 1
        weights["epsilon_scores"] = levels + torch.tensor([0.1, 0.0, -0.1, 0.0])
        weights["epsilon_agrees"] = torch.tensor([True, True, False, True]).expand(5, -1)
    if params.get("rule", "").startswith("adaptive"):
        weights["threshold"] = torch.tensor(0.25, dtype=torch.float64)
    if name == "calm-classifier" and params["network"] == "linear":
        weights |= {"0.weight": normal(2, D, scale=0.5), "0.bias": normal(2)}
    elif name == "calm-classifier":
        weights |= {"0.weight": normal(D, D), "0.bias": normal(D), "2.weight": normal(2, D), "2.bias": normal(2)}
    elif name == "berxit":
        weights |= {"weight": normal(D), "bias": normal(1)[0]}
    elif name == "adainfer":
        weights |= {"weight": normal(2, 3, scale=12.0), "bias": normal(2)}
    elif name == "mee-mlp3":
        weights |= {"0.weight": normal(D, 3 * D), "2.weight": normal(2, D)}
    elif name == "mee-lstm":
        hidden = params["hidden"]
        for layer in range(params["layers"]):
            width = D if layer == 0 else hidden
            weights[f"lstm.weight_ih_l{layer}"] = normal(4 * hidden, width)
            weights[f"lstm.weight_hh_l{layer}"] = normal(4 * hidden, hidden)
            weights[f"lstm.bias_ih_l{layer}"] = normal(4 * hidden)
            weights[f"lstm.bias_hh_l{layer}"] = normal(4 * hidden)
        weights |= {
            "out.weight": normal(2, hidden, scale=4.0 * params["layers"] ** 2),
            "out.bias": normal(2, scale=0.3),
        }
    return weights


def compare(ours: Generation, theirs: list[Any]) -> int:
    """Compare an answer with the slow reference's, up to the first near tie; return the number of tokens compared."""
    n = next((at for at, choice in enumerate(theirs) if choice.gap < TOO_CLOSE), len(theirs))
    if n == len(theirs):
        assert len(ours.token_ids) == n
    assert ours.exit_layers[:n] == [choice.exit_layer for choice in theirs[:n]]
    assert ours.token_ids[:n] == [choice.token for choice in theirs[:n]]
    assert [score is None for score in ours.scores[:n]] == [choice.score is None for choice in theirs[:n]]
    known = [(a, b.score) for a, b in zip(ours.scores[:n], theirs[:n], strict=True) if a is not None]
    assert [a for a, _ in known] == pytest.approx([b for _, b in known], abs=1e-4)
    return n


def marked_cases() -> Iterator[Any]:
    """Yield the cases; `nox -s tests` runs every method on its kinds of model, and every KV policy and named choice."""
    seen: set[tuple[Any, ...]] = set()
    for kind, name, params in cases_by_kind():
        shown = {(name, kind), (kind, params.get("kv_policy"))}
        shown |= {(name, key, value) for key, value in params.items() if isinstance(value, str) and key != "kv_policy"}
        marks = () if shown - seen else pytest.mark.exhaustive
        yield pytest.param(kind, name, params, id=f"{kind}-{named(name, params)}", marks=marks)
        seen |= shown


@pytest.mark.parametrize(("kind", "name", "params"), marked_cases())
def test_tokens_exit_layers_and_scores_equal_the_slow_decoders(
    kind: str,
    prompts: Any,
    slow_decode: Any,
    name: str,
    params: dict[str, Any],
    request: pytest.FixtureRequest,
) -> None:
    tiny = request.getfixturevalue(kind)
    method = get_method(name).from_params(params)
    method.check(L)
    bound = method.bound_to(tiny.checkpoint.model.exit_blocks)
    full_params = method.params()
    fitted = random_weights(name, full_params)
    requests = [Request(prompt, seed) for seed, prompt in enumerate(prompts[:N_PROMPTS])]
    batch = prefill(tiny.checkpoint.model, requests, MAX_NEW_TOKENS)
    answers = decode(tiny.checkpoint, batch, bound.parts(L, fitted))
    in_double = {key: tensor.double().numpy() for key, tensor in fitted.items()}
    compared, layers = 0, set()
    for asked, ours in zip(requests, answers, strict=True):
        theirs = slow_decode(tiny, asked.prompt_ids, asked.seed, MAX_NEW_TOKENS, name, full_params, in_double)
        compared += compare(ours, theirs)
        layers |= {choice.exit_layer for choice in theirs}
    assert compared >= LEAST_COMPARED
    assert name in ONE_DEPTH or params.get("min_exit") == L or len(layers) > 1, (
        "a case whose tokens all leave at one block says little"
    )


def test_cases_cover_every_non_verifying_method_and_over_2000_tokens() -> None:
    """Verifying methods are left out; tests/harness/engine/test_verification.py computes their answers."""
    verifying = {name for name in method_names() if get_method(name)().parts(L).kv_policy.verifies}
    assert {name for name, _ in CASES} >= set(method_names()) - verifying
    assert len(cases_by_kind()) * LEAST_COMPARED > 2000
    assert {(kind, params.get("kv_policy")) for kind, _, params in cases_by_kind()} >= set(
        itertools.product(KINDS, KV_POLICIES)
    )


@pytest.mark.parametrize("threshold", [0.3, 0.5])
def test_softmax_gate_exits_at_four_or_more_layers_of_the_test_checkpoints(
    tiny: Any, prompts: Any, threshold: float
) -> None:
    """Exits at few blocks would make the comparisons in this file weak."""
    parts = get_method("calm-softmax")(threshold=threshold).parts(L)
    batch = prefill(tiny.checkpoint.model, [Request(prompt) for prompt in prompts], MAX_NEW_TOKENS)
    exits = [layer for g in decode(tiny.checkpoint, batch, parts) for layer in g.exit_layers]
    assert len(set(exits)) >= 4
