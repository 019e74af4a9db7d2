"""Probes of continuations: what every block says of every given token, for replays of choices.

One full-depth, teacher-forced pass over each continuation; a context is prefilled once. Rows are those of a probe
(`engine.decoding.probe`), with the choice and the given token's log-probability at every block beside.

Shape suffixes: N tokens (all continuations and positions), L blocks, B rows (branches), T positions, D model width.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from exitbench.harness.engine.checkpoints.loading import Checkpoint
from exitbench.harness.engine.decoding.branches import Branch, Context, batches, branches_of
from exitbench.harness.engine.decoding.probe import as_table, signals_of
from exitbench.harness.engine.model.cache import DecodingCache
from exitbench.harness.engine.model.engine import Engine
from exitbench.harness.engine.model.positions import padded
from exitbench.methods.base import Parts
from exitbench.methods.offline import score_given


@torch.inference_mode()
def choice_probe_table(
    checkpoint: Checkpoint,
    keys: Sequence[str],
    choices: Sequence[Sequence[int]],
    contexts: Sequence[Context],
    rows: int = 1,
) -> pa.Table:
    """Probe every token of every continuation: the spool's table, in the order of contexts and continuations.

    Args:
        checkpoint: The model.
        keys: Of each context's document; one document may have several contexts.
        choices: Numbers of each context's continuations among the choices of the document.
        contexts: What is scored after what.
        rows: Continuations run together.
    """
    model = checkpoint.model
    given_N = _given(contexts).to(model.device)
    columns = signals_of(model, states_after(checkpoint, contexts, rows), given_N)
    tokens = [
        (key, choice, position, token_id)
        for key, numbers, context in zip(keys, choices, contexts, strict=True)
        for choice, token_ids in zip(numbers, context.continuations, strict=True)
        for position, token_id in enumerate(token_ids, start=1)
    ]
    names = ("doc_key", "choice", "position", "token_id")
    return as_table(dict(zip(names, map(list, zip(*tokens, strict=True)), strict=True)) | columns)


@torch.inference_mode()
def choice_scores(
    checkpoint: Checkpoint, parts: Parts, contexts: Sequence[Context], rows: int = 1
) -> dict[str, np.ndarray]:
    """Ask a method's own gate and head of every token of every continuation, at every block as if it had come there.

    Returns:
        ``score``, ``logprob`` of the given token (both NaN where the gate is not asked) and ``is_greedy``, [N, L] each,
        in the order of contexts and continuations.
    """
    states_LND, given_N = states_after(checkpoint, contexts, rows), _given(contexts).to(checkpoint.model.device)
    continuations = [(context.seed, ids) for context in contexts for ids in context.continuations]
    seeds = [seed for seed, token_ids in continuations for _ in token_ids]
    position_N = torch.tensor([place for _, ids in continuations for place in range(1, len(ids) + 1)])
    shape = (checkpoint.model.n_blocks, len(seeds))
    found = {"score": torch.empty(shape), "logprob": torch.empty(shape), "is_greedy": torch.empty(shape).bool()}
    for position in sorted(set(position_N.tolist())):
        at_N = (position_N == position).nonzero()[:, 0]
        scored = score_given(
            parts,
            checkpoint.model,
            states_LND[:, at_N],
            given_N[at_N],
            position=position,
            seeds_N=[seeds[index] for index in at_N.tolist()],
        )
        for name, values_LN in zip(found, scored, strict=True):
            found[name][:, at_N] = values_LN.cpu()
    return {name: values_LN.T.numpy() for name, values_LN in found.items()}


def states_after(checkpoint: Checkpoint, contexts: Sequence[Context], rows: int = 1) -> Tensor:
    """States after the embedding and every block, at the positions that predict the continuations' tokens: [L+1, N, D].

    Tokens stand in the order of contexts, continuations and positions.
    """
    model = checkpoint.model
    found = [[torch.empty(0)] * len(context.continuations) for context in contexts]
    for places in batches(model, contexts, rows):
        batch = [contexts[place] for place in places]
        prompts, longest = [context.context_ids for context in batch], max(context.longest for context in batch)
        cache, _ = model.start(prompts, longest, holds_last=not model.encoder_blocks)
        leads = [checkpoint.start_id or 0 if model.encoder_blocks else prompt[-1] for prompt in prompts]
        branches = branches_of(batch)
        for start in range(0, len(branches), rows):
            chosen = branches[start : start + rows]
            for branch, states_LTD in zip(chosen, _states(model, cache, chosen, leads), strict=True):
                for choice in branch.choices:
                    found[places[branch.context]][choice] = states_LTD
    return torch.cat(list(chain.from_iterable(found)), dim=1)


def _states(model: Engine, cache: DecodingCache, branches: Sequence[Branch], leads: Sequence[int]) -> list[Tensor]:
    """States of each branch, [L+1, T, D], from where its context ends."""
    rows = torch.tensor([branch.context for branch in branches], device=model.device)
    fed = [[leads[branch.context], *branch.fed] for branch in branches]
    tokens_BT, _ = padded(fed, model.device, side="right")
    hidden_BTD, context = model.embed(tokens_BT, cache.copied(rows))
    states = [hidden_BTD]
    for block in range(1, model.n_blocks + 1):
        states.append(model.block(block, states[-1], context))
    return [torch.stack([state[row, : len(tokens)] for state in states]) for row, tokens in enumerate(fed)]


def _given(contexts: Sequence[Context]) -> Tensor:
    return torch.tensor([token for context in contexts for ids in context.continuations for token in ids])
