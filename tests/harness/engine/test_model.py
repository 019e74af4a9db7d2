"""The lean engine computes the same logits and the same greedy tokens as transformers, for every family."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from prompt_decoding import decode_prompts, full_depth_tokens
from torch import Tensor

from exitbench.errors import UserError
from exitbench.harness.engine.checkpoints.loading import load_checkpoint
from exitbench.harness.engine.decoding.decode import prefill
from exitbench.harness.engine.decoding.generation import Request
from exitbench.harness.engine.model import model as model_module
from exitbench.harness.engine.model.cache import Cache
from exitbench.harness.engine.model.model import Transformer
from exitbench.methods.registry import baseline_method

MAX_NEW_TOKENS = 12
TOLERANCE = 1e-4


def run_blocks(model: Transformer, tokens_BT: Tensor, cache: Cache) -> Tensor:
    """Run all blocks for T new positions and return logits [B, T, V]."""
    hidden, context = model.embed(tokens_BT, cache)
    for block in range(1, model.n_blocks + 1):
        hidden = model.block(block, hidden, context)
    cache.length += tokens_BT.shape[1]
    return model.logits(hidden)


def answers_for(prompts: list[list[int]], length: int) -> Tensor:
    """Return random tokens to feed to the decoder as the answers to the prompts, [B, length]."""
    return torch.randint(3, 100, (len(prompts), length), generator=torch.Generator().manual_seed(1))


def test_teacher_forced_logits_equal_transformers_at_every_position(family: Any, prompts: Any) -> None:
    rows = prompts[:24]
    model = family.checkpoint.model
    if family.is_seq2seq:
        tokens = answers_for(rows, 15)
        cache, _ = model.start(rows, room=15)
        expected = family.reference(**family.padded(rows), decoder_input_ids=tokens).logits
        real = torch.ones(tokens.shape, dtype=torch.bool)
    else:
        batch = family.padded(rows)
        tokens, real = batch["input_ids"], batch["attention_mask"].bool()
        cache = Cache(model, len(rows), tokens.shape[1])
        cache.padding_B = (~real).sum(1)
        places = (batch["attention_mask"].cumsum(1) - 1).clamp(min=0)
        expected = family.reference(**batch, position_ids=places).logits
    logits = run_blocks(model, tokens, cache)
    assert expected[real].std() > 0.5, "the comparison must not be one of constants"
    torch.testing.assert_close(logits[real], expected[real], atol=TOLERANCE, rtol=0)


def test_decode_step_logits_equal_transformers_without_a_cache(family: Any, prompts: Any) -> None:
    rows = prompts[:16]
    model = family.checkpoint.model
    answers = answers_for(rows, MAX_NEW_TOKENS)
    cache, state = model.start(rows, room=MAX_NEW_TOKENS)
    steps = []
    if state is None:
        first = torch.full((len(rows), 1), family.checkpoint.start_id)
        steps.append(run_blocks(model, first, cache))
    else:
        steps.append(model.logits(state)[:, None])
    for position in range(MAX_NEW_TOKENS - 1):
        steps.append(run_blocks(model, answers[:, position : position + 1], cache))
    ours = torch.cat(steps, dim=1)
    theirs = torch.stack([family.reference_logits(p, a) for p, a in zip(rows, answers.tolist(), strict=True)])
    torch.testing.assert_close(ours, theirs, atol=TOLERANCE, rtol=0)


def reference_answers(family: Any, prompts: list[list[int]], max_new_tokens: int) -> list[list[int]]:
    """Greedy answers of transformers, cut after the end-of-sequence token."""
    eos = family.checkpoint.eos_ids
    generated = family.reference.generate(
        **family.padded(prompts),
        max_new_tokens=max_new_tokens,
        do_sample=False,
        eos_token_id=list(eos),
        # generate() of this version cannot cache a T5 whose encoder and decoder differ in depth
        use_cache=not family.is_seq2seq,
    )
    new = generated[:, 1:] if family.is_seq2seq else generated[:, -(generated.shape[1] - max(map(len, prompts))) :]
    return [row[: next((i + 1 for i, token in enumerate(row) if token in eos), None)] for row in new.tolist()]


def assert_same_unless_tied(family: Any, prompt: list[int], ours: list[int], theirs: list[int]) -> None:
    """Assert that two answers are equal up to the first near-tie of the reference's best logits."""
    if ours == theirs:
        return
    at = next(i for i in range(max(len(ours), len(theirs))) if ours[i : i + 1] != theirs[i : i + 1])
    best = family.reference_logits(prompt, theirs[: at + 1])[-1].topk(2).values
    assert best[0] - best[1] < 1e-5, f"{ours} instead of {theirs}: they part at token {at + 1}, which is no tie"


def test_greedy_answers_to_200_prompts_equal_transformers(family: Any, prompts: Any) -> None:
    theirs = reference_answers(family, prompts, MAX_NEW_TOKENS)
    ours = full_depth_tokens(family.checkpoint, prompts, MAX_NEW_TOKENS)
    assert len({len(answer) for answer in theirs}) >= 4, "end of sequence must come at different places"
    assert len({token for answer in theirs for token in answer}) >= 15, "answers must differ"
    for prompt, mine, reference in zip(prompts, ours, theirs, strict=True):
        assert_same_unless_tied(family, prompt, mine, reference)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("max_new_tokens", [1, 2, 5])
def test_answers_stop_at_the_length_limit(family: Any, prompts: Any, max_new_tokens: int) -> None:
    rows = prompts[:40]
    parts = baseline_method()().parts(family.checkpoint.model.n_blocks)
    generations = decode_prompts(family.checkpoint, rows, max_new_tokens, parts)
    assert [g.token_ids for g in generations] == reference_answers(family, rows, max_new_tokens)
    eos = family.checkpoint.eos_ids
    assert all((g.stop_reason == "eos") == (g.token_ids[-1] in eos) for g in generations)
    at_limit = [g for g in generations if g.token_ids[-1] not in eos]
    assert at_limit
    assert {(len(g.token_ids), g.stop_reason) for g in at_limit} == {(max_new_tokens, "length")}


@pytest.mark.parametrize("paired_keys", [1, model_module.PAIRED_KEYS])
def test_weights_in_bfloat16_give_nearly_the_same_logits(
    family: Any, prompts: Any, paired_keys: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a single query is given to torch's attention once or twice."""
    monkeypatch.setattr(model_module, "PAIRED_KEYS", paired_keys)
    half = load_checkpoint(family.folder, dtype=torch.bfloat16)
    rows = prompts[:16]
    results = []
    for model in (family.checkpoint.model, half.model):
        cache, _ = model.start(rows, room=2)
        results.append(run_blocks(model, torch.full((len(rows), 1), 7), cache))
    exact, rounded = results
    assert rounded.dtype == torch.bfloat16
    assert (rounded.float() - exact).norm() / exact.norm() < 0.05
    assert not torch.equal(rounded.float(), exact)


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("n_rows", [1, 5])
def test_logits_of_selected_head_rows_equal_those_of_the_whole_head(family: Any, with_bias: bool, n_rows: int) -> None:
    """Each row of the batch reads other ids of the head, in another order."""
    model, draw = family.checkpoint.model, torch.Generator().manual_seed(3)
    if with_bias:
        bias = torch.randn(model.vocab_size, generator=draw)
        head = dataclasses.replace(model.weights.lm_head, bias=bias)
        model = Transformer(model.arch, dataclasses.replace(model.weights, lm_head=head))
    hidden = torch.randn(n_rows, model.d_model, generator=draw)
    ids = torch.stack([torch.randperm(model.vocab_size, generator=draw)[:13] for _ in range(n_rows)])
    weights = model.head_weights(ids)
    assert weights.shape == (n_rows, 13, model.d_model + with_bias)
    torch.testing.assert_close(model.logits_of(hidden, weights), model.logits(hidden).gather(1, ids))


def test_exceeding_learned_positions_is_refused(twin: Any) -> None:
    model = twin("gpt2").checkpoint.model
    prompt = [5] * 45
    prefill(model, [Request(prompt)], max_new_tokens=4)  # the last token is never fed: 45 + 3 = 48 positions
    with pytest.raises(UserError, match=r"prompt of 45 tokens and 5 new ones need 49 positions; the model has 48"):
        prefill(model, [Request([5]), Request(prompt)], max_new_tokens=5)
