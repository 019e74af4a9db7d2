"""Scores of continuations: at full depth they equal those of transformers, and with exits those of the decode loop.

The scores of every method are tested in `tests/methods/test_given_tokens.py`.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from exitbench.errors import UserError
from exitbench.harness.engine.decoding import likelihood
from exitbench.harness.engine.decoding.block_runner import BlockRunner
from exitbench.harness.engine.decoding.branches import Branch, Context, batches, branches_of, packs
from exitbench.harness.engine.decoding.decode import decode_step
from exitbench.harness.engine.decoding.likelihood import Scored, score
from exitbench.harness.engine.decoding.trace import Trace
from exitbench.harness.engine.model.model import Transformer
from exitbench.harness.engine.model.token_record import TokenRecord
from exitbench.methods.base import BlockView, Gate, Parts, blocks_from
from exitbench.methods.heads import LMHead
from exitbench.methods.kv_policies import KV_POLICIES
from exitbench.methods.registry import get_method
from exitbench.methods.thresholds import Constant

L = 5
CLOSE = 2e-4
CHOICES = [[11, 12, 13], [9], [11, 12, 14], [10], [20, 21], [7, 8, 9, 30, 31, 32, 33]]
"""Of one token, and of more that differ in their last token alone; of mixed length."""


def contexts(prompts: list[list[int]], count: int = 5) -> list[Context]:
    """Return contexts with one to six choices each, in different orders; the first context is a single token."""
    rows = [[17], *prompts[: count - 1]]
    return [
        Context(row, [CHOICES[(place + at) % 6] for at in range(1 + place % 6)], place)
        for place, row in enumerate(rows)
    ]


class ExitBySeed(Gate):
    """Gate that opens after a number of blocks computed from the row's seed and the token's position."""

    def score(self, view: BlockView) -> Tensor:
        rows = zip(view.seeds_A, view.positions_A, strict=True)
        wanted = [(3 * seed + 2 * position) % L + 1 for seed, position in rows]
        return torch.tensor([float(view.block >= block) for block in wanted])


def leaving(policy: str = "state-copy") -> Parts:
    return Parts(ExitBySeed(), Constant(0.5), LMHead(), KV_POLICIES[policy], blocks_from(1, L))


def full() -> Parts:
    return get_method("full")().parts(L)


def static(depth: int, policy: str = "state-copy") -> Parts:
    return get_method("static").from_params({"exit_layer": depth, "kv_policy": policy}).parts(L)


def each(scored: list[list[Scored]]) -> list[Scored]:
    return [one for of_context in scored for one in of_context]


def trace_of(scored: Scored) -> list[TokenRecord]:
    """Return the token records with their log-probabilities removed, because their last digits may differ."""
    return [record._replace(logprob=None) for record in scored.records]


def assert_same(one: list[list[Scored]], other: list[list[Scored]], *, traced: bool = True) -> None:
    for a, b in zip(each(one), each(other), strict=True):
        assert (a.token_ids, a.greedy) == (b.token_ids, b.greedy)
        assert a.logprobs == pytest.approx(b.logprobs, abs=CLOSE)
        if traced:
            assert trace_of(a) == trace_of(b)


def assert_equals_transformers(family: Any, asked: list[Context], scored: list[list[Scored]]) -> None:
    """Assert that the scores equal those that transformers computes for the same tokens without a cache."""
    for context, ours in zip(asked, scored, strict=True):
        for given, mine in zip(context.continuations, ours, strict=True):
            log_p_TV = torch.log_softmax(family.reference_logits(list(context.context_ids), list(given)), dim=-1)
            expected = log_p_TV.gather(1, torch.tensor(given)[:, None])[:, 0]
            assert mine.token_ids == list(given)
            assert mine.logprobs == pytest.approx(expected.tolist(), abs=CLOSE)
            assert mine.greedy == (log_p_TV.argmax(-1) == torch.tensor(given)).tolist()
            assert sum(mine.logprobs) == pytest.approx(float(expected.sum()), abs=CLOSE)


# ------------------------------------------------------------------------------------------------- full depth, static


def test_full_depth_equals_transformers(family: Any, prompts: Any) -> None:
    asked = contexts(prompts, 7)
    first, *others = [
        score(family.checkpoint, asked, full(), rows=rows, gates_first_token=gated)
        for rows in (1, 4, 32)
        for gated in (True, False)
    ]
    assert_equals_transformers(family, asked, first)
    for other in others:
        assert_same(other, first)
    for one in each(first):
        n = len(one.token_ids)
        assert (one.exit_layers, one.blocks_run, one.scores) == ([L] * n, [L] * n, [None] * n)
        assert one.head_rows == [family.checkpoint.model.vocab_size] * n


def test_greedy_continuation_is_flagged_greedy_and_a_changed_one_is_not(position_family: Any, prompts: Any) -> None:
    prompt = prompts[3]
    answer: list[int] = []
    for _ in range(4):
        answer.append(int(position_family.reference_logits(prompt, [*answer, 0])[-1].argmax()))
    other = [*answer[:-1], (answer[-1] + 1) % 100]
    right, wrong = score(position_family.checkpoint, [Context(prompt, [answer, other])], full())[0]
    assert right.is_greedy and not wrong.is_greedy
    assert wrong.greedy == [True, True, True, False]


def truncated_model(family: Any, depth: int) -> Any:
    """Return the same model without the blocks after `depth`."""
    result = dataclasses.replace(family, reference=copy.deepcopy(family.reference))
    del result.reference_blocks[depth:]
    if not family.is_seq2seq:
        result.reference.config.num_hidden_layers = depth
    return result


@pytest.mark.sampled(2)
@pytest.mark.parametrize("depth", [1, 3])
def test_static_exit_equals_a_truncated_model(family: Any, prompts: Any, depth: int) -> None:
    asked = contexts(prompts, 6)
    scored = score(family.checkpoint, asked, static(depth), rows=3)
    assert_equals_transformers(truncated_model(family, depth), asked, scored)
    assert {layer for one in each(scored) for layer in one.exit_layers + one.blocks_run} == {depth}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("depth", [2, L])
def test_single_pass_scoring_equals_forced_decoding(
    position_family: Any, prompts: Any, depth: int, gated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = contexts(prompts, 7)
    at_once = score(position_family.checkpoint, asked, static(depth), rows=4, gates_first_token=gated)
    monkeypatch.setattr(likelihood, "fixed_depth", lambda *_: None)
    assert_same(at_once, score(position_family.checkpoint, asked, static(depth), rows=4, gates_first_token=gated))
    assert not gated or depth == L or {layer for one in each(at_once) for layer in one.exit_layers} == {depth}


def test_exact_kv_policy_does_not_change_static_exit_scores(position_family: Any, prompts: Any) -> None:
    asked = contexts(prompts)
    copied, ran = (
        score(position_family.checkpoint, asked, static(2, policy), rows=4) for policy in ("state-copy", "exact")
    )
    assert_same(copied, ran, traced=False)
    assert {blocks for one in each(ran) for blocks in one.blocks_run} == {L}


# -------------------------------------------------------------------------------------------------------- with exits


def score_one_choice(family: Any, context: Context, given: list[int], parts: Parts) -> Scored:
    """Score one choice separately: prefill its context, then run one `decode_step` for each of its tokens."""
    model, observer, result = family.checkpoint.model, Trace(family.checkpoint.model), Scored(list(given))
    prompt = list(context.context_ids)
    cache, _ = model.start([prompt], len(given), holds_last=not family.is_seq2seq)
    fed = [family.checkpoint.start_id if family.is_seq2seq else prompt[-1], *given[:-1]]
    for position, (token, wanted) in enumerate(zip(fed, given, strict=True), start=1):

        def read(view: BlockView, wanted: int = wanted) -> Tensor:
            log_p_V = torch.log_softmax(view.logits_AK[0], dim=-1)
            result.logprobs.append(float(log_p_V[wanted]))
            result.greedy.append(int(log_p_V.argmax()) == wanted)
            return torch.tensor([wanted])

        runner = BlockRunner(model, cache, parts)
        decode_step(runner, torch.tensor([token]), (position,), 8, (context.seed,), read, observer)
        (record,) = observer.records
        result.records.append(
            record._replace(token_id=wanted, logprob=result.logprobs[-1], is_greedy=result.greedy[-1])
        )
    return result


@pytest.mark.sampled(4)
@pytest.mark.parametrize("policy", KV_POLICIES)
def test_forced_decoding_equals_prefilling_each_choice_separately(
    position_family: Any, prompts: Any, policy: str
) -> None:
    asked, parts = contexts(prompts, 7), leaving(policy)
    with torch.inference_mode():
        expected = [
            [score_one_choice(position_family, context, given, parts) for given in context.continuations]
            for context in asked
        ]
    assert {layer for one in each(expected) for layer in one.exit_layers} == set(range(1, L + 1))
    for rows in (1, 3, 32):
        assert_same(score(position_family.checkpoint, asked, parts, rows=rows), expected)


def test_gates_first_token_controls_early_exits_of_the_first_token(position_family: Any, prompts: Any) -> None:
    asked = contexts(prompts, 7)
    gated, whole = (
        [
            one.exit_layers[0]
            for one in each(score(position_family.checkpoint, asked, leaving(), gates_first_token=gates))
        ]
        for gates in (True, False)
    )
    assert len(set(gated)) > 2
    assert whole == (gated if position_family.is_seq2seq else [L] * len(gated))


def test_untraced_scores_equal_traced_scores(position_family: Any, prompts: Any) -> None:
    asked = contexts(prompts)
    for parts in (full(), leaving()):
        traced, plain = (
            score(position_family.checkpoint, asked, parts, rows=4, traced=traced) for traced in (True, False)
        )
        assert_same(traced, plain, traced=False)
        assert not any(one.records for one in each(plain))
        for one in each(traced):
            told = [(record.token_id, record.logprob, record.is_greedy) for record in one.records]
            assert told == list(zip(one.token_ids, one.logprobs, one.greedy, strict=True))


def test_non_finite_logits_raise_an_error(position_family: Any, prompts: Any) -> None:
    class Bad(LMHead):
        def logits_after(self, model: Any, block: int, hidden_AD: Tensor) -> Tensor:
            return model.logits(hidden_AD) * math.inf

    bad = Parts(ExitBySeed(), Constant(0.5), Bad(), KV_POLICIES["state-copy"], blocks_from(1, L))
    for parts in (bad, Parts(full().gate, Constant(0.0), Bad(), KV_POLICIES["state-copy"], frozenset())):
        with pytest.raises(ArithmeticError, match="not finite"):
            score(position_family.checkpoint, contexts(prompts), parts)


# ---------------------------------------------------------------------------------------------- one depth a context


@pytest.mark.sampled(3)
@pytest.mark.parametrize("rows", [1, 4, 32])
@pytest.mark.parametrize("policy", ["state-copy", "exact"])
def test_scope_context_keeps_the_depth_of_the_first_token(
    position_family: Any, prompts: Any, policy: str, rows: int
) -> None:
    asked = contexts(prompts, 9)
    by_token = score(position_family.checkpoint, asked, leaving(policy), rows=rows)
    by_context = score(position_family.checkpoint, asked, leaving(policy), rows=rows, scope="context")
    for context, free, kept in zip(asked, by_token, by_context, strict=True):
        depth = free[0].exit_layers[0]
        cut_there = score(position_family.checkpoint, [context], static(depth))[0]
        for one, other in zip(kept, cut_there, strict=True):
            assert one.exit_layers == [depth] * len(one.token_ids)
            assert one.logprobs == pytest.approx(other.logprobs, abs=CLOSE)
            assert one.blocks_run == ([L] if policy == "exact" else [depth]) * len(one.token_ids)
    assert len({kept[0].exit_layers[0] for kept in by_context}) > 2


def test_scope_context_requires_a_gated_first_token(position_family: Any, prompts: Any) -> None:
    def ask() -> list[list[Scored]]:
        return score(position_family.checkpoint, contexts(prompts), leaving(), scope="context", gates_first_token=False)

    if position_family.is_seq2seq:
        return assert_same(ask(), score(position_family.checkpoint, contexts(prompts), leaving(), scope="context"))
    with pytest.raises(UserError, match='use first_token = "gated", or scope = "token"'):
        ask()


# ------------------------------------------------------------------------------------------------- what is run, once


@pytest.mark.parametrize("parts", [full(), leaving()], ids=["at-once", "forced"])
@pytest.mark.parametrize("rows", [1, 2, 32])
def test_a_context_is_prefilled_once_for_all_its_choices(
    position_family: Any, prompts: Any, parts: Parts, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = Context(max(prompts[:20], key=len), CHOICES[:5])
    ran: list[int] = []
    start, starts = Transformer.start, list[int]()

    def counted(embed: Any) -> Any:
        return lambda model, tokens_BT, *rest: ran.append(tokens_BT.numel()) or embed(model, tokens_BT, *rest)

    for name in ("embed", "embed_branches"):
        monkeypatch.setattr(Transformer, name, counted(getattr(Transformer, name)))
    monkeypatch.setattr(Transformer, "start", lambda *args, **kwargs: starts.append(1) or start(*args, **kwargs))
    score(position_family.checkpoint, [context], parts, rows=rows)
    assert len(starts) == 1
    # Two choices of one token are read where the context ends; two of three tokens differ in the last alone.
    after = [[11, 12], [20]]
    assert sum(ran) == (1 if position_family.is_seq2seq else len(context.context_ids)) + sum(map(len, after))
    if not parts.gate.decides:
        assert len(ran) == 2, "and so are the choices"


def test_decoding_with_a_copied_cache_does_not_change_the_original(position_family: Any, prompts: Any) -> None:
    model = position_family.checkpoint.model
    cache, _ = model.start(prompts[:3], 4, holds_last=not position_family.is_seq2seq)
    cache.self_kv.nan_to_num_()  # what is not written yet is whatever was there
    before = cache.self_kv.clone()
    copied = cache.copied(torch.tensor([2, 0, 2, 1]))
    assert copied.n_rows == 4
    assert torch.equal(copied.self_kv, cache.self_kv[:, [2, 0, 2, 1]])
    decode_step(BlockRunner(model, copied, full()), torch.tensor([5, 6, 7, 8]), (1,) * 4, 4, (0,) * 4)
    assert torch.equal(cache.self_kv, before)
    assert (cache.n_rows, copied.length) == (3, cache.length + 1)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("most", [1, 4, 5])
def test_packed_token_limit_does_not_change_scores(
    position_family: Any, prompts: Any, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = contexts(prompts, 7)
    whole = score(position_family.checkpoint, asked, full(), rows=3)
    monkeypatch.setattr(likelihood, "PACKED_TOKENS", most)
    assert_same(whole, score(position_family.checkpoint, asked, full(), rows=3))


def test_branches_of_a_context_share_a_row_up_to_the_token_limit() -> None:
    fed = [(0, 2), (0, 3), (0, 4), (1, 1), (1, 9), (1, 1)]
    branches = [Branch(context, (7,) * size, ()) for context, size in fed]
    rows = [[len(branch.fed) for branch in row] for row in packs(branches, 5)]
    assert rows == [[2, 3], [4], [1], [9], [1]]


def test_continuations_with_the_same_fed_tokens_share_a_branch() -> None:
    branches = branches_of([Context([1], [[5], [6], [7, 8], [7, 9]]), Context([2], [[7, 8]])])
    assert [(branch.context, branch.fed, branch.choices) for branch in branches] == [
        (0, (), (0, 1)),
        (0, (7,), (2, 3)),
        (1, (7,), (0,)),
    ]


class Shape:
    """Fake model with only the attributes that decide how contexts are batched."""

    encoder_blocks = 0

    def __init__(self, pads_left: bool = True, max_positions: int | None = None) -> None:
        self.pads_left, self.max_positions = pads_left, max_positions


def test_batches_respect_row_and_position_limits() -> None:
    lengths = [(3, 2, 5), (9, 1, 1), (5, 3, 2), (9, 2, 8)]  # of the context; continuations, and tokens of each
    asked = [Context([1] * n, [[2 + choice] * size for choice in range(k)]) for n, k, size in lengths]
    asked.append(Context([1], []))
    assert list(batches(Shape(), asked, 32)) == [[1, 3, 2, 0]]  # type: ignore[arg-type]
    assert list(batches(Shape(), asked, 5)) == [[1, 3], [2, 0]]  # type: ignore[arg-type]
    assert list(batches(Shape(), asked, 1)) == [[1], [3], [2], [0]]  # type: ignore[arg-type]
    assert list(batches(Shape(pads_left=False), asked, 32)) == [[1, 3], [2], [0]]  # type: ignore[arg-type]
    assert list(batches(Shape(max_positions=12), asked, 32)) == [[1], [3], [2, 0]]  # type: ignore[arg-type]


def test_contexts_too_long_when_padded_together_are_scored_separately(twin: Any) -> None:
    """Padded to a common length, a long context and another one's long continuation exceed the model's positions.

    The engine must score the two contexts separately instead of refusing them.
    """
    family = twin("gpt2")
    asked = [Context([5] * 46, [[7, 8, 9]]), Context([6] * 4, [list(range(3, 46))])]
    assert_equals_transformers(family, asked, score(family.checkpoint, asked, full(), rows=8))
    with pytest.raises(UserError, match="the model has 48"):
        score(family.checkpoint, [Context([5] * 46, [[7, 8, 9, 10]])], full())


# ---------------------------------------------------------------------------------------------------- hosted engine


@pytest.mark.sampled(2)
@pytest.mark.parametrize("scope", ["token", "context"])
@pytest.mark.parametrize("name", ["llama", "gpt2", "t5", "umt5"])
def test_both_engines_score_the_same(twin: Any, prompts: Any, name: str, scope: Any) -> None:
    asked = contexts(prompts, 6)
    settings = (full(), static(2), leaving(), leaving("exact"), leaving("sync-parallel"))
    for number, parts in enumerate(settings):
        rows = (1, 4)[(number + (scope == "context")) % 2]  # in turn: each setting with either, in one of the scopes
        ours, theirs = (
            score(checkpoint, asked, parts, rows=rows, scope=scope)
            for checkpoint in (twin(name).checkpoint, twin(name).hosted)
        )
        assert_same(ours, theirs)


def test_copied_hosted_cache_contains_the_fed_tokens(twin: Any) -> None:
    """The copy also contains the tokens fed so far. KV policies need them to run blocks at earlier positions."""
    cache, _ = twin("llama").hosted.model.start([[5, 6, 7], [8, 9, 10]], 3)
    copied = cache.copied(torch.tensor([1, 1, 0]))
    assert copied.fed_BS[:, :3].tolist() == [[8, 9, 10], [8, 9, 10], [5, 6, 7]]
    assert (cache.n_rows, cache.layers[0].kv[0].shape[0], copied.layers[0].kv[0].shape[0]) == (2, 2, 3)


def test_scores_are_equal_without_left_padding(twin: Any, prompts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, llama = contexts(prompts, 6), twin("llama")
    monkeypatch.setattr(llama.hosted.model, "pads_left", False)
    assert_same(score(llama.checkpoint, asked, leaving()), score(llama.hosted, asked, leaving(), rows=8))


# --------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ([Context([1], [[2]]), Context([], [[3]])], "context 2 is empty"),
        ([Context([1], [[2], []])], "context 1 has an empty continuation"),
    ],
    ids=["context", "continuation"],
)
def test_empty_contexts_and_continuations_are_refused(twin: Any, asked: list[Context], says: str) -> None:
    with pytest.raises(UserError, match=says):
        score(twin("llama").checkpoint, asked, full())


def test_methods_without_probabilities_and_zero_rows_are_refused(twin: Any) -> None:
    checkpoint, asked = twin("llama").checkpoint, [Context([1], [[2]])]
    with pytest.raises(UserError, match="its own choice takes the draft's place, and a given token is not to be"):
        score(checkpoint, asked, get_method("self-speculation")().parts(L))
    with pytest.raises(UserError, match="rows is 0"):
        score(checkpoint, asked, full(), rows=0)


def test_empty_input_gives_empty_scores(twin: Any) -> None:
    assert score(twin("llama").checkpoint, [], full()) == []
    assert score(twin("llama").checkpoint, [Context([1], [])], full()) == [[]]
