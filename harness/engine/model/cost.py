"""Analytic cost of decoding one token: FLOPs and numbers read, without any overhead of the harness.

`block_cost` counts the products of a block of the lean engine; gates, heads and KV policies provide their own
(`Parts.cost`). The ideal speed-up is full-depth cost over executed cost: by bytes at batch 1, where reading weights
and caches dominates a step, by FLOPs at large batches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from exitbench.harness.engine.model.engine import Engine
from exitbench.harness.engine.model.token_record import TokenRecord
from exitbench.harness.engine.model.weights import Architecture
from exitbench.methods.base import Cost, Parts


@dataclass(frozen=True)
class TokenPlace:
    """Place of a token: keys its self-attention sees, itself included, and source positions (0 if decoder-only)."""

    context: int
    source: int


def block_cost(arch: Architecture, place: TokenPlace) -> Cost:
    """Return the work of one decoder block for one token of one row."""
    inner = arch.n_heads * arch.head_dim
    weights = arch.d_model * (inner + 2 * arch.kv_width) + inner * arch.d_model
    weights += arch.d_model * arch.d_ff * (3 if arch.gated else 2)
    keys = place.context
    if arch.encoder_blocks:
        weights += 2 * arch.d_model * inner  # query and output; source keys and values are computed once per prompt
        keys += place.source
    return Cost(matmul_flops=2 * weights + 4 * keys * inner, read_numel=weights + 2 * keys * arch.kv_width)


def answer_cost(model: Engine, parts: Parts, records: Sequence[TokenRecord], places: Sequence[TokenPlace]) -> Cost:
    """Return the work of decoding one answer: blocks, gates, read-outs, skipped caches, and discarded drafts.

    Args:
        model: The model.
        parts: The method.
        records: Of every token.
        places: Where every token stands that a step of decoding made: one fewer than records if the first token was
            read from the prompt's own pass, of which only the read-out counts. Positions run in vain are taken to have
            stood where the token does that replaced them.
    """
    decoded = records[len(records) - len(places) :]
    exact = parts.cost(
        model,
        [record.exit_layer for record in decoded],
        [record.head_rows for record in records],
        [model.block_cost(place) for place in places],
        [record.rejected for record in decoded],
        [record.wasted for record in decoded],
    )
    return exact + _int8_cost(model, records)


def _int8_cost(model: Engine, records: Sequence[TokenRecord]) -> Cost:
    """Return the work of multiplying rows of an int8 copy; its one-byte numbers count as a fraction of the model's."""
    numel = sum(record.head_rows_int8 for record in records) * model.d_model
    return Cost(matmul_flops=2 * numel, read_numel=numel / model.dtype.itemsize)


def answer_parts(
    model: Engine, parts: Parts, records: Sequence[TokenRecord], places: Sequence[TokenPlace]
) -> dict[str, Cost]:
    """Return the work of `answer_cost` by part: blocks, heads, gates, kv and, for verifying methods, verification.

    Verification is the cost of discarded drafts minus the saving from reading drafts out together; it may be negative.
    """
    exit_layers = [record.exit_layer for record in records[len(records) - len(places) :]]
    block_costs = [model.block_cost(place) for place in places]
    head_rows = sum(record.head_rows for record in records)
    by_part = dict(
        blocks=sum((cost * layer for cost, layer in zip(block_costs, exit_layers, strict=True)), Cost()),
        heads=parts.head.cost(model, head_rows) + _int8_cost(model, records),
        gates=sum(
            (parts.asking_cost(model, layer) * tokens for layer, tokens in Counter(exit_layers).items()),
            Cost(),
        ),
        kv=parts.kv_cost(model, exit_layers, block_costs),
    )
    if not parts.kv_policy.verifies:
        return by_part
    return {**by_part, "verification": answer_cost(model, parts, records, places) + sum(by_part.values(), Cost()) * -1}


@dataclass(frozen=True)
class IdealSpeedup:
    """Full-depth cost over executed cost, of the same or of another set of tokens."""

    by_bytes: float
    by_flops: float


def ideal_speedup(full: Cost, method: Cost) -> IdealSpeedup:
    """Return full-depth cost over the method's; both must be positive."""
    flops = full.flops / method.flops
    return IdealSpeedup(full.read_numel / method.read_numel, flops)
