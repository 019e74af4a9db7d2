"""Ideal speed-ups over full depth: what answers would gain if decoding took time only for the counted work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from models import Pair

from exitbench.harness.engine.decoding.generation import Generation
from exitbench.harness.engine.model.cost import TokenPlace, answer_cost, answer_parts, block_cost
from exitbench.harness.engine.model.token_record import full_depth_records
from exitbench.methods.base import Cost, Parts


@dataclass(frozen=True)
class IdealSpeedup:
    """Ideal speed-up of a method: full-depth cost divided by the method's cost.

    Attributes:
        by_bytes: Ratio of the weights, keys and values read from memory.
        by_flops: Ratio of the FLOPs.
    """

    by_bytes: float
    by_flops: float


def at_full_depth(pair: Pair, answers: Sequence[Generation]) -> list[Generation]:
    """Return the same answers, with records as if decoded at full depth: every block run, one read-out per token."""
    model = pair.checkpoint.model
    return [Generation(answer.token_ids, full_depth_records(answer.token_ids, model)) for answer in answers]


def ideal_over_full(pair: Pair, parts: Parts, answers: Sequence[Generation], source_tokens: int) -> IdealSpeedup:
    """Return the ideal speed-up of a method's answers over full depth's of the same length.

    Every row counts as if it were decoded alone.
    """
    full = decoding_cost(pair, pair.full(), at_full_depth(pair, answers), source_tokens)
    own = decoding_cost(pair, parts, answers, source_tokens)
    return IdealSpeedup(full.read_numel / own.read_numel, full.flops / own.flops)


def decoding_cost(pair: Pair, parts: Parts, answers: Sequence[Generation], source_tokens: int) -> Cost:
    """Return the counted work of decoding answers; a decoder-only model's first token counts only for its read-out."""
    model, first = pair.checkpoint.model, 0 if pair.checkpoint.kind == "seq2seq" else 1
    each = (
        answer_cost(model, parts, answer.records, token_places(pair, answer, source_tokens)[first:])
        for answer in answers
    )
    return sum(each, Cost())


def token_places(pair: Pair, answer: Generation, source_tokens: int) -> list[TokenPlace]:
    """Return how many positions each token attends to; a decoder-only model's prompt belongs to the context."""
    positions = range(1, len(answer.token_ids) + 1)
    if pair.checkpoint.kind == "seq2seq":
        return [TokenPlace(context=position, source=source_tokens) for position in positions]
    return [TokenPlace(context=source_tokens + position - 1, source=0) for position in positions]


def share_of_a_block(pair: Pair, answer: Generation, source_tokens: int) -> float:
    """Return the bytes that one block reads over those that a whole token reads, at full depth."""
    (full,) = at_full_depth(pair, [answer])
    model, positions = pair.checkpoint.model, token_places(pair, answer, source_tokens)
    work = answer_parts(model, pair.full(), full.records, positions)
    return work["blocks"].read_numel / pair.n_blocks / sum(cost.read_numel for cost in work.values())


def ideal_of_batch(pair: Pair, answers: Sequence[Generation], source_tokens: int) -> float:
    """Return the ideal speed-up of a batch: what full depth reads over what these answers read (`least_read_numel`)."""
    full = least_read_numel(pair, at_full_depth(pair, answers), source_tokens)
    return full / least_read_numel(pair, answers, source_tokens)


def least_read_numel(pair: Pair, answers: Sequence[Generation], source_tokens: int) -> float:
    """Return the fewest weights, keys and values that decoding a batch of answers must read.

    At each step, a block's weights are read once if any row runs it, and the LM head's once for all rows. Each row that
    runs a block reads its own keys and values.
    """
    model = pair.checkpoint.model
    weights = block_cost(model.arch, TokenPlace(context=0, source=0)).read_numel
    numel = 0.0
    for position, exits in enumerate(zip(*(answer.exit_layers for answer in answers), strict=True), 1):
        keys = block_cost(model.arch, TokenPlace(context=position, source=source_tokens)).read_numel - weights
        numel += max(exits) * weights + sum(exits) * keys + model.vocab_size * model.d_model
    return numel
