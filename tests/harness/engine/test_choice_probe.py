"""Probes of continuations: rows as in other probes, with the given token's log-probability at every block."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from exitbench.harness.engine.decoding.branches import Context
from exitbench.harness.engine.decoding.likelihood import score
from exitbench.harness.engine.decoding.probe import choice_probe_table, choice_scores, probe, states_after, states_of
from exitbench.methods.registry import get_method
from exitbench.methods.thresholds import Constant

L = 5
CHOICES = [[11, 12, 13], [9], [11, 12, 14], [10], [20, 21]]


def contexts(prompts: list[list[int]], choices: list[list[int]] = CHOICES) -> list[Context]:
    rows = [[17], *prompts[:4]]
    return [Context(row, choices[: 1 + place], place) for place, row in enumerate(rows)]


def outputs(asked: list[Context]) -> tuple[list[list[int]], list[list[int]]]:
    """Return the prompts and outputs of a probe for scored choices, each with its own copy of the context."""
    pairs = [(list(context.context_ids), list(ids)) for context in asked for ids in context.continuations]
    return [prompt for prompt, _ in pairs], [output for _, output in pairs]


def test_states_equal_those_of_each_choice_alone(family: Any, prompts: Any) -> None:
    asked = contexts(prompts)
    with torch.inference_mode():
        expected = states_of(family.checkpoint, *outputs(asked))
        for rows in (1, 3, 32):
            result = states_after(family.checkpoint, asked, rows)
            torch.testing.assert_close(result, expected, atol=2e-4, rtol=2e-4)


def test_rows_equal_those_of_a_probe_plus_choice_and_log_probability(family: Any, prompts: Any) -> None:
    asked = contexts(prompts)
    keys, numbers = [f"doc{place}" for place in range(5)], [[7 + n for n in range(1 + place)] for place in range(5)]
    table = choice_probe_table(family.checkpoint, keys, numbers, asked, rows=4)
    expected = probe(family.checkpoint, *outputs(asked))
    places = [
        (key, number, position, token)
        for key, own, context in zip(keys, numbers, asked, strict=True)
        for number, ids in zip(own, context.continuations, strict=True)
        for position, token in enumerate(ids, start=1)
    ]
    columns = [table[name].to_pylist() for name in ("doc_key", "choice", "position", "token_id")]
    assert list(zip(*columns, strict=True)) == places
    for name, values in expected.items():
        result = np.array(table[name].to_pylist())
        np.testing.assert_allclose(result, values, atol=2e-4, rtol=2e-3, err_msg=name)
    states_LND = states_of(family.checkpoint, *outputs(asked))[1:]
    log_p_LNV = torch.log_softmax(family.checkpoint.model.logits(states_LND), dim=-1)
    given_N = torch.tensor([token for *_, token in places])
    logprob_NL = log_p_LNV.gather(-1, given_N.expand(L, -1)[..., None])[..., 0].T
    np.testing.assert_allclose(np.array(table["logprob"].to_pylist()), logprob_NL, atol=2e-4)


METHODS = ("calm-softmax", "calm-saturation", "entropy", "patience", "random")


@pytest.mark.parametrize("name", METHODS)
def test_replayed_single_token_choices_equal_decoded_ones(position_family: Any, prompts: Any, name: str) -> None:
    """With one token, nothing follows the exit, so the simulated choice is the real one."""
    family, asked = position_family, contexts(prompts, [[11], [9], [30], [10], [20]])
    parts = get_method(name).from_params({"mean_exit": 3.0} if name == "random" else {}).parts(L)
    scores = choice_scores(family.checkpoint, parts, asked, rows=4)
    known = np.unique(scores["score"][~np.isnan(scores["score"])])
    level = float(known[len(known) // 2 - 1 : len(known) // 2 + 1].mean())  # some leave early, and none is close
    parts = replace(parts, threshold=Constant(level))
    forced = [one for of_context in score(family.checkpoint, asked, parts) for one in of_context]
    leaves_NL = scores["score"] > level  # the last block's is NaN
    exits_N = np.where(leaves_NL.any(1), leaves_NL.argmax(1) + 1, L)
    assert [one.exit_layers for one in forced] == [[layer] for layer in exits_N]
    for row, (one, layer) in enumerate(zip(forced, exits_N, strict=True)):
        assert one.logprobs == pytest.approx([scores["logprob"][row, layer - 1]], abs=2e-4)
        assert one.greedy == [scores["is_greedy"][row, layer - 1]]
    assert exits_N.min() < L


def test_both_engines_probe_the_same_states(twin: Any, prompts: Any) -> None:
    for name in ("llama", "t5"):
        asked = contexts(prompts)
        engines = twin(name).checkpoint, twin(name).hosted
        with torch.inference_mode():
            ours, theirs = (states_after(checkpoint, asked, rows=4) for checkpoint in engines)
        torch.testing.assert_close(ours, theirs, atol=2e-4, rtol=2e-4)
