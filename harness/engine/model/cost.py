"""Analytic cost of decoding one token: FLOPs and numbers read, whatever the harness loses on top.

`block_cost` counts the products of a block of the lean engine; gates, heads and KV policies say their own
(`Parts.cost`). Ideal speed-up is full-depth cost over executed cost: by bytes at batch 1, where reading weights and
caches bounds a step, by FLOPs at large batches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from exitbench.harness.engine.model.engine import Engine
from exitbench.harness.engine.model.weights import Architecture
from exitbench.methods.base import Cost, Parts


@dataclass(frozen=True)
class TokenPlace:
    """Where a token stands: keys its self-attention sees, itself included, and source positions (0 if decoder-only)."""

    context: int
    source: int


def block_cost(arch: Architecture, place: TokenPlace) -> Cost:
    """Work of one decoder block for one token of one row."""
    inner = arch.n_heads * arch.head_dim
    weights = arch.d_model * (inner + 2 * arch.kv_width) + inner * arch.d_model
    weights += arch.d_model * arch.d_ff * (3 if arch.gated else 2)
    keys = place.context
    if arch.encoder_blocks:
        weights += 2 * arch.d_model * inner  # query and output; keys and values of the source are made once
        keys += place.source
    return Cost(matmul_flops=2 * weights + 4 * keys * inner, read_numel=weights + 2 * keys * arch.kv_width)


def answer_cost(
    model: Engine,
    parts: Parts,
    exit_layers: Sequence[int],
    head_rows: Sequence[int],
    places: Sequence[TokenPlace],
    rejected: Sequence[int] = (),
    wasted: Sequence[int] = (),
    int8_rows: Sequence[int] = (),
) -> Cost:
    """Work of decoding one answer: blocks, gates, read-outs, skipped caches, and what verification threw away.

    Args:
        model: The model.
        parts: The method.
        exit_layers: Of every token that a step of decoding made.
        head_rows: Rows of the LM head multiplied for every token; of a first one too that the prompt's own pass made.
        places: Where every token of ``exit_layers`` stands; positions run in vain are taken to have stood where the
            token does that replaced them.
        rejected: Drafts thrown away before every token; empty if none were.
        wasted: Positions run in vain before every token; empty if none were.
        int8_rows: Rows of an int8 copy of the LM head multiplied for every token; empty if there is none.
    """
    block_costs = [model.block_cost(place) for place in places]
    exact = parts.cost(model, exit_layers, head_rows, block_costs, rejected, wasted)
    return exact + _int8_cost(model, sum(int8_rows))


def _int8_cost(model: Engine, rows: int) -> Cost:
    """Work of multiplying rows of an int8 copy; a number of one byte is that part of a number of the model's."""
    numel = rows * model.d_model
    return Cost(matmul_flops=2 * numel, read_numel=numel / model.dtype.itemsize)


def answer_parts(
    model: Engine,
    parts: Parts,
    exit_layers: Sequence[int],
    head_rows: Sequence[int],
    places: Sequence[TokenPlace],
    rejected: Sequence[int] = (),
    wasted: Sequence[int] = (),
    int8_rows: Sequence[int] = (),
) -> dict[str, Cost]:
    """Where the work of `answer_cost` goes: blocks, heads, gates, kv and, of methods that verify, verification.

    Verification is what drafts thrown away cost, less what reading drafts out together saves: it may be below zero.
    """
    block_costs = [model.block_cost(place) for place in places]
    by_part = dict(
        blocks=sum((cost * layer for cost, layer in zip(block_costs, exit_layers, strict=True)), Cost()),
        heads=parts.head.cost(model, sum(head_rows)) + _int8_cost(model, sum(int8_rows)),
        gates=sum(
            (parts.asking_cost(model, layer) * tokens for layer, tokens in Counter(exit_layers).items()),
            Cost(),
        ),
        kv=parts.kv_cost(model, exit_layers, block_costs),
    )
    if not parts.kv_policy.verifies:
        return by_part
    total = answer_cost(model, parts, exit_layers, head_rows, places, rejected, wasted, int8_rows)
    return {**by_part, "verification": total + sum(by_part.values(), Cost()) * -1}


@dataclass(frozen=True)
class IdealSpeedup:
    """Full-depth cost over executed cost of the same or of another set of tokens."""

    by_bytes: float
    by_flops: float


def ideal_speedup(full: Cost, method: Cost) -> IdealSpeedup:
    """Compare two totals; both must hold tokens."""
    flops = full.flops / method.flops
    return IdealSpeedup(full.read_numel / method.read_numel, flops)
