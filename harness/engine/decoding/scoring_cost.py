"""Analytic cost of scoring the continuations of one context: FLOPs, and numbers read from memory.

The cost is the sum over the forward passes that `likelihood` runs. A pass reads weights once for all of its positions;
keys and values are assumed to be read once too. So a continuation decoded token by token reads the weights once per
token, and one with a fixed depth reads them once for all its tokens. Early exits token by token can therefore read more
numbers than full depth, whose depth is fixed, although they need fewer FLOPs.
"""

from __future__ import annotations

from collections.abc import Sequence

from exitbench.harness.cells.cell import Scope
from exitbench.harness.engine.decoding.branches import Branch, Context, branches_of, packs
from exitbench.harness.engine.decoding.kept_depth import with_exit_layer
from exitbench.harness.engine.decoding.likelihood import PACKED_TOKENS, Scored, fixed_depth
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
    """Return the cost of scoring a context's continuations, context included; work that they share is counted once.

    Args:
        model: The model.
        parts: The method.
        context: The context and its continuations.
        scored: The continuations' scores, with the exit record of each token.
        scope: ``token``: every token exits by itself; ``context``: all keep the exit layer of the first token.
        gates_first_token: Whether the first token may exit early; otherwise the context's full-depth pass gives it.

    Returns:
        The cost; None for an encoder-decoder, since the work of encoders is not counted.
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
    later_parts = parts if scope == "token" or depth is not None else with_exit_layer(parts, layer)
    return first + _later_tokens_cost(
        model, later_parts, n_context, [branch for branch in branches_of([context]) if branch.fed], scored
    )


def _later_tokens_cost(
    model: Engine, parts: Parts, n_context: int, branches: Sequence[Branch], scored: Sequence[Scored]
) -> Cost:
    """Return the cost of all continuation tokens after the first; if the depth is fixed, gates cost nothing.

    Each of the ``branches`` is a group of continuations that share all tokens but the last, which are computed once.
    """
    depth, total = fixed_depth(parts, model.n_blocks), Cost()
    if depth is None:
        for branch in branches:
            first_choice = scored[branch.choices[0]]
            blocks = [_block(model, n_context + position) for position in range(len(branch.fed) + 1)]
            # Cost with the first token minus cost without it: later tokens may run blocks that the first one deferred.
            total += parts.cost(model, first_choice.exit_layers, first_choice.head_rows, blocks)
            total += parts.cost(model, first_choice.exit_layers[:1], first_choice.head_rows[:1], blocks[:1]) * -1
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
    """Return the cost of running blocks over ranges of positions in one pass.

    Args:
        model: The model.
        n_blocks: Number of blocks that are run.
        places: For each range, the numbers of keys that its first and its last position attend to. Each position
            attends to one key more than the position before.
        n_keys: Number of different keys that all positions together attend to.
    """
    total = Cost()
    for first, last in places:  # a position's work is linear in the keys it sees
        total += (_block(model, first) + _block(model, last)) * ((last - first + 1) / 2)
    if total == Cost():
        return total
    return Cost(total.matmul_flops, total.elementwise_flops, _block(model, n_keys).read_numel) * n_blocks


def _read_together(model: Engine, parts: Parts, head_rows: Sequence[int]) -> Cost:
    """Return the cost of one read-out of all positions of a pass, for which the LM head's weights are read once.

    ``head_rows`` are the rows of the LM head multiplied at each position.
    """
    total, once = parts.head.cost(model, sum(head_rows)), parts.head.cost(model, max(head_rows))
    return Cost(total.matmul_flops, total.elementwise_flops, once.read_numel)
