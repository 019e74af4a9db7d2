"""Verify drafts: self-speculative decoding and rollback of tokens emitted early.

A draft's skipped blocks are run together with a later token of its row (`block_runner`). The full model's logits at
its position then tell whether the emitted token may stay (`KVPolicy.rejects`).
From the first rejected draft on, a row is cut, and the full model's choice takes that token's place. A row never ends
on a deferred token: its remaining blocks are run first, unless the policy leaves the tail of an answer unverified.

Shape suffixes: A rows that end, N drafts of all rows, D model width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from exitbench.methods.base import argmax_token

if TYPE_CHECKING:
    from exitbench.harness.engine.decoding.block_runner import BlockRunner
    from exitbench.harness.engine.decoding.generation import Generation
    from exitbench.harness.engine.decoding.trace import Observer
    from exitbench.harness.engine.model.cache import DeferredToken
    from exitbench.harness.engine.model.engine import Engine


def verify_drafts(
    runner: BlockRunner, generations: Sequence[Generation], ends: Sequence[bool], observer: Observer
) -> list[int]:
    """Compare drafts (tokens emitted early) with the full model's choices; cut answers at the first rejected one.

    A row is verified if its newest draft has run all blocks. A row whose answer would end is verified too, if the KV
    policy verifies the tail of answers.

    Args:
        runner: Runner of the step just completed, with a policy that verifies; cache positions after a rejected draft
            are dropped.
        generations: Generation of every row of the cache; cut in place.
        ends: Whether each row's answer would end with its newest token.
        observer: Receives the drafts that stay and those that are replaced.

    Returns:
        The rows with a rejected draft; their answers now end with the full model's token in its place.
    """
    model, cache, policy = runner.model, runner.cache, runner.parts.kv_policy
    waiting = cache.waiting
    if policy.verifies_tail and any(ends):
        runner.complete([row for row, end in enumerate(ends) if end and waiting[row]])
    # The newest deferred token of a row has run the fewest blocks.
    rows = [row for row, tokens in enumerate(waiting) if tokens and tokens[-1].n_blocks_run == model.n_blocks]
    if not rows:
        return []
    logits_NV = _read_out(model, [token for row in rows for token in waiting[row]])
    observer.verified(logits_NV)
    drafted = [len(waiting[row]) for row in rows]
    # The token emitted from the newest cache position is its row's last.
    firsts = [len(generations[row].token_ids) + waiting[row][0].place - cache.length for row in rows]
    drafts = [
        generations[row].token_ids[first : first + n] for row, first, n in zip(rows, firsts, drafted, strict=True)
    ]
    token_N = torch.tensor([token for row_drafts in drafts for token in row_drafts], device=model.device)
    rejects = torch.split(policy.rejects(logits_NV, token_N).cpu(), drafted)
    logits = torch.split(logits_NV, drafted)
    wasted_B, cut = [0] * cache.n_rows, []
    for row, first, rejects_N, row_logits_NV in zip(rows, firsts, rejects, logits, strict=True):
        waiting[row] = []
        wasted = _settle(generations[row], first, rejects_N.tolist(), row_logits_NV, observer)
        if wasted is not None:
            wasted_B[row] = wasted
            cut.append(row)
    if cut:
        cache.drop_newest(wasted_B)
    return cut


def _read_out(model: Engine, drafts: Sequence[DeferredToken]) -> Tensor:
    """Return the full model's logits [N, V] of drafts that have run all blocks; logits read in the step are reused."""
    unread = [draft for draft in drafts if draft.logits_V is None]
    if unread:
        logits_NV = model.logits(torch.stack([draft.state_D for draft in unread]))
        if len(unread) == len(drafts):
            return logits_NV
        for draft, logits_V in zip(unread, logits_NV, strict=True):
            draft.logits_V = logits_V
    return torch.stack([draft.logits_V for draft in drafts if draft.logits_V is not None])


def _settle(
    generation: Generation, first: int, rejects: list[bool], logits_NV: Tensor, observer: Observer
) -> int | None:
    """Keep an answer's drafts up to the first rejected one, which the full model's token replaces; drop all after it.

    Args:
        generation: The answer; changed in place.
        first: Index of the first draft in the answer.
        rejects: Whether each draft is rejected.
        logits_NV: The full model's logits for each draft.
        observer: Receives the drafts that stay and those that are replaced.

    Returns:
        Number of newest cache positions to drop, which were fed discarded tokens; None if no draft was rejected.
    """
    n_kept = rejects.index(True) if True in rejects else len(rejects)
    observer.accepted(generation, first, n_kept)
    rejected = len(rejects) - n_kept
    if rejected == 0:
        return None
    first_rejected = first + n_kept
    wasted = len(generation.token_ids) - 1 - first_rejected
    discarded = generation.records[first_rejected:]
    del generation.token_ids[first_rejected:], generation.records[first_rejected:]
    generation.token_ids.append(int(argmax_token(logits_NV[n_kept])))
    observer.replaced(generation, discarded, rejected, wasted)
    return wasted
