"""First tokens of a decoder-only model that may leave early too, against the slow decoder (`conftest.py`)."""

from __future__ import annotations

from typing import Any

import pytest

from exitbench.errors import UserError
from exitbench.harness.engine.decoding.decode import decode, prefill
from exitbench.harness.engine.decoding.generation import Generation, Request
from exitbench.methods.base import Parts
from exitbench.methods.kv_policies import KV_POLICIES
from exitbench.methods.registry import get_method

L = 6
MAX_NEW_TOKENS = 8
TOO_CLOSE = 1e-5  # of two numbers that a choice hangs on: single precision may decide it either way
NONE = {"decay": "none"}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("full", {}),
    *(("static", {"exit_layer": layer}) for layer in (1, 4, L)),
    *(("calm-softmax", {"threshold": 0.3, **NONE, "kv_policy": policy}) for policy in KV_POLICIES),
    ("calm-softmax", {"threshold": 0.3, **NONE, "head": "pruned-fixed", "k_first": 61, "k_min": 3}),
    ("oracle", {}),
]


only_causal = pytest.mark.parametrize("tiny", ["causal"], indirect=True)


def answer(tiny: Any, parts: Parts, prompts: list[list[int]], first_seed: int = 0, **options: Any) -> list[Generation]:
    requests = [Request(prompt, seed) for seed, prompt in enumerate(prompts, first_seed)]
    batch = prefill(tiny.checkpoint.model, requests, MAX_NEW_TOKENS, gates_first_token=True)
    return decode(tiny.checkpoint, batch, parts, **options)


def with_single_tokens(prompts: list[list[int]]) -> list[list[int]]:
    """Return five prompts and two of one token. Decoding starts with the last prompt token: these have no prefill."""
    return [[17], *prompts[:5], [30]]


@only_causal
@pytest.mark.parametrize(
    ("name", "params"), CASES, ids=lambda case: "-".join(map(str, case.values())) if isinstance(case, dict) else case
)
def test_tokens_and_exits_equal_the_slow_decoders(
    tiny: Any, prompts: Any, slow_decode: Any, name: str, params: dict[str, Any]
) -> None:
    method, compared, first_exits = get_method(name).from_params(params), 0, set()
    rows, asked = with_single_tokens(prompts), method.params()
    together = answer(tiny, method.parts(L), rows)
    for seed, (prompt, ours) in enumerate(zip(rows, together, strict=True)):
        theirs = slow_decode(tiny, prompt, seed, MAX_NEW_TOKENS, name, asked, gates_first_token=True)
        n = next((at for at, choice in enumerate(theirs) if choice.gap < TOO_CLOSE), len(theirs))
        assert ours.exit_layers[:n] == [choice.exit_layer for choice in theirs[:n]]
        assert ours.token_ids[:n] == [choice.token for choice in theirs[:n]]
        compared, first_exits = compared + n, first_exits | {ours.exit_layers[0]}
    assert compared >= 25
    assert name == "full" or params.get("exit_layer") == L or min(first_exits) < L, "no first token left early"


@only_causal
def test_full_depth_answers_equal_those_with_an_ungated_first_token(tiny: Any, prompts: Any) -> None:
    full = get_method("full")().parts(L)
    for rows in ([*prompts, [5]], [[5]], [[5], [9]]):
        requests = [Request(prompt, seed) for seed, prompt in enumerate(rows)]
        whole = decode(tiny.checkpoint, prefill(tiny.checkpoint.model, requests, MAX_NEW_TOKENS), full)
        assert answer(tiny, full, rows) == whole


VERIFYING = [
    ("self-speculation", {"exit_layer": 2, "drafts": 3}),
    ("free", {"exit_layer": 2, "threshold": 0.1, "kv_policy": "sync-parallel-rollback", "rollback": 1.0}),
]


@only_causal
@pytest.mark.parametrize(("name", "params"), [*VERIFYING, *CASES[4:]])
def test_batched_answers_equal_single_row_answers(tiny: Any, prompts: Any, name: str, params: dict[str, Any]) -> None:
    parts, rows = get_method(name).from_params(params).parts(L), with_single_tokens(prompts)
    stops = lambda tokens: len(tokens) > 3 + tokens[0] % 4  # noqa: E731
    for seed, together in enumerate(answer(tiny, parts, rows, is_stopped=stops)):
        (alone,) = answer(tiny, parts, [rows[seed]], seed, is_stopped=stops)
        assert (alone.token_ids, alone.exit_layers) == (together.token_ids, together.exit_layers)


@only_causal
def test_self_speculation_drafts_first_tokens_and_equals_full_depth(tiny: Any, prompts: Any) -> None:
    rows = with_single_tokens(prompts)
    full = answer(tiny, get_method("full")().parts(L), rows)
    result = answer(tiny, get_method("self-speculation")(exit_layer=4, drafts=2).parts(L), rows)
    assert [g.token_ids for g in result] == [g.token_ids for g in full]
    assert {g.exit_layers[0] for g in result} > {L} or any(g.rejected[0] for g in result)


@pytest.mark.parametrize("tiny", ["seq2seq"], indirect=True)
def test_encoder_decoder_models_refuse_gating_the_first_token(tiny: Any) -> None:
    with pytest.raises(UserError, match="first new token, which follows the decoder's start token"):
        prefill(tiny.checkpoint.model, [Request([5, 6])], 4, gates_first_token=True)
