"""Ideal decoding times, if only counted work took time: of given answers, and of the same at full depth."""

from __future__ import annotations

from collections.abc import Sequence

from models import Pair

from exitbench.harness.engine.decoding.generation import Generation
from exitbench.harness.engine.model.cost import (
    IdealSpeedup,
    TokenPlace,
    answer_cost,
    answer_parts,
    block_cost,
    ideal_speedup,
)
from exitbench.harness.engine.model.token_record import full_depth_records
from exitbench.methods.base import Cost, Parts


def at_full_depth(pair: Pair, answers: Sequence[Generation]) -> list[Generation]:
    """Return the answers as if decoded at full depth: every block run, one read-out per token."""
    model = pair.checkpoint.model
    return [Generation(answer.token_ids, full_depth_records(answer.token_ids, model)) for answer in answers]


def ideal_over_full(pair: Pair, parts: Parts, answers: Sequence[Generation], source_tokens: int) -> IdealSpeedup:
    """Return the ideal speed-up of a method's answers over full depth's of the same length, each row at batch 1."""
    full = total(pair, pair.full(), at_full_depth(pair, answers), source_tokens)
    return ideal_speedup(full, total(pair, parts, answers, source_tokens))


def total(pair: Pair, parts: Parts, answers: Sequence[Generation], source_tokens: int) -> Cost:
    """Return the work of decoding answers; a decoder-only model's first token comes from the prefill."""
    model, first = pair.checkpoint.model, 0 if pair.checkpoint.kind == "seq2seq" else 1
    each = (
        answer_cost(model, parts, answer.records, places(pair, answer, source_tokens)[first:]) for answer in answers
    )
    return sum(each, Cost())


def places(pair: Pair, answer: Generation, source_tokens: int) -> list[TokenPlace]:
    """Return the positions of an answer's tokens; a decoder-only model's source is its prompt."""
    positions = range(1, len(answer.token_ids) + 1)
    if pair.checkpoint.kind == "seq2seq":
        return [TokenPlace(context=position, source=source_tokens) for position in positions]
    return [TokenPlace(context=source_tokens + position - 1, source=0) for position in positions]


def share_of_a_block(pair: Pair, answer: Generation, source_tokens: int) -> float:
    """Return the bytes of one block over those of a whole token, at full depth."""
    (full,) = at_full_depth(pair, [answer])
    model, positions = pair.checkpoint.model, places(pair, answer, source_tokens)
    work = answer_parts(model, pair.full(), full.records, positions)
    return work["blocks"].read_numel / pair.n_blocks / sum(cost.read_numel for cost in work.values())


def ideal_of_batch(pair: Pair, answers: Sequence[Generation], source_tokens: int) -> float:
    """Return full depth's bytes over those of a batch of answers, see `least_read_numel`."""
    full = least_read_numel(pair, at_full_depth(pair, answers), source_tokens)
    return full / least_read_numel(pair, answers, source_tokens)


def least_read_numel(pair: Pair, answers: Sequence[Generation], source_tokens: int) -> float:
    """Return the least elements that a batch of answers reads: weights once per step, keys and values of every row.

    A block's weights are read if any row runs it, the LM head's once for all rows.
    """
    model = pair.checkpoint.model
    weights = block_cost(model.arch, TokenPlace(context=0, source=0)).read_numel
    numel = 0.0
    for position, exits in enumerate(zip(*(answer.exit_layers for answer in answers), strict=True), 1):
        keys = block_cost(model.arch, TokenPlace(context=position, source=source_tokens)).read_numel - weights
        numel += max(exits) * weights + sum(exits) * keys + model.vocab_size * model.d_model
    return numel
