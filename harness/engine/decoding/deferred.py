"""Tokens that left early and whose skipped blocks wait for a later token of the same row to run them.

`run_block` is `Transformer.block` for one new token a row, taking along the tokens that wait at this block
(`KVPolicy.deferred`): their exit states are projected to keys and values, or they run the block in the same pass.

Shape suffixes: A rows running, T positions of a row, N waiting tokens of all rows, D model width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from exitbench.harness.engine.decoding.skipping import write_projected

if TYPE_CHECKING:
    from exitbench.harness.engine.model.cache import Cache, DeferredToken
    from exitbench.harness.engine.model.model import Transformer
    from exitbench.harness.engine.model.step_context import StepContext
    from exitbench.methods.base import KVPolicy


def begin_step(cache: Cache, policy: KVPolicy, n_blocks: int) -> None:
    """Forget tokens that have all blocks by now; send the others back to block 1 where the policy says so."""
    if policy.deferred is None:
        return
    for row, waiting in enumerate(cache.waiting):
        if waiting:
            cache.waiting[row] = [token for token in waiting if token.done < n_blocks]
        if policy.deferred == "rerun":
            for token in cache.waiting[row]:
                token.done, token.state_D = 0, token.embedding_D


def run_block(
    model: Transformer, block: int, hidden_AD: Tensor, context: StepContext, rows_A: Tensor | None, policy: KVPolicy
) -> Tensor:
    """Run a block for the new token of each row, and complete there what waits; returns states [A, D]."""
    cache = context.cache
    if rows_A is None and context.static is not None:
        return context.static.run(cache, block, hidden_AD)
    if policy.deferred is None:
        return model.block(block, hidden_AD, context, rows_A)
    rows = list(range(cache.n_rows)) if rows_A is None else rows_A.tolist()
    waiting = [[token for token in cache.waiting[row] if token.done == block - 1] for row in rows]
    if not any(waiting):
        return model.block(block, hidden_AD, context, rows_A)
    if policy.deferred == "project":
        _project(model, block, cache, rows, waiting)
        return model.block(block, hidden_AD, context, rows_A)
    return _together(model, block, hidden_AD, context, rows, rows_A, waiting)


def _project(model: Transformer, block: int, cache: Cache, rows: list[int], waiting: list[list[DeferredToken]]) -> None:
    pairs = [(row, token) for row, tokens in zip(rows, waiting, strict=True) for token in tokens]
    states_ND = torch.stack([token.state_D for _, token in pairs])
    rows_N = torch.tensor([row for row, _ in pairs], device=model.device)
    places_N = torch.tensor([token.place for _, token in pairs], device=model.device)
    write_projected(model, cache, block, states_ND, rows_N, places_N)
    for _, token in pairs:
        token.done = block


def _together(
    model: Transformer,
    block: int,
    hidden_AD: Tensor,
    context: StepContext,
    rows: list[int],
    rows_A: Tensor | None,
    waiting: list[list[DeferredToken]],
) -> Tensor:
    """The new token stands last in every row; rows with fewer waiting tokens repeat it in front, to the same effect."""
    cache, longest = context.cache, max(len(tokens) for tokens in waiting)
    hidden_ATD = hidden_AD[:, None].repeat(1, longest + 1, 1)
    own = [[token.place for token in tokens] for tokens in waiting]
    where = [
        [row, *places, *[cache.length] * (longest + 1 - len(places))] for row, places in zip(rows, own, strict=True)
    ]
    if context.deferred_places is None or context.deferred_places[0] != where:  # mostly those of the block before
        places_AT = torch.tensor(where, device=model.device)[:, 1:]
        context.deferred_places = where, model.places(cache, rows_A, places_AT)
    for at, tokens in enumerate(waiting):
        if tokens:
            hidden_ATD[at, : len(tokens)] = torch.stack([token.state_D for token in tokens])
    hidden_ATD = model.block(block, hidden_ATD, context, rows_A, context.deferred_places[1])
    for at, tokens in enumerate(waiting):
        for index, token in enumerate(tokens):
            token.done, token.state_D = block, hidden_ATD[at, index]
    return hidden_ATD[:, -1]
