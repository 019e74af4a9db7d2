"""The probe: one full-depth teacher-forced pass that records what every block says about every token.

The model reads its own greedy output, so one pass over all positions gives the states that step-by-step decoding at
full depth would have seen. Columns are the union of what the papers' figures need.

Shape suffixes: N tokens (all rows and positions), L blocks, D model width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from exitbench.harness.engine.checkpoints.loading import Checkpoint
from exitbench.harness.engine.decoding.signals import signals
from exitbench.harness.engine.model.cache import DecodingCache
from exitbench.harness.engine.model.engine import Engine
from exitbench.harness.engine.model.positions import padded
from exitbench.results.files.arrow import lists
from exitbench.results.spool.schema import TABLES
from exitbench.results.statistics.stability import stability

LOGITS_BUDGET_BYTES = 256 * 2**20
"""Most memory for the logits of all blocks at once; tokens are read out in chunks that fit."""


@torch.inference_mode()
def probe(checkpoint: Checkpoint, prompts: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Record the signals of every generated token.

    Args:
        checkpoint: The model.
        prompts: Token ids of each row's prompt.
        outputs: What the model generated for each, at full depth.

    Returns:
        Arrays over the N tokens in row order: ``full_token_id``, ``first_match``, ``stable_from`` and what
        `results.statistics.stability` adds [N]; per block [N, L] the columns of the spool's probe table.
    """
    return signals_of(checkpoint.model, states_of(checkpoint, prompts, outputs))


def signals_of(model: Engine, states_LND: Tensor, given_N: Tensor | None = None) -> dict[str, Any]:
    """What `probe` returns, from states after the embedding and every block; ``logprob`` too of given tokens."""
    chunk = max(1, LOGITS_BUDGET_BYTES // (len(states_LND) * model.vocab_size * 4))
    pieces = torch.split(states_LND, chunk, dim=1)
    given = [None] * len(pieces) if given_N is None else torch.split(given_N, chunk)
    parts = [signals(model, piece_LND, given_N) for piece_LND, given_N in zip(pieces, given, strict=True)]
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
    """Probe every generated token: the spool's table, a row a token in the order of the documents.

    Args:
        checkpoint: The model.
        keys: Of the documents.
        prompts: Token ids of each document's prompt.
        outputs: What the model generated for each, at full depth.
        gold_ids: Each document's reference; NULL where an output is longer.
        kinds: What kind of token each of them is, likewise.
    """
    no_entries = [()] * len(keys)
    columns: dict[str, Any] = {
        "doc_key": [key for key, output in zip(keys, outputs, strict=True) for _ in output],
        "position": [position for output in outputs for position in range(1, len(output) + 1)],
        "token_id": [token for output in outputs for token in output],
        "gold_token_id": _beside(outputs, gold_ids or no_entries),
        "token_kind": _beside(outputs, kinds or no_entries),
    }
    return as_table(columns | probe(checkpoint, prompts, outputs))


def as_table(columns: Mapping[str, Any]) -> pa.Table:
    """The spool's table of columns by name, [N] or [N, L]."""
    schema = TABLES["probe"]
    return pa.table({name: _array(values, schema.field(name).type) for name, values in columns.items()})


def _array(values: Any, kind: pa.DataType) -> pa.Array:
    is_matrix = getattr(values, "ndim", 1) == 2
    return lists(values, kind) if is_matrix else pa.array(values, type=kind)


def _beside(outputs: Sequence[Sequence[int]], entries: Sequence[Sequence[Any]]) -> list[Any]:
    """Entries for the positions of the outputs; None beyond their end."""
    return [
        given[place] if place < len(given) else None
        for output, given in zip(outputs, entries, strict=True)
        for place in range(len(output))
    ]


def states_of(checkpoint: Checkpoint, prompts: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]]) -> Tensor:
    """States after the embedding and after every block, at the positions that predict outputs: [L+1, N, D]."""
    fed = teacher_forced(checkpoint, prompts, outputs)
    return torch.stack([hidden[fed.predicts_BT] for hidden in _forward(checkpoint.model, fed)])


@dataclass(frozen=True)
class Fed:
    """What the decoder is given to see all of its own output at once.

    Attributes:
        tokens_BT: Tokens fed.
        cache: Of the batch, with what the encoder says; no position is filled.
        predicts_BT: Where an output token is predicted; N of them.
    """

    tokens_BT: Tensor
    cache: DecodingCache
    predicts_BT: Tensor


def teacher_forced(checkpoint: Checkpoint, prompts: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]]) -> Fed:
    """Prepare one pass over prompts and the outputs that follow them."""
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
    return Fed(tokens, cache, predicts)


def _forward(model: Engine, fed: Fed) -> Iterator[Tensor]:
    hidden, context = model.embed(fed.tokens_BT, fed.cache)
    yield hidden
    for block in range(1, model.n_blocks + 1):
        hidden = model.block(block, hidden, context)
        yield hidden
