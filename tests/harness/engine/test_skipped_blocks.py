"""KV policies in real decodes: the blocks that they run, the cache that they leave, and equal answers in any batch.

Exit layers are fixed in advance, so that every policy skips the same blocks. Tokens come from the real logits.
"""

from __future__ import annotations

import copy
import dataclasses
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from exitbench.harness.engine.decoding.block_runner import BlockRunner
from exitbench.harness.engine.decoding.decode import decode, decode_step
from exitbench.harness.engine.decoding.generation import Generation
from exitbench.harness.engine.decoding.trace import Trace
from exitbench.harness.engine.model.cache import Cache
from exitbench.harness.engine.model.model import Transformer
from exitbench.methods.base import Parts, argmax_token, blocks_from
from exitbench.methods.gates import Scheduled
from exitbench.methods.heads import LMHead
from exitbench.methods.kv_policies import KV_POLICIES
from exitbench.methods.oracle import FullAgreement
from exitbench.methods.static import Static
from exitbench.methods.thresholds import Constant

L = 5
N_NEW = 9
N_ROWS = 12
TOLERANCE: dict[str, Any] = {"atol": 1e-5, "rtol": 1e-5}
EXACT = ("exact", "sync-parallel", "recompute-backlog")  # what is read is what a full run would have written
WAITING = ("state-copy-lazy", "sync-parallel", "recompute-backlog")


def schedule(n_rows: int, seed: int = 0) -> dict[int, list[int]]:
    """Return random exit layers for each row and position; most tokens exit early, and a few run all blocks."""
    draw = random.Random(seed)
    return {row: draw.choices(range(1, L + 1), weights=[5, 4, 3, 1, 1], k=N_NEW) for row in range(n_rows)}


def parts(policy: str, layers: dict[int, list[int]]) -> Parts:
    return Parts(Scheduled(layers), Constant(0.5), LMHead(), KV_POLICIES[policy], blocks_from(1, L))


def decode_endless(family: Any, prompts: Sequence[list[int]], method: Parts) -> list[Generation]:
    """Return answers of the longest length to the prompts, as one batch."""
    return decode(family.endless, family.start(prompts, N_NEW), method)


def skip_prompt(family: Any, values: list[Any]) -> list[Any]:
    """Return the values of all tokens but the one that a decoder-only model reads from the prompt's own pass."""
    return values if family.is_seq2seq else values[1:]


def full_run(family: Any, prompts: Sequence[list[int]], tokens: list[list[int]]) -> tuple[Cache, Tensor]:
    """Run all blocks on the given tokens; return the cache, and the states after each block, [L, B, T, D]."""
    model = family.checkpoint.model
    cache, _ = model.start(prompts, N_NEW)
    fed = torch.tensor(tokens)[:, :-1]
    if family.is_seq2seq:
        fed = torch.cat([torch.full((len(fed), 1), family.checkpoint.start_id), fed], dim=1)
    (hidden, context), states = model.embed(fed, cache), []
    for block in range(1, L + 1):
        hidden = model.block(block, hidden, context)
        states.append(hidden)
    cache.length += fed.shape[1]
    return cache, torch.stack(states)


def read_depth(exit_layers: list[int], at: int) -> int:
    """Return the last block at which a token's keys and values are read, by the token itself or by a later one."""
    return max(exit_layers[at:])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("policy", EXACT)
def test_tokens_equal_a_full_run_read_out_at_the_exit_layers(family: Any, prompts: Any, policy: str) -> None:
    rows, layers = prompts[:N_ROWS], schedule(N_ROWS)
    result = decode_endless(family, rows, parts(policy, layers))
    _, states_LBTD = full_run(family, rows, [g.token_ids for g in result])
    logits = family.checkpoint.model.logits(states_LBTD)
    for row, generation in enumerate(result):
        exits = skip_prompt(family, generation.exit_layers)
        assert exits == skip_prompt(family, layers[row])
        expected = [int(argmax_token(logits[layer - 1, row, at])) for at, layer in enumerate(exits)]
        assert skip_prompt(family, generation.token_ids) == expected


@pytest.mark.sampled(3)
@pytest.mark.parametrize("policy", EXACT)
def test_keys_and_values_that_later_tokens_read_equal_those_of_a_full_run(
    family: Any, prompts: Any, policy: str
) -> None:
    rows = prompts[:N_ROWS]
    batch = family.start(rows, N_NEW)
    before = batch.cache.length
    result = decode(family.endless, batch, parts(policy, schedule(N_ROWS)))
    full, _ = full_run(family, rows, [g.token_ids for g in result])
    assert batch.cache.length == full.length
    untouched = 0
    for row, generation in enumerate(result):
        exits = skip_prompt(family, generation.exit_layers)
        for at in range(len(exits)):
            depth = L if policy == "exact" else read_depth(exits, at)
            ours, theirs = (cache.self_kv[:, row, :, before + at] for cache in (batch.cache, full))
            torch.testing.assert_close(ours[:depth], theirs[:depth], **TOLERANCE)
            assert ours[depth:].isnan().all(), "what nobody reads is not made"
            untouched += L - depth
    assert (untouched > 0) == (policy != "exact")


def test_lazy_state_copy_writes_only_entries_that_are_read_with_the_eager_values(
    position_family: Any, prompts: Any
) -> None:
    rows, layers = prompts[:N_ROWS], schedule(N_ROWS)
    eager, lazy = position_family.start(rows, N_NEW), position_family.start(rows, N_NEW)
    before = eager.cache.length
    expected = decode(position_family.endless, eager, parts("state-copy", layers))
    result = decode(position_family.endless, lazy, parts("state-copy-lazy", layers))
    assert result == expected
    completed = 0
    for row, generation in enumerate(result):
        exits = skip_prompt(position_family, generation.exit_layers)
        for at, layer in enumerate(exits):
            depth = read_depth(exits, at)
            ours, theirs = (batch.cache.self_kv[:, row, :, before + at] for batch in (lazy, eager))
            torch.testing.assert_close(ours[:depth], theirs[:depth], **TOLERANCE)
            assert ours[depth:].isnan().all()
            assert not theirs.isnan().any()
            completed += depth - layer
    assert completed > 50, "tokens that waited were made up for"


@pytest.mark.sampled(2)
def test_lazy_and_eager_state_copy_give_the_same_answers_to_200_prompts(position_family: Any, prompts: Any) -> None:
    layers = schedule(len(prompts))
    answers = [
        decode(position_family.checkpoint, position_family.start(prompts, N_NEW), parts(p, layers))
        for p in ("state-copy", WAITING[0])
    ]
    assert answers[0] == answers[1]
    assert len({len(g.token_ids) for g in answers[0]}) >= 2


@pytest.mark.sampled(2)
def test_deferring_policies_give_the_answers_of_policy_exact_to_200_prompts(position_family: Any, prompts: Any) -> None:
    layers = schedule(len(prompts))
    exact, *others = (
        decode(position_family.checkpoint, position_family.start(prompts, N_NEW), parts(policy, layers))
        for policy in EXACT
    )
    copied = decode(position_family.checkpoint, position_family.start(prompts, N_NEW), parts("state-copy", layers))
    for other in others:
        assert [(g.token_ids, g.exit_layers) for g in other] == [(g.token_ids, g.exit_layers) for g in exact]
    assert [g.token_ids for g in copied] != [g.token_ids for g in exact], "copied states must make a difference here"


def clone(cache: Cache) -> Cache:
    """Return a copy of the cache; the model is shared."""
    twin = copy.copy(cache)
    twin.self_kv, twin.waiting = cache.self_kv.clone(), [list(tokens) for tokens in cache.waiting]
    return twin


def test_noisy_emits_full_depth_tokens_and_leaves_the_cache_of_state_copy(position_family: Any, prompts: Any) -> None:
    layers = schedule(N_ROWS)
    batch, model, seeds = (
        position_family.start(prompts[:N_ROWS], N_NEW),
        position_family.checkpoint.model,
        tuple(range(N_ROWS)),
    )
    token, shallow_differs = torch.full((N_ROWS,), 7), 0
    never = {row: [L] * N_NEW for row in range(N_ROWS)}
    for position in range(1, N_NEW):
        caches, traces = [clone(batch.cache) for _ in range(3)], [Trace(model) for _ in range(3)]
        schedules = {"noisy": layers, "state-copy": layers, "exact": never}
        with torch.inference_mode():
            noisy, copied, full = (
                decode_step(
                    BlockRunner(model, cache, parts(policy, asked)),
                    token,
                    (position,) * N_ROWS,
                    N_NEW,
                    seeds,
                    observer=trace,
                )
                for cache, trace, (policy, asked) in zip(caches, traces, schedules.items(), strict=True)
            )
        assert torch.equal(noisy.token_B, full.token_B)
        assert traces[0].exit_layers == traces[1].exit_layers
        assert set(traces[0].blocks_run) == {L}
        end = batch.cache.length + 1
        torch.testing.assert_close(caches[0].self_kv[..., :end, :], caches[1].self_kv[..., :end, :], **TOLERANCE)
        shallow_differs += int((copied.token_B != full.token_B).sum())
        batch.cache, token = caches[0], noisy.token_B
    assert shallow_differs >= 5, "or the test could not tell which token is emitted"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("policy", KV_POLICIES)
def test_a_batch_equals_its_rows_alone_with_rows_that_end_at_different_times(
    position_family: Any, prompts: Any, policy: str
) -> None:
    """Rows end while tokens of these and other rows are deferred. Prompts are padded."""
    rows, method = prompts[:20], parts(policy, schedule(20, seed=3))
    checkpoint = position_family.endless
    together = decode(checkpoint, position_family.start(rows, N_NEW), method, ends_somewhere)
    assert len({len(g.token_ids) for g in together}) >= 4
    for row, generation in list(enumerate(together))[::2]:
        alone = position_family.start([rows[row]], N_NEW, row)
        assert decode(checkpoint, alone, method, ends_somewhere) == [generation]


def ends_somewhere(tokens: list[int]) -> bool:
    """Stop rule: an answer ends at a length that depends on its first token."""
    return len(tokens) > tokens[0] % 7


@pytest.mark.sampled(2)
@pytest.mark.parametrize("policy", ["state-copy", "noisy"])
@settings(max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_filling_exited_rows_during_the_step_equals_filling_at_its_end(
    family: Any, prompts: Any, policy: str, data: st.DataObject
) -> None:
    """Skipped blocks of exited rows are filled while other rows run these blocks, or at the end of the step.

    The answers and the cache are equal both ways, whatever the exit layers of the rows.
    """
    layer = st.integers(1, data.draw(st.integers(1, L), label="deepest"))
    exits = st.lists(layer, min_size=N_NEW, max_size=N_NEW)
    layers = dict(enumerate(data.draw(st.lists(exits, min_size=1, max_size=4), label="exits")))
    results = []
    for in_passing in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Transformer, "fills_exited_rows", in_passing)
            batch = family.start(prompts[: len(layers)], N_NEW)
            results.append((decode(family.endless, batch, parts(policy, layers)), batch.cache.self_kv))
    (result, kv), (expected, expected_kv) = results
    assert result == expected
    torch.testing.assert_close(kv, expected_kv, equal_nan=True, **TOLERANCE)


# ------------------------------------------------------------------------------------------ what is really run


class Spy:
    """Counter of calls of blocks, of the positions run at each block, and of states projected to keys and values."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls, self.positions = [0] * (L + 1), [0] * (L + 1)
        self.filled = self.projected = 0
        run, fill, project = Transformer.block, BlockRunner.fill_from_state, Transformer._write_projected

        def block(model: Transformer, number: int, hidden: Tensor, *rest: Any, **left: Any) -> Tensor:
            self.calls[number] += 1
            self.positions[number] += hidden.shape[:-1].numel()
            return run(model, number, hidden, *rest, **left)

        def fill_from_state(runner: BlockRunner, number: int, hidden: Tensor, rows: Tensor | None) -> None:
            self.filled += len(hidden) * (L - number)
            fill(runner, number, hidden, rows)

        def write_projected(model: Transformer, number: int, states: Tensor, *rest: Any) -> None:
            self.projected += len(states)
            project(model, number, states, *rest)

        monkeypatch.setattr(Transformer, "block", block)
        monkeypatch.setattr(BlockRunner, "fill_from_state", fill_from_state)
        monkeypatch.setattr(Transformer, "_write_projected", write_projected)

    def clear(self) -> None:
        self.calls, self.positions, self.filled, self.projected = [0] * (L + 1), [0] * (L + 1), 0, 0


@pytest.mark.sampled(4)
@pytest.mark.parametrize("policy", KV_POLICIES)
def test_static_exit_writes_no_unread_keys_and_values(
    position_family: Any, prompts: Any, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, static = prompts[:N_ROWS], Static(exit_layer=2, kv_policy=policy).parts(L)
    batch = position_family.start(rows, N_NEW)
    before = batch.cache.length
    result = decode(position_family.endless, batch, static)
    deeper = batch.cache.self_kv[2:, :, :, before : batch.cache.length]
    assert deeper.isnan().all() == (not static.runs_all_blocks), "what runs all blocks reads them too"
    if policy != "recompute-backlog":
        assert not any(batch.cache.waiting)
    monkeypatch.setattr(Parts, "may_read_skipped_keys", True)
    assert decode_endless(position_family, rows, static) == result


def test_rows_with_equally_deferred_tokens_need_no_index_and_give_equal_answers(
    position_family: Any, prompts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = {row: [2, 1, 2, 5, 3, 2, 5, 1, 5] for row in range(N_ROWS)}
    for policy in ("sync-parallel", "recompute-backlog"):
        with monkeypatch.context() as patch:
            patch.setattr(BlockRunner, "_are_newest", lambda *_: False)
            indexed = decode_endless(position_family, prompts[:N_ROWS], parts(policy, layers))
        with monkeypatch.context() as patch:
            patch.setattr(Transformer, "places", None)
            result = decode_endless(position_family, prompts[:N_ROWS], parts(policy, layers))
        assert result == indexed


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> Spy:
    return Spy(monkeypatch)


@pytest.mark.parametrize("policy", KV_POLICIES)
def test_every_policy_runs_exactly_the_blocks_of_its_definition(
    position_family: Any, prompts: Any, policy: str, spy: Spy
) -> None:
    """This decodes a single row, because blocks would also run the padding of a batch."""
    layers = {4: [3, 2, 1, 4, 1, 2, 5, 1, 3]}
    batch = position_family.start(prompts[4:5], N_NEW, first_seed=4)
    spy.clear()
    (result,) = decode(position_family.endless, batch, parts(policy, layers))
    exits = skip_prompt(position_family, result.exit_layers)
    reads = [read_depth(exits, at) for at in range(len(exits))]
    own = [sum(layer >= block for layer in exits) for block in range(1, L + 1)]
    made_up = sum(depth - layer for depth, layer in zip(reads, exits, strict=True))
    skipped = sum(L - layer for layer in exits)
    everything = [len(exits)] * L
    assert made_up > 5
    if policy in WAITING:
        assert spy.calls[1:] == own, "nothing is run as a token leaves: each block once for each token that runs it"
    if policy == "recompute-backlog":
        backlog, again = 0, [0] * L
        for layer in exits:
            again = [n + backlog * (block <= layer) for block, n in enumerate(again, 1)]
            backlog = 0 if layer == L else backlog + 1
        assert spy.positions[1:] == [a + b for a, b in zip(own, again, strict=True)]
    elif policy == "sync-parallel":
        assert spy.positions[1:] == [sum(depth >= block for depth in reads) for block in range(1, L + 1)]
    else:
        assert spy.positions[1:] == (everything if policy in ("exact", "noisy") else own)
    assert spy.filled == (skipped if policy in ("state-copy", "noisy") else 0)
    assert spy.projected == (made_up if policy == "state-copy-lazy" else 0)
    runs_all = policy in ("exact", "noisy")
    assert skip_prompt(position_family, result.blocks_run) == ([L] * len(exits) if runs_all else exits)


@pytest.mark.parametrize("policy", WAITING)
def test_deferring_policies_run_no_extra_blocks_when_rows_of_a_batch_exit(
    position_family: Any, prompts: Any, policy: str, spy: Spy
) -> None:
    layers = schedule(N_ROWS)
    batch = position_family.start(prompts[:N_ROWS], N_NEW)
    spy.clear()
    result = decode(position_family.endless, batch, parts(policy, layers))
    steps = list(zip(*(skip_prompt(position_family, g.exit_layers) for g in result), strict=True))
    assert spy.calls[1:] == [sum(max(step) >= block for step in steps) for block in range(1, L + 1)]
    assert spy.filled == 0
    assert all(g.blocks_run == g.exit_layers for g in result)


def test_tokens_that_have_run_all_blocks_are_no_longer_deferred(position_family: Any, prompts: Any) -> None:
    model, seeds = position_family.checkpoint.model, (0, 1)
    for policy in WAITING:
        batch = position_family.start(prompts[:2], N_NEW)
        layers, waiting = {0: [2, 1, L, 1], 1: [1, 1, 1, L]}, []
        for position in range(1, 5):
            with torch.inference_mode():
                decode_step(
                    BlockRunner(model, batch.cache, parts(policy, layers)),
                    torch.tensor([7, 8]),
                    (position,) * 2,
                    N_NEW,
                    seeds,
                )
            waiting.append([sum(token.n_blocks_run < L for token in tokens) for tokens in batch.cache.waiting])
        assert waiting == [[1, 1], [2, 2], [0, 3], [1, 0]], policy


@pytest.mark.sampled(4)
@pytest.mark.parametrize("policy", KV_POLICIES)
def test_oracle_runs_every_block_under_every_policy(position_family: Any, prompts: Any, policy: str) -> None:
    oracle = dataclasses.replace(parts(policy, {}), gate=FullAgreement(stable=False))
    result = decode_endless(position_family, prompts[:N_ROWS], oracle)
    full = decode_endless(position_family, prompts[:N_ROWS], dataclasses.replace(oracle, blocks=frozenset()))
    assert {ran for g in result for ran in g.blocks_run} == {L}
    assert min(layer for g in result for layer in g.exit_layers) < L
    if policy in EXACT:  # the token is the full model's, and so is the cache
        assert [g.token_ids for g in result] == [g.token_ids for g in full]
