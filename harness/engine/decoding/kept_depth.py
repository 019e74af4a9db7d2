"""Methods whose exit is decided before a token runs: one depth for given texts, or the first token's for an answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from exitbench.methods.base import BlockView, Gate, Parts
from exitbench.methods.thresholds import Constant


def keeping(parts: Parts, depth: int) -> Parts:
    """Return the method with its depth fixed: every token leaves after this number of blocks."""
    return _kept(parts, _KeptDepth(parts.gate, None), {depth})


def keeping_each(parts: Parts, depths_B: Sequence[int]) -> Parts:
    """Return the method with a depth fixed for each row of a batch."""
    return _kept(parts, _KeptDepth(parts.gate, depths_B), set(depths_B))


def why_no_scope(parts: Parts) -> str | None:
    """Return why a method's answers cannot keep the depth of their first token; None if they can."""
    if parts.kv_policy.verifies:
        return "verifies its drafts, which are tokens of an answer"
    if parts.gate.looks_ahead:
        return "reads all blocks of every token before it decides"
    return None


class _KeptDepth(Gate):
    """Gate of depths decided before: score 1 from a row's depth on, and tokens read as the method reads them.

    Args:
        gate: The method's gate.
        depths_B: Depth of each row; None if all have the depth of the only gate block.
    """

    decides = False

    def __init__(self, gate: Gate, depths_B: Sequence[int] | None) -> None:
        self._gate, self._depths_B = gate, depths_B
        self.needs_history = gate.needs_history  # type: ignore[misc]  # a class attribute elsewhere

    @property
    def chooses_from_logits(self) -> bool:
        return self._gate.chooses_from_logits

    def score(self, view: BlockView) -> Tensor:
        device = view.hidden_AD.device
        if self._depths_B is None:
            return torch.ones(len(view.hidden_AD), device=device)
        leaves = [float(self._depths_B[row] <= view.block) for row in view.active.rows]
        return torch.tensor(leaves, device=device)

    def choose(self, view: BlockView) -> Tensor:
        return self._gate.choose(view)

    def log_p(self, view: BlockView) -> Tensor:
        return self._gate.log_p(view)


def _kept(parts: Parts, gate: Gate, depths: set[int]) -> Parts:
    return replace(parts, gate=gate, threshold=Constant(0.5), blocks=frozenset(depths))
