"""Analytic work of scoring the continuations of a context alone, pass by pass as `likelihood` runs them.

A pass reads weights once however many positions it has; its keys and values are taken to be read once too. So a
continuation that is decoded token by token reads the weights once a token, and one whose depth is known before reads
them once for all of its tokens: by numbers read the one can cost more than full depth, though it does less by FLOPs.
"""

from __future__ import annotations

from collections.abc import Sequence

from exitbench.harness.cells.cell import Scope
from exitbench.harness.engine.decoding.branches import Branch, Context, branches_of, packs
from exitbench.harness.engine.decoding.likelihood import PACKED_TOKENS, Scored, fixed_depth, keeping
from exitbench.harness.engine.model.cost import TokenPlace
from exitbench.harness.engine.model.engine import Engine
from exitbench.harness.engine.model.model import Transformer
from exitbench.methods.base import Cost, Parts


def scoring_cost(
    model: Engine,
    parts: Parts,
    context: Context,
    scored: Sequence[Scored],
    *,
    scope: Scope = "token",
    gates_first_token: bool = True,
) -> Cost | None:
    """Work of a context and all of its continuations, what they share counted once.

    Args:
        model: The model.
        parts: The method.
        context: What was scored after what.
        scored: Its continuations, traced.
        scope: As of `likelihood.score`.
        gates_first_token: As of `likelihood.score`.

    Returns:
        None for an encoder-decoder, of whose encoder no work is counted.
    """
    if model.encoder_blocks:
        return None
    n_context, depth = len(context.context_ids), fixed_depth(parts, model.n_blocks)
    layer, head_rows = scored[0].exit_layers[0], scored[0].head_rows[0]
    if not gates_first_token or (depth is not None and not parts.gate.needs_history):
        prefilled = depth if depth is not None and gates_first_token else model.n_blocks
        first = _pass(model, prefilled, [(1, n_context)], n_context) + parts.head.cost(model, head_rows)
    else:
        prompt = _pass(model, model.n_blocks, [(1, n_context - 1)], n_context - 1)
        first = prompt + parts.cost(model, [layer], [head_rows], [_block(model, n_context)])
    rest = parts if scope == "token" or depth is not None else keeping(parts, layer)
    return first + _rest(model, rest, n_context, [one for one in branches_of([context]) if one.fed], scored)


def _rest(model: Engine, parts: Parts, n_context: int, branches: Sequence[Branch], scored: Sequence[Scored]) -> Cost:
    """Every token but the first. Where the depth is known before no gate is asked that would cost anything."""
    depth, total = fixed_depth(parts, model.n_blocks), Cost()
    if depth is None:
        for branch in branches:
            made = scored[branch.choices[0]]
            blocks = [_block(model, n_context + position) for position in range(len(branch.fed) + 1)]
            # With the first and without it: what that put off, later tokens run.
            total += parts.cost(model, made.exit_layers, made.head_rows, blocks)
            total += parts.cost(model, made.exit_layers[:1], made.head_rows[:1], blocks[:1]) * -1
        return total
    side_by_side = isinstance(model, Transformer)
    for row in packs(branches, PACKED_TOKENS) if side_by_side else [[branch] for branch in branches]:
        places = [(n_context + 1, n_context + len(branch.fed)) for branch in row]
        n_fed = sum(len(branch.fed) for branch in row)
        head_rows = [rows for branch in row for rows in scored[branch.choices[0]].head_rows[1:]]
        total += _pass(model, depth, places, n_context + n_fed) + _read_together(model, parts, head_rows)
    return total


def _block(model: Engine, n_keys: int) -> Cost:
    return model.block_cost(TokenPlace(context=n_keys, source=0))


def _pass(model: Engine, n_blocks: int, places: Sequence[tuple[int, int]], n_keys: int) -> Cost:
    """Work of blocks over stretches of positions.

    Args:
        model: The model.
        n_blocks: How many are run.
        places: Keys that the first and the last position of each stretch see; one more a position.
        n_keys: Keys that all positions together see.
    """
    total = Cost()
    for first, last in places:  # the work of a position grows evenly with the keys it sees
        total += (_block(model, first) + _block(model, last)) * ((last - first + 1) / 2)
    if total == Cost():
        return total
    return Cost(total.matmul_flops, total.elementwise_flops, _block(model, n_keys).read_numel) * n_blocks


def _read_together(model: Engine, parts: Parts, head_rows: Sequence[int]) -> Cost:
    """The LM head over all positions of a pass, whose weights are read once."""
    total, once = parts.head.cost(model, sum(head_rows)), parts.head.cost(model, max(head_rows))
    return Cost(total.matmul_flops, total.elementwise_flops, once.read_numel)
