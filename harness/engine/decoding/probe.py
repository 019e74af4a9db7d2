"""The probe: one full-depth teacher-forced pass that records every block's prediction of every token.

The model reads its own greedy output, so one pass over all positions gives the states that step-by-step decoding at
full depth would have produced. Reports draw the figures of papers from the columns.

Given continuations, such as the choices of a question, are probed in the same way, with one prefill per context. Their
table rows also have the choice's number, and the given token's log-probability at every block.

Shape suffixes: N tokens (all rows and positions), L blocks, B rows, T positions, D model width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from exitbench.harness.engine.checkpoints.loading import Checkpoint
from exitbench.harness.engine.decoding.branches import Branch, Context, batches, branches_of
from exitbench.harness.engine.decoding.signals import signals
from exitbench.harness.engine.model.cache import DecodingCache
from exitbench.harness.engine.model.engine import Engine
from exitbench.harness.engine.model.positions import padded
from exitbench.methods.base import Parts
from exitbench.methods.offline import score_given
from exitbench.results.files.arrow import lists
from exitbench.results.spool.schema import TABLES
from exitbench.results.statistics.stability import stability

LOGITS_BUDGET_BYTES = 256 * 2**20
"""Memory limit for the logits of all blocks; tokens are read out in chunks that fit."""


@torch.inference_mode()
def probe(checkpoint: Checkpoint, prompts: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Return the confidence signals of every block for every generated token, in a teacher-forced full-depth pass.

    Args:
        checkpoint: The model.
        prompts: Token ids of each row's prompt.
        outputs: Token ids that the model generated at full depth for each prompt.

    Returns:
        Arrays over the N tokens in the order of the outputs: ``full_token_id``, ``first_match``, ``stable_from`` and
        the columns of `results.statistics.stability` [N]; and table `probe`'s columns with a value per block [N, L].
    """
    return signals_of(checkpoint.model, states_of(checkpoint, prompts, outputs))


def signals_of(model: Engine, states_LND: Tensor, target_N: Tensor | None = None) -> dict[str, Any]:
    """Return a probe's signals (entropy, agreement, ...) by column name, from the states after embedding and blocks.

    ``target_N`` are given tokens, whose log-probabilities are added as ``logprob``.
    """
    chunk = max(1, LOGITS_BUDGET_BYTES // (len(states_LND) * model.vocab_size * 4))
    pieces = torch.split(states_LND, chunk, dim=1)
    pieces_N = [None] * len(pieces) if target_N is None else torch.split(target_N, chunk)
    parts = [signals(model, piece_LND, target_N) for piece_LND, target_N in zip(pieces, pieces_N, strict=True)]
    arrays = {name: torch.cat([part[name] for part in parts]).cpu().numpy() for name in parts[0]}
    return {**arrays, **stability(arrays["p_final"], arrays["cosine_last"])}


def probe_table(
    checkpoint: Checkpoint,
    keys: Sequence[str],
    prompts: Sequence[Sequence[int]],
    outputs: Sequence[Sequence[int]],
    gold_ids: Sequence[Sequence[int]] | None = None,
    kinds: Sequence[Sequence[str]] | None = None,
) -> pa.Table:
    """Record each block's prediction of each generated token; return table `probe`, a row per token in document order.

    Args:
        checkpoint: The model.
        keys: Keys of the documents.
        prompts: Token ids of each document's prompt.
        outputs: Token ids that the model generated at full depth for each document.
        gold_ids: Token ids of each document's reference; NULL for output tokens after the reference has ended.
        kinds: Kind of each reference token (column ``token_kind``); NULL as for ``gold_ids``.
    """
    no_entries = [()] * len(keys)
    columns: dict[str, Any] = {
        "doc_key": [key for key, output in zip(keys, outputs, strict=True) for _ in output],
        "position": [position for output in outputs for position in range(1, len(output) + 1)],
        "token_id": [token for output in outputs for token in output],
        "gold_token_id": _at_positions(outputs, gold_ids or no_entries),
        "token_kind": _at_positions(outputs, kinds or no_entries),
    }
    return as_table(columns | probe(checkpoint, prompts, outputs))


def as_table(columns: Mapping[str, Any]) -> pa.Table:
    """Return the spool's table `probe` of N tokens from its columns by name, [N] or (by block) [N, L]."""
    schema = TABLES["probe"]
    return pa.table({name: _array(values, schema.field(name).type) for name, values in columns.items()})


def _array(values: Any, kind: pa.DataType) -> pa.Array:
    is_matrix = getattr(values, "ndim", 1) == 2
    return lists(values, kind) if is_matrix else pa.array(values, type=kind)


def _at_positions(outputs: Sequence[Sequence[int]], entries: Sequence[Sequence[Any]]) -> list[Any]:
    """Return, for each output token, its document's entry at the same position; None if there are fewer entries."""
    return [
        doc_entries[place] if place < len(doc_entries) else None
        for output, doc_entries in zip(outputs, entries, strict=True)
        for place in range(len(output))
    ]


def states_of(checkpoint: Checkpoint, prompts: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]]) -> Tensor:
    """Return states after the embedding and every block, at the N positions that predict output tokens: [L+1, N, D]."""
    fed = teacher_forced(checkpoint, prompts, outputs)
    return torch.stack([hidden[fed.predicts_BT] for hidden in _forward(checkpoint.model, fed.tokens_BT, fed.cache)])


@dataclass(frozen=True)
class TeacherForcedInput:
    """Teacher-forced decoder input: the whole output at once.

    Attributes:
        tokens_BT: Token ids to feed, padded.
        cache: Cache of the batch, in which no decoder position is filled; it holds the encoder's states, if any.
        predicts_BT: True at the N positions that predict an output token.
    """

    tokens_BT: Tensor
    cache: DecodingCache
    predicts_BT: Tensor


def teacher_forced(
    checkpoint: Checkpoint, prompts: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]]
) -> TeacherForcedInput:
    """Return the decoder input for one pass over outputs; in a decoder-only model, prompts precede them."""
    model = checkpoint.model
    if checkpoint.start_id is not None:
        fed = [[checkpoint.start_id, *output[:-1]] for output in outputs]
        tokens, mask = padded(fed, model.device, side="right")
        cache, _ = model.start(prompts, tokens.shape[1])
        predicts = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask
    else:
        fed = [[*prompt, *output[:-1]] for prompt, output in zip(prompts, outputs, strict=True)]
        tokens, mask = padded(fed, model.device, side="left")
        cache = model.new_cache(len(fed), tokens.shape[1], None if mask is None else (~mask).sum(1))
        lengths_B = torch.tensor([len(output) for output in outputs], device=model.device)
        places = torch.arange(tokens.shape[1], device=model.device)
        predicts = places[None, :] >= tokens.shape[1] - lengths_B[:, None]
    return TeacherForcedInput(tokens, cache, predicts)


def _forward(model: Engine, tokens_BT: Tensor, cache: DecodingCache) -> Iterator[Tensor]:
    hidden, context = model.embed(tokens_BT, cache)
    yield hidden
    for block in range(1, model.n_blocks + 1):
        hidden = model.block(block, hidden, context)
        yield hidden


@torch.inference_mode()
def choice_probe_table(
    checkpoint: Checkpoint,
    keys: Sequence[str],
    choices: Sequence[Sequence[int]],
    contexts: Sequence[Context],
    rows: int = 1,
) -> pa.Table:
    """Record each block's prediction of every continuation token; return the table `probe`, one table row per token.

    Args:
        checkpoint: The model.
        keys: Key of each context's document; one document may have several contexts.
        choices: Numbers of each context's continuations among the choices of the document.
        contexts: Contexts and their continuations.
        rows: Maximum number of rows run together; continuations that differ only in their last token share a row.
    """
    model = checkpoint.model
    target_N = _continuation_tokens(contexts).to(model.device)
    columns = signals_of(model, states_after(checkpoint, contexts, rows), target_N)
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
    """Return gate score and log-probability of every continuation token at every block; no token exits.

    Returns:
        ``score``, ``logprob`` of the given token (both NaN at blocks without gate) and ``is_greedy``, [N, L] each, in
        the order of contexts and continuations.
    """
    states_LND, target_N = (
        states_after(checkpoint, contexts, rows),
        _continuation_tokens(contexts).to(checkpoint.model.device),
    )
    continuations = [(context.seed, ids) for context in contexts for ids in context.continuations]
    seeds = [seed for seed, token_ids in continuations for _ in token_ids]
    position_N = torch.tensor([place for _, ids in continuations for place in range(1, len(ids) + 1)])
    shape = (checkpoint.model.n_blocks, len(seeds))
    arrays = {"score": torch.empty(shape), "logprob": torch.empty(shape), "is_greedy": torch.empty(shape).bool()}
    for position in sorted(set(position_N.tolist())):
        at_N = (position_N == position).nonzero()[:, 0]
        scored = score_given(
            parts,
            checkpoint.model,
            states_LND[:, at_N],
            target_N[at_N],
            position=position,
            seeds_N=[seeds[index] for index in at_N.tolist()],
        )
        for name, values_LN in zip(arrays, scored, strict=True):
            arrays[name][:, at_N] = values_LN.cpu()
    return {name: values_LN.T.numpy() for name, values_LN in arrays.items()}


def states_after(checkpoint: Checkpoint, contexts: Sequence[Context], rows: int = 1) -> Tensor:
    """Return states after the embedding and every block, at the N positions that predict continuations: [L+1, N, D].

    Tokens are in the order of contexts, continuations and positions.
    """
    model = checkpoint.model
    states = [[torch.empty(0)] * len(context.continuations) for context in contexts]
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
                    states[places[branch.context]][choice] = states_LTD
    return torch.cat(list(chain.from_iterable(states)), dim=1)


def _states(model: Engine, cache: DecodingCache, branches: Sequence[Branch], leads: Sequence[int]) -> list[Tensor]:
    """Return the states of each branch, [L+1, T, D], from the last token of its context (``leads``) on."""
    rows = torch.tensor([branch.context for branch in branches], device=model.device)
    fed = [[leads[branch.context], *branch.fed] for branch in branches]
    tokens_BT, _ = padded(fed, model.device, side="right")
    states = list(_forward(model, tokens_BT, cache.copied(rows)))
    return [torch.stack([state[row, : len(tokens)] for state in states]) for row, tokens in enumerate(fed)]


def _continuation_tokens(contexts: Sequence[Context]) -> Tensor:
    return torch.tensor([token for context in contexts for ids in context.continuations for token in ids])
