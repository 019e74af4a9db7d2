"""The cost declared for scored texts equals the work of all matrix products counted while they are scored."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from exitbench.harness.cells.cell import Scope
from exitbench.harness.engine.decoding.branches import Context
from exitbench.harness.engine.decoding.likelihood import Scored, score
from exitbench.harness.engine.decoding.scoring_cost import scoring_cost
from exitbench.methods.base import Method
from exitbench.methods.calm_softmax import CalmSoftmax
from exitbench.methods.full import Full
from exitbench.methods.static import Static

L = 5
CONTEXTS = [
    Context([17], [[9], [10]]),
    Context([5, 8, 13, 21, 3, 2], [[11, 12, 13], [9], [11, 12, 14], [20, 21], [7, 8, 9, 30]]),
]
"""Contexts of one token with choices of single letters, and longer contexts with choices of mixed length, two of them
equal.
"""
FULL, STATIC, SOFTMAX = Full(), Static(exit_layer=2), CalmSoftmax(threshold=0.05, decay="none")
EXACT = CalmSoftmax(threshold=0.05, decay="none", kv_policy="exact")
LENIENT = CalmSoftmax(threshold=0.005, decay="none")
CASES: list[tuple[str, Method, Scope, bool]] = [
    *(
        (family, method, "token", gated)
        for family in ("gpt2", "llama")
        for method in (FULL, STATIC, SOFTMAX)
        for gated in (True, False)
    ),
    ("llama", EXACT, "token", True),
    ("llama", LENIENT, "context", True),
    ("qwen2-tied", LENIENT, "context", True),
]


class Products(TorchDispatchMode):
    """Counter of FLOPs and of weights read in all matrix products; weights count once per product."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = self.numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inner = func.decompose(*args, **(kwargs or {}))
        if inner is not NotImplemented:
            return inner
        if func._overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm):
            rows, weight = (arg for arg in args[-2:] if isinstance(arg, Tensor))
            self.flops += 2 * len(rows) * weight.numel()
            self.numel += weight.numel()
        return func(*args, **(kwargs or {}))


def passes(
    context: Context, scored: list[Scored], method: Method, scope: Scope, gated: bool
) -> list[tuple[int, list[int], int]]:
    """Return for each forward pass: blocks run, number of keys seen by each position, and number of keys read."""
    n, fed = len(context.context_ids), {tuple(one.token_ids[:-1]): one for one in scored}
    first = scored[0].blocks_run[0]
    known = method is FULL or method is STATIC
    results = []
    if known or not gated:
        results.append((first if known and gated else L, [*range(1, n + 1)], n))
    else:
        results += [(L, [*range(1, n)], n - 1), (first, [n], n)]
    if known or (scope == "context" and method is not EXACT):
        depth = 2 if method is STATIC else first
        seen = [n + place for own in fed for place in range(1, len(own) + 1)]
        return [*results, (depth, seen, n + len(seen))]
    return results + [
        (one.blocks_run[place], [n + place], n + place) for own, one in fed.items() for place in range(1, len(own) + 1)
    ]


@pytest.mark.parametrize(("family", "method", "scope", "gated"), CASES)
def test_declared_scoring_cost_equals_the_counted_products(
    twin: Any, family: str, method: Method, scope: Scope, gated: bool
) -> None:
    checkpoint, parts = twin(family).checkpoint, method.parts(L)
    model = checkpoint.model
    left = set()
    for context in CONTEXTS:
        with Products() as counted:
            (scored,) = score(checkpoint, [context], parts, scope=scope, gates_first_token=gated)
        cost = scoring_cost(model, parts, context, scored, scope=scope, gates_first_token=gated)
        assert cost is not None
        attended = passes(context, scored, method, scope, gated)
        width = model.arch.n_heads * model.arch.head_dim
        flops = sum(4 * keys * width * blocks for blocks, seen, _ in attended for keys in seen)
        read = sum(2 * keys * model.kv_width * blocks for blocks, seen, keys in attended if seen)
        assert cost.matmul_flops == pytest.approx(counted.flops + flops, rel=1e-9)
        assert cost.read_numel == pytest.approx(counted.numel + read, rel=1e-9)
        left.update(layer for one in scored for layer in one.exit_layers)
    assert method is FULL or min(left) < L, "or nothing leaves early"


def test_scoring_cost_of_encoder_decoders_is_unknown(twin: Any) -> None:
    checkpoint = twin("t5").checkpoint
    (scored,) = score(checkpoint, [CONTEXTS[1]], FULL.parts(L))
    assert scoring_cost(checkpoint.model, FULL.parts(L), CONTEXTS[1], scored) is None


def test_full_depth_reads_weights_once_but_a_gate_reads_them_per_token(twin: Any) -> None:
    """A gate decides token by token, so weights are read for each token. Full depth scores all choices in one pass.

    At batch size 1, exits of long choices therefore cost more than full depth, although they compute less.
    """
    checkpoint, context = twin("llama").checkpoint, Context([5, 8], [list(range(3, 23)), list(range(23, 43))])
    costs = []
    for method in (FULL, SOFTMAX):
        (scored,) = score(checkpoint, [context], method.parts(L))
        costs.append(scoring_cost(checkpoint.model, method.parts(L), context, scored))
    full, gated = costs
    assert full is not None and gated is not None
    assert gated.read_numel > 5 * full.read_numel
    assert gated.matmul_flops < 5 * full.matmul_flops
