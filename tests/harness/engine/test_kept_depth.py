"""`scope = "answer"`: all tokens of an answer leave at the depth of its first token."""

from __future__ import annotations

from typing import Any

import pytest
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from exitbench.harness.cells.cell import GenerationSettings
from exitbench.harness.engine.decoding.decode import Decoding, decode, prefill
from exitbench.harness.engine.decoding.generation import Generation, Request
from exitbench.harness.engine.decoding.kept_depth import why_no_scope
from exitbench.harness.work.generation import answer_costs, answer_costs_by_part
from exitbench.methods.base import Parts
from exitbench.methods.kv_policies import KV_POLICIES
from exitbench.methods.registry import get_method

L = 5
N_NEW = 10
N_ROWS = 14
ANSWER = GenerationSettings(N_NEW, scope="answer")


def gated(policy: str = "state-copy", method: str = "calm-softmax", **params: Any) -> Parts:
    """Return a method with a low threshold, so that first tokens exit at several depths."""
    return get_method(method).from_params({"threshold": 0.03, "kv_policy": policy, **params}).parts(L)


def answers(
    family: Any, prompts: list[list[int]], parts: Parts, settings: GenerationSettings, new_tokens: int = N_NEW
) -> list[Generation]:
    requests = [Request(prompt, seed) for seed, prompt in enumerate(prompts)]
    batch = prefill(family.checkpoint.model, requests, new_tokens, gates_first_token=not family.is_seq2seq)
    return decode(family.checkpoint, batch, parts, settings=settings)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("policy", KV_POLICIES)
def test_answers_equal_those_of_the_static_depth_of_their_first_token(
    position_family: Any, prompts: Any, policy: str
) -> None:
    """Each row keeps its own depth. No gate scores later tokens: their recorded score is 1, or None at full depth."""
    rows = prompts[:N_ROWS]
    together = answers(position_family, rows, gated(policy), ANSWER)
    for prompt, answer in zip(rows, together, strict=True):
        (first,) = answers(position_family, [prompt], gated(policy), GenerationSettings(1), new_tokens=1)
        depth = first.exit_layers[0]
        static = get_method("static")(exit_layer=depth).parts(L)
        (expected,) = answers(position_family, [prompt], static, GenerationSettings(N_NEW))
        if policy != "noisy" or depth == L:  # which emits full depth's first token
            assert answer.token_ids == expected.token_ids
        assert answer.exit_layers == [depth] * len(answer.token_ids)
        assert answer.scores[1:] == [None if depth == L else 1.0] * (len(answer.token_ids) - 1)
        assert set(answer.head_rows[1:]) <= {position_family.checkpoint.model.vocab_size}, "one read-out, and no gate"
    if position_family.reference.config.model_type != "gpt2":  # margins are wide at block 1 already
        assert len({answer.exit_layers[0] for answer in together}) > 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize("policy", ["state-copy", "evict"])
def test_declared_flops_equal_counted_flops(position_family: Any, prompts: Any, policy: str) -> None:
    parts = gated(policy)
    for prompt in prompts[:6]:
        batch = prefill(
            position_family.checkpoint.model, [Request(prompt)], N_NEW, gates_first_token=not position_family.is_seq2seq
        )
        with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
            (answer,) = decode(position_family.checkpoint, batch, parts, settings=ANSWER)
        work = position_family.checkpoint, parts, [answer], [len(prompt)], "gated"
        (declared,) = answer_costs(*work, keeps_depth=True)
        (by_part,) = answer_costs_by_part(*work, keeps_depth=True)
        assert declared.matmul_flops == pytest.approx(counter.get_total_flops(), rel=1e-6)
        assert sum(cost.matmul_flops for cost in by_part.values()) == pytest.approx(declared.matmul_flops)


def test_rows_cannot_join_a_batch_with_scope_answer(position_family: Any, prompts: Any) -> None:
    batch = prefill(position_family.checkpoint.model, [Request(prompts[0])], N_NEW)
    assert not Decoding(position_family.checkpoint, batch, gated(), settings=ANSWER).can_be_joined


def test_self_speculation_and_oracle_are_refused() -> None:
    assert "verifies its drafts" in (why_no_scope(gated("self-speculation")) or "")
    assert "reads all blocks" in (why_no_scope(get_method("oracle")().parts(L)) or "")
    assert why_no_scope(gated()) is None
