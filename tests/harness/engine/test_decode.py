"""The decode loop: skipped blocks are not computed but filled, and every row exits independently."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from exitbench.harness.engine.decoding.block_runner import BlockRunner
from exitbench.harness.engine.decoding.decode import Batch, decode, decode_step, prefill
from exitbench.harness.engine.decoding.generation import Generation, Request
from exitbench.harness.engine.decoding.trace import Trace
from exitbench.harness.engine.model import model as model_module
from exitbench.harness.engine.model.model import Transformer
from exitbench.methods.base import ActiveRows, BlockView, Gate, Parts, blocks_from
from exitbench.methods.heads import LMHead
from exitbench.methods.kv_policies import StateCopy
from exitbench.methods.oracle import FullAgreement
from exitbench.methods.thresholds import Constant

L = 5
MAX_NEW_TOKENS = 8


class ExitAtSeed(Gate):
    """Gate that lets each row exit after the block given by its seed.

    With ``moving``, the exit layer grows by one per position and starts again at 1 after L.
    """

    def __init__(self, moving: bool = False) -> None:
        self.moving = moving

    def score(self, view: BlockView) -> Tensor:
        rows = zip(view.seeds_A, view.positions_A, strict=True)
        wanted = [exit_at(seed, position if self.moving else 0) for seed, position in rows]
        return torch.tensor([float(view.block >= block) for block in wanted])


def exit_at(seed: int, position: int) -> int:
    """Return the exit layer, 1..L, of a row with this seed at this position."""
    return (seed - 1 + position) % L + 1


def parts(gate: Gate) -> Parts:
    return Parts(gate, Constant(0.5), LMHead(), StateCopy(), blocks_from(1, L))


class Recorder:
    """Recorder of every call of `Transformer.block`: the block and its number of rows."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[int, int]] = []
        run = Transformer.block

        def block(model: Transformer, number: int, hidden: Tensor, *rest: Any, **left: Any) -> Tensor:
            self.calls.append((number, hidden.shape[0]))
            return run(model, number, hidden, *rest, **left)

        monkeypatch.setattr(Transformer, "block", block)

    def rows(self) -> list[int]:
        """Return how many rows ran each block 1..L, over all calls since the last `clear`."""
        return [sum(rows for number, rows in self.calls if number == block) for block in range(1, L + 1)]

    def clear(self) -> None:
        self.calls.clear()


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    return Recorder(monkeypatch)


def start(family: Any, prompts: list[list[int]], seeds: list[int] | None = None, n: int = MAX_NEW_TOKENS) -> Batch:
    seeds = seeds or [1] * len(prompts)
    requests = [Request(p, seed) for p, seed in zip(prompts, seeds, strict=True)]
    return prefill(family.checkpoint.model, requests, n)


def step(family: Any, batch: Batch, gate: Gate, seeds: list[int], token: int = 7, observer: Any = None) -> None:
    """Decode the token that follows the prompts, fed with one token for all rows."""
    runner, n_rows = BlockRunner(family.checkpoint.model, batch.cache, parts(gate)), len(seeds)
    with torch.inference_mode():
        fed = torch.full((n_rows,), token)
        decode_step(runner, fed, (1,) * n_rows, MAX_NEW_TOKENS, tuple(seeds), observer=observer)


def decoded_tokens(family: Any, generations: list[Generation]) -> list[tuple[int, int]]:
    """Return (exit layer, blocks run) of every token from a decode step, without tokens read from a prompt's pass."""
    skip = 0 if family.is_seq2seq else 1
    return [pair for g in generations for pair in list(zip(g.exit_layers, g.blocks_run, strict=True))[skip:]]


def test_skipped_blocks_are_not_computed(position_family: Any, prompts: Any, recorder: Recorder) -> None:
    rows = prompts[:20]
    batch = start(position_family, rows, seeds=[1 + i % L for i in range(20)])
    recorder.clear()
    generations = decode(position_family.checkpoint, batch, parts(ExitAtSeed(moving=True)))
    exits = [exit_layer for exit_layer, _ in decoded_tokens(position_family, generations)]
    assert set(exits) == set(range(1, L + 1))
    assert recorder.rows() == [sum(e >= block for e in exits) for block in range(1, L + 1)]
    assert all(ran == exit_layer for exit_layer, ran in decoded_tokens(position_family, generations))


def test_a_block_that_no_row_needs_is_never_called(position_family: Any, prompts: Any, recorder: Recorder) -> None:
    batch = start(position_family, prompts[:6], seeds=[2] * 6)
    recorder.clear()
    decode(position_family.checkpoint, batch, parts(ExitAtSeed()))
    assert {number for number, _ in recorder.calls} == {1, 2}


@pytest.mark.parametrize("gathered_numel", [0, model_module.GATHERED_NUMEL])
def test_rows_exiting_at_different_blocks_equal_the_same_rows_decoded_alone(
    position_family: Any, prompts: Any, gathered_numel: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys and values of the remaining rows may be copied, or read as ranges of neighbouring rows."""
    monkeypatch.setattr(model_module, "GATHERED_NUMEL", gathered_numel)
    rows = prompts[:20]
    seeds = [1 + (i * 3) % L for i in range(20)]
    method = parts(ExitAtSeed(moving=True))
    together = decode(position_family.checkpoint, start(position_family, rows, seeds), method)
    first_step = 0 if position_family.is_seq2seq else 1
    assert len({g.exit_layers[first_step] for g in together if len(g.exit_layers) > first_step}) >= 4
    for prompt, seed, generation in zip(rows, seeds, together, strict=True):
        (alone,) = decode(position_family.checkpoint, start(position_family, [prompt], [seed]), method)
        assert (alone.token_ids, alone.exit_layers) == (generation.token_ids, generation.exit_layers)


def test_finished_rows_leave_the_batch(position_family: Any, prompts: Any, recorder: Recorder) -> None:
    batch = start(position_family, prompts)
    recorder.clear()
    full_depth = Parts(ExitAtSeed(), Constant(math.inf), LMHead(), StateCopy(), blocks_from(1, L))
    generations = decode(position_family.checkpoint, batch, full_depth)
    lengths = [len(g.token_ids) for g in generations]
    assert len(set(lengths)) > 2, "rows must end at different steps"
    first_step = 1 if position_family.is_seq2seq else 2
    alive = [sum(n >= step for n in lengths) for step in range(first_step, max(lengths) + 1)]
    assert [rows for number, rows in recorder.calls if number == L] == alive
    assert batch.cache.n_rows <= alive[-1]


def test_stop_callback_ends_a_row(position_family: Any, prompts: Any) -> None:
    rows = prompts[:10]
    free = decode(position_family.checkpoint, start(position_family, rows), parts(ExitAtSeed()))
    stopped = decode(
        position_family.checkpoint, start(position_family, rows), parts(ExitAtSeed()), lambda tokens: len(tokens) == 3
    )
    reasons = set()
    for before, after in zip(free, stopped, strict=True):
        assert after.token_ids == before.token_ids[:3]
        ends_itself = before.stop_reason == "eos" and len(before.token_ids) <= 3
        assert after.stop_reason == ("eos" if ends_itself else "stop_string")
        reasons.add(after.stop_reason)
    assert "stop_string" in reasons


def test_trace_has_one_entry_per_token_and_scores_only_for_early_exits(position_family: Any, prompts: Any) -> None:
    generations = decode(
        position_family.checkpoint,
        start(position_family, prompts[:20], [1 + i % L for i in range(20)]),
        parts(ExitAtSeed()),
    )
    for g in generations:
        assert len(g.token_ids) == len(g.exit_layers) == len(g.blocks_run) == len(g.scores)
        assert all((score is None) == (layer == L) for layer, score in zip(g.exit_layers, g.scores, strict=True))
        assert {score for score in g.scores if score is not None} <= {1.0}
        eos = [token in position_family.checkpoint.eos_ids for token in g.token_ids]
        assert (g.stop_reason == "eos") == eos[-1]
        assert not any(eos[:-1])


def test_oracles_run_every_block_but_record_the_early_exit(
    position_family: Any, prompts: Any, recorder: Recorder
) -> None:
    batch = start(position_family, prompts[:20])
    recorder.clear()
    generations = decode(position_family.checkpoint, batch, parts(FullAgreement(stable=False)))
    tokens = decoded_tokens(position_family, generations)
    assert {ran for _, ran in tokens} == {L}
    assert min(exit_layer for exit_layer, _ in tokens) < L
    assert recorder.rows() == [len(tokens)] * L


def test_bfloat16_decodes_with_exits_at_every_block(family: Any, prompts: Any) -> None:
    from exitbench.harness.engine.checkpoints.loading import load_checkpoint

    half = load_checkpoint(family.folder, dtype=torch.bfloat16)
    requests = [Request(p, 1 + i % L) for i, p in enumerate(prompts[:10])]
    batch = prefill(half.model, requests, MAX_NEW_TOKENS)
    assert batch.cache.self_kv.dtype == torch.bfloat16
    generations = decode(half, batch, parts(ExitAtSeed(moving=True)))
    assert {e for g in generations for e in g.exit_layers} == set(range(1, L + 1))
    assert torch.isfinite(batch.cache.self_kv[..., : batch.cache.length, :]).all()


# ------------------------------------------------------------------ keys and values of skipped blocks


def exit_state(family: Any, prompt: list[int], token: int, block: int) -> Tensor:
    """Return transformers' state of the newest token after ``block`` blocks, [D]."""
    if family.is_seq2seq:
        out = family.reference(
            input_ids=torch.tensor([prompt]), decoder_input_ids=torch.tensor([[token]]), output_hidden_states=True
        )
        return out.decoder_hidden_states[block][0, -1]
    out = family.reference(input_ids=torch.tensor([[*prompt, token]]), output_hidden_states=True)
    return out.hidden_states[block][0, -1]


def keys_and_values(family: Any, block: int, state: Tensor, place: int) -> tuple[Tensor, Tensor]:
    """Return keys and values of a state from transformers' own norm and projections in block ``block``, each [G, K]."""
    model, arch = family.reference, family.checkpoint.model.arch
    if family.is_seq2seq:
        layer = model.decoder.block[block - 1].layer[0]
        normed = layer.layer_norm(state)
        key, value = layer.SelfAttention.k(normed), layer.SelfAttention.v(normed)
    elif hasattr(model, "transformer"):
        layer = model.transformer.h[block - 1]
        _, key, value = layer.attn.c_attn(layer.ln_1(state)[None])[0].chunk(3)
    else:
        cache, angles = DynamicCache(), model.model.rotary_emb(state[None, None], torch.tensor([[place]]))
        model.model.layers[block - 1](state[None, None], position_embeddings=angles, past_key_values=cache)
        key, value = cache.layers[block - 1].keys.clone(), cache.layers[block - 1].values
        if (turned := angles[0].shape[-1]) < arch.head_dim:  # the engine has each half of what is turned in a half
            first, second, rest = key.split((turned // 2, turned // 2, arch.head_dim - turned), dim=-1)
            one, other = rest.chunk(2, dim=-1)
            key = torch.cat((first, one, second, other), dim=-1)
    shape = (arch.n_kv_heads, arch.head_dim)
    return key.view(shape), value.view(shape)


class LeastProbableToken(ExitAtSeed):
    """Gate with its own `choose`, so that rows of different blocks are read out apart."""

    def choose(self, view: BlockView) -> Tensor:
        assert view.block == L or {exit_at(seed, 0) for seed in view.seeds_A} == {view.block}
        return view.logits_AK.argmin(-1)


@pytest.mark.parametrize("gate", [ExitAtSeed(), LeastProbableToken()], ids=["most-probable", "own-choice"])
def test_rows_exiting_at_different_blocks_share_one_lm_head_product(
    position_family: Any, prompts: Any, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows share one LM-head product per step, unless the gate chooses tokens itself."""
    read: list[int] = []
    logits = Transformer.logits
    monkeypatch.setattr(Transformer, "logits", lambda model, hidden: read.append(len(hidden)) or logits(model, hidden))
    seeds = [1 + i % L for i in range(10)]
    model = position_family.checkpoint.model
    trace = Trace(model)
    step(position_family, start(position_family, prompts[:10], seeds), gate, seeds, observer=trace)
    assert read == ([10] if type(gate) is ExitAtSeed else [2] * L)
    assert trace.exit_layers == seeds
    assert trace.head_rows == [model.vocab_size] * 10


def test_each_exit_selects_exiting_and_remaining_rows_once(
    position_family: Any, prompts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every block with exits, exiting and remaining rows are selected once."""
    sizes: list[int] = []
    take = ActiveRows.take
    monkeypatch.setattr(ActiveRows, "take", lambda rows, index, *on: sizes.append(len(index)) or take(rows, index, *on))
    seeds = [1 + i % L for i in range(10)]
    step(position_family, start(position_family, prompts[:10], seeds), ExitAtSeed(), seeds)
    assert sizes == [2, 8, 2, 6, 2, 4, 2, 2]


def test_skipped_blocks_hold_keys_and_values_of_the_exit_state(family: Any, prompts: Any) -> None:
    """The prompts have mixed lengths, so that left padding and rotary positions differ between rows."""
    rows, seeds = prompts[:10], [1 + i % L for i in range(10)]
    batch = start(family, rows, seeds)
    token = family.checkpoint.start_id if family.is_seq2seq else 7
    step(family, batch, ExitAtSeed(), seeds, token)
    newest = batch.cache.length - 1
    compared = 0
    for row, (prompt, exit_layer) in enumerate(zip(rows, seeds, strict=True)):
        state = exit_state(family, prompt, token, exit_layer)
        place = 0 if family.is_seq2seq else len(prompt)
        for block in range(exit_layer + 1, L + 1):
            key, value = keys_and_values(family, block, state, place)
            torch.testing.assert_close(
                batch.cache.self_kv[block - 1, row, : len(key), newest], key, atol=1e-5, rtol=1e-4
            )
            torch.testing.assert_close(
                batch.cache.self_kv[block - 1, row, len(key) :, newest], value, atol=1e-5, rtol=1e-4
            )
            compared += 1
    assert compared == 2 * sum(L - e for e in range(1, L + 1))


@pytest.mark.parametrize("some", [False, True])
def test_fill_equals_running_each_skipped_block_on_the_exit_state(family: Any, prompts: Any, some: bool) -> None:
    """All exiting rows are filled with one product if they exit after the same block."""
    model = family.checkpoint.model
    cache, _ = model.start(prompts[:6], room=3)
    if family.is_seq2seq:
        cache.length = 1  # any position but the first, at which rotating does nothing
        cache.self_kv[..., :1, :] = 0
    rows_A = torch.tensor([1, 2, 5]) if some else None
    hidden, context = model.embed(torch.full((6, 1), 7), cache)
    for block in range(1, 3):
        hidden = model.block(block, hidden, context)
    state = hidden[:, 0] if rows_A is None else hidden[rows_A, 0]
    model.fill([(2, state, rows_A)], context)
    filled = cache.self_kv[2:, ..., cache.length, :].clone()
    for block in range(3, L + 1):
        model.block(block, hidden, context)
    rows = slice(None) if rows_A is None else rows_A
    torch.testing.assert_close(filled[:, rows], cache.self_kv[2:, rows, ..., cache.length, :], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("exit_layer", [1, 3])
def test_executed_blocks_hold_the_keys_and_values_of_full_depth(family: Any, prompts: Any, exit_layer: int) -> None:
    """An exit must not touch the keys and values of the blocks that did run."""
    caches = []
    for depth in (exit_layer, L):
        batch = start(family, prompts[:6], [depth] * 6)
        step(family, batch, ExitAtSeed(), [depth] * 6)
        caches.append(batch.cache.self_kv[..., : batch.cache.length, :])
    early, full = caches
    assert torch.equal(early[:exit_layer], full[:exit_layer])
    assert not torch.allclose(early[exit_layer:, ..., -1, :], full[exit_layer:, ..., -1, :], atol=1e-3)
