"""Checks of a model on the hosted engine. Each raises an AssertionError if it fails.

Shape suffixes: L blocks.
"""

from __future__ import annotations

import copy
import dataclasses
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from exitbench.harness.engine.checkpoints.loading import Checkpoint, load_checkpoint
from exitbench.harness.engine.decoding.decode import decode, prefill
from exitbench.harness.engine.decoding.generation import Generation, Request
from exitbench.harness.engine.decoding.probe import states_of
from exitbench.harness.engine.hosted.model import HostedTransformer
from exitbench.methods.base import Parts, argmax_token, blocks_from
from exitbench.methods.gates import Scheduled
from exitbench.methods.heads import LMHead
from exitbench.methods.kv_policies import KV_POLICIES, Speculation
from exitbench.methods.registry import baseline_method
from exitbench.methods.thresholds import Constant

N_NEW, N_PROMPTS, FEW = 6, 20, 6
TIED = 1e-3
"""Largest difference of the two best logits at which rounding may decide."""


@dataclasses.dataclass(frozen=True)
class Twin:
    """One checkpoint in transformers and in the hosted engine."""

    reference: Any
    checkpoint: Checkpoint

    @property
    def model(self) -> HostedTransformer:
        assert isinstance(self.checkpoint.model, HostedTransformer)
        return self.checkpoint.model

    @property
    def is_seq2seq(self) -> bool:
        return self.checkpoint.kind == "seq2seq"


def load(reference: Any, folder: Path) -> Twin:
    """Save a model and load it into transformers and into the engine, without end-of-sequence tokens.

    The loaded model may differ from the saved one: some families zero the padding's embedding.
    """
    reference.save_pretrained(folder)
    loaded = load_checkpoint(folder, engine="hosted")
    attention = reference.config._attn_implementation
    again = type(reference).from_pretrained(folder, attn_implementation=attention).eval()
    return Twin(again, dataclasses.replace(loaded, eos_ids=frozenset()))


def prompts(twin: Twin, count: int = N_PROMPTS) -> list[list[int]]:
    """Return prompts of mixed length, or of equal length if rows cannot be padded."""
    draw = random.Random(5)
    longest = 13
    lengths = [draw.randint(2, longest) for _ in range(count)]
    if not twin.is_seq2seq and not twin.model.pads_left:
        lengths = [7] * count
    return [[draw.randrange(3, twin.model.vocab_size) for _ in range(n)] for n in lengths]


def scheduled(policy: str, n_rows: int, n_blocks: int) -> Parts:
    """Return parts that exit at random layers, fixed for each row and position."""
    draw = random.Random(1)
    layers = {row: [draw.randint(1, n_blocks) for _ in range(N_NEW)] for row in range(n_rows)}
    return Parts(Scheduled(layers), Constant(0.5), LMHead(), KV_POLICIES[policy], blocks_from(1, n_blocks))


def answers(
    twin: Twin, rows: list[list[int]], parts: Parts, first: int = 0, *, gated: bool = False
) -> list[Generation]:
    requests = [Request(prompt, seed) for seed, prompt in enumerate(rows, first)]
    batch = prefill(twin.model, requests, N_NEW, gates_first_token=gated and not twin.is_seq2seq)
    return decode(twin.checkpoint, batch, parts)


def tokens(made: list[Generation]) -> list[list[int]]:
    return [generation.token_ids for generation in made]


def generated(reference: Any, rows: list[list[int]]) -> list[list[int]]:
    """Return transformers' greedy answers, one row at a time, because some families count padding as positions."""
    return [
        reference.generate(torch.tensor([row]), max_new_tokens=N_NEW, do_sample=False)[0, -N_NEW:].tolist()
        for row in rows
    ]


def assert_same(twin: Twin, rows: list[list[int]], ours: list[list[int]], theirs: list[list[int]], what: str) -> None:
    """Assert that answers are equal up to the first position where the reference's two best logits are nearly tied."""
    for row, mine, other in zip(rows, ours, theirs, strict=True):
        if mine == other:
            continue
        at = next(i for i, (a, b) in enumerate(zip(mine, other, strict=True)) if a != b)
        best = _logits(twin, row, other[: at + 1]).topk(2).values
        right = "; so does the forward pass without a cache" if _is_greedy(twin, row, mine[: at + 1]) else ""
        said = f"{what}: {mine} instead of generate's {other}, which part at token {at + 1}: no tie{right}"
        assert best[0] - best[1] < TIED, said


def _is_greedy(twin: Twin, prompt: list[int], answer: list[int]) -> bool:
    return all(int(_logits(twin, prompt, answer[: n + 1]).argmax()) == token for n, token in enumerate(answer))


def _logits(twin: Twin, prompt: list[int], answer: list[int]) -> Tensor:
    """Return the reference's logits, without a cache, for the last token of an answer."""
    if twin.is_seq2seq:
        asked = {"input_ids": [prompt], "decoder_input_ids": [[twin.checkpoint.start_id, *answer[:-1]]]}
    else:
        asked = {"input_ids": [[*prompt, *answer[:-1]]]}
    logits: Tensor = twin.reference(**{name: torch.tensor(value) for name, value in asked.items()}).logits[0, -1]
    return logits


# -------------------------------------------------------------------------------------------------------- the checks


def full_depth_is_generate(twin: Twin) -> None:
    rows = prompts(twin)
    ours = tokens(answers(twin, rows, baseline_method()().parts(twin.model.n_blocks)))
    theirs = generated(twin.reference, rows)
    assert len({tuple(answer) for answer in theirs}) > 4, "answers must differ"
    assert_same(twin, rows, ours, theirs, "full depth")


def mixed_exits_are_rows_alone(twin: Twin) -> None:
    rows = prompts(twin, FEW)
    parts = scheduled("state-copy", len(rows), twin.model.n_blocks)
    together = answers(twin, rows, parts)
    apart = [answers(twin, [row], parts, index)[0] for index, row in enumerate(rows)]
    differ = sum(a.token_ids != b.token_ids for a, b in zip(together, apart, strict=True))
    assert [g.exit_layers for g in together] == [g.exit_layers for g in apart]
    assert differ <= 1, f"{differ} of {len(rows)} rows answer otherwise in a batch"  # one may tie
    full = answers(twin, rows, baseline_method()().parts(twin.model.n_blocks))
    assert tokens(full) != tokens(together), "early exits must make a difference here"


def state_copy_is_running_the_block(twin: Twin) -> None:
    """Check that the keys and values filled for a skipped block equal those of running the block on the exit state."""
    rows, model = prompts(twin, 6), twin.model
    cache, _ = model.start(rows, N_NEW)
    other, _ = model.start(rows, N_NEW)
    fed = torch.tensor([[5 + row] for row in range(len(rows))])
    with torch.inference_mode():
        (hidden, step), (_, other_step) = model.embed(fed, cache), model.embed(fed, other)
        state = model.block(1, hidden[:, 0], step)
        model.fill([(1, state, None)], step)
        for block in range(2, model.n_blocks + 1):
            model.block(block, state, other_step)
    for number, (filled, ran) in enumerate(zip(cache.layers, other.layers, strict=True), start=1):
        for ours, theirs in zip(filled.kv, ran.kv, strict=True):
            difference = float((ours - theirs).abs().max())
            assert difference <= 1e-5 * float(theirs.abs().max()), f"block {number} differs by {difference}"


def static_exit_is_a_model_cut_there(twin: Twin) -> None:
    rows, depth = prompts(twin, FEW), twin.model.n_blocks // 2
    layers = {row: [depth] * N_NEW for row in range(len(rows))}
    parts = Parts(
        Scheduled(layers), Constant(0.5), LMHead(), KV_POLICIES["state-copy"], blocks_from(1, twin.model.n_blocks)
    )
    ours = tokens(answers(twin, rows, parts, gated=True))
    cut = copy.deepcopy(twin.reference)
    blocks = cut.get_decoder().get_submodule(twin.model.stack.name)
    del blocks[depth:]
    theirs = generated(cut, rows)
    assert_same(dataclasses.replace(twin, reference=cut), rows, ours, theirs, f"exit at block {depth}")


def deferred_policies_are_exact(twin: Twin) -> None:
    """Check that policies that defer blocks give the answers of those that fill or run them at once."""
    rows, n_blocks = prompts(twin, FEW), twin.model.n_blocks
    made = {
        name: tokens(answers(twin, rows, scheduled(name, len(rows), n_blocks)))
        for name, policy in KV_POLICIES.items()
        if not policy.evicts  # which this engine refuses
    }
    pairs = (("sync-parallel", "exact"), ("recompute-backlog", "exact"), ("state-copy-lazy", "state-copy"))
    for one, other in pairs:
        differ = sum(a != b for a, b in zip(made[one], made[other], strict=True))
        assert differ <= 1, f"{one} answers {differ} of {len(rows)} rows otherwise than {other}"
    full = answers(twin, rows, baseline_method()().parts(n_blocks))
    first = [g.token_ids[0] for g in full]
    assert [answer[0] for answer in made["noisy"]] == first


def speculation_is_full_depth(twin: Twin) -> None:
    rows, n_blocks = prompts(twin, FEW), twin.model.n_blocks
    draw = random.Random(2)
    layers = {row: [draw.choice([1, 1, n_blocks]) for _ in range(4 * N_NEW)] for row in range(len(rows))}
    parts = Parts(Scheduled(layers), Constant(0.5), LMHead(), Speculation(), frozenset({1}))
    if twin.model.why_not(parts, len(rows)):
        rows = rows[:1]
    made = answers(twin, rows, parts)
    full = tokens(answers(twin, rows, baseline_method()().parts(n_blocks)))
    assert sum(sum(g.rejected) for g in made) > 0, "drafts must be rejected here"
    assert_same(twin, rows, tokens(made), full, "self-speculation")


def probe_reads_the_answers(twin: Twin) -> None:
    """Check that a probe, one pass over prompts and answers, predicts the tokens of the answers."""
    rows = prompts(twin, 6)
    made = tokens(answers(twin, rows, baseline_method()().parts(twin.model.n_blocks)))
    with torch.inference_mode():
        states_LND = states_of(twin.checkpoint, rows, made)
        chosen = argmax_token(twin.model.logits(states_LND[-1])).tolist()
    flat = [token for answer in made for token in answer]
    assert sum(a != b for a, b in zip(chosen, flat, strict=True)) <= 1


CHECKS: tuple[Callable[[Twin], None], ...] = (
    full_depth_is_generate,
    mixed_exits_are_rows_alone,
    state_copy_is_running_the_block,
    static_exit_is_a_model_cut_there,
    deferred_policies_are_exact,
    speculation_is_full_depth,
    probe_reads_the_answers,
)
