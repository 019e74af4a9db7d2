"""Analytic cost of decoding one token: FLOPs, and weights and KV entries read, without any overhead of the harness.

`block_cost` counts the matrix products of a block of the lean engine; gates, heads and KV policies provide their own
(`Parts.cost`). The ideal speed-up is full-depth cost over executed cost: by bytes at batch 1, where reading weights
and caches dominates a step, by FLOPs at large batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from exitbench.harness.engine.model.engine import Engine
from exitbench.harness.engine.model.token_record import TokenRecord
from exitbench.harness.engine.model.weights import Architecture
from exitbench.methods.base import Cost, Drafting, Parts


@dataclass(frozen=True)
class TokenPlace:
    """Numbers of positions that a token attends to: they determine the cost of its attention.

    Attributes:
        context: Number of keys that the token's self-attention reads, including its own.
        source: Number of encoder positions that its cross-attention reads; 0 if decoder-only.
    """

    context: int
    source: int


def block_cost(arch: Architecture, place: TokenPlace) -> Cost:
    """Return the cost of one decoder block for one token at ``place``: FLOPs of its matrix products, and numbers read.

    The numbers read from memory are weights, keys and values.
    """
    inner = arch.n_heads * arch.head_dim
    weights = arch.d_model * (inner + 2 * arch.kv_width) + inner * arch.d_model
    weights += arch.d_model * arch.d_ff * (3 if arch.gated else 2)
    keys = place.context
    if arch.encoder_blocks:
        weights += 2 * arch.d_model * inner  # query and output; source keys and values are computed once per prompt
        keys += place.source
    return Cost(matmul_flops=2 * weights + 4 * keys * inner, read_numel=weights + 2 * keys * arch.kv_width)


def answer_cost(model: Engine, parts: Parts, records: Sequence[TokenRecord], places: Sequence[TokenPlace]) -> Cost:
    """Return the cost of decoding one answer: blocks, gates, read-outs, KV entries of skipped blocks, discarded drafts.

    Args:
        model: The model.
        parts: The method: its gate, threshold rule, head and KV policy.
        records: One record per token of the answer.
        places: One place per token that a decode step generated. A first token that was read from the prefill has a
            record but no place; only its read-out counts. Discarded drafts are assumed to be at the place of the token
            that replaced them.
    """
    decoded = records[len(records) - len(places) :]
    exact = parts.cost(
        model,
        [record.exit_layer for record in decoded],
        [record.head_rows for record in records],
        [model.block_cost(place) for place in places],
        _drafting(parts, decoded),
    )
    return exact + _int8_cost(model, records)


def _drafting(parts: Parts, decoded: Sequence[TokenRecord]) -> Drafting | None:
    if not parts.kv_policy.verifies:
        return None
    return Drafting([record.rejected_layers for record in decoded], [record.wasted for record in decoded])


def _int8_cost(model: Engine, records: Sequence[TokenRecord]) -> Cost:
    """Return the cost of products with the LM head's int8 copy.

    Its one-byte weights count as a fraction: one byte divided by the bytes of one weight of the model.
    """
    numel = sum(record.head_rows_int8 for record in records) * model.d_model
    return Cost(matmul_flops=2 * numel, read_numel=numel / model.dtype.itemsize)


def answer_parts(
    model: Engine, parts: Parts, records: Sequence[TokenRecord], places: Sequence[TokenPlace]
) -> dict[str, Cost]:
    """Return the cost of decoding one answer by component; arguments as in `answer_cost`, which is the sum.

    Keys are blocks, heads, gates, kv (KV entries of skipped blocks) and, if the method verifies drafts, verification.
    The latter is the cost of discarded drafts minus the saving from reading several drafts out in one product. It may
    be negative.
    """
    decoded = records[len(records) - len(places) :]
    exit_layers = [record.exit_layer for record in decoded]
    block_costs = [model.block_cost(place) for place in places]
    head_rows = sum(record.head_rows for record in records)
    by_part = dict(
        blocks=sum((cost * layer for cost, layer in zip(block_costs, exit_layers, strict=True)), Cost()),
        heads=parts.head.cost(model, head_rows) + _int8_cost(model, records),
        gates=parts.gating_cost(model, exit_layers, _drafting(parts, decoded)),
        kv=parts.kv_cost(model, exit_layers, block_costs),
    )
    if not parts.kv_policy.verifies:
        return by_part
    return {**by_part, "verification": answer_cost(model, parts, records, places) + sum(by_part.values(), Cost()) * -1}
