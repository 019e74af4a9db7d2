"""Replace a method's exit decision by given exit layers: one for all tokens, or one per row (its first token's)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from exitbench.methods.base import BlockView, Gate, Parts
from exitbench.methods.thresholds import Constant


def with_exit_layer(parts: Parts, exit_layer: int) -> Parts:
    """Return the method with a fixed exit layer: every token exits after block ``exit_layer``."""
    return _kept(parts, _KeptDepth(parts.gate, None), {exit_layer})


def with_exit_layers(parts: Parts, exit_layers_B: Sequence[int]) -> Parts:
    """Return the method with a fixed exit layer for each row of a batch, ``exit_layers_B``."""
    return _kept(parts, _KeptDepth(parts.gate, exit_layers_B), set(exit_layers_B))


def why_no_scope(parts: Parts) -> str | None:
    """Return why a method cannot keep the exit layer of the first token for a whole answer; None if it can."""
    if parts.kv_policy.verifies:
        return "verifies its drafts, which are tokens of an answer"
    if parts.gate.looks_ahead:
        return "reads all blocks of every token before it decides"
    return None


class _KeptDepth(Gate):
    """Gate with given exit layers: score 1 from a row's exit layer on, else 0; tokens are chosen as by another gate.

    Args:
        gate: The method's own gate, which chooses the tokens.
        depths_B: Exit layer of each row; None if all rows exit at the only gate block.
    """

    decides = False
    reads_logits = False

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
