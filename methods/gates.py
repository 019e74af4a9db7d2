"""Gates: confidence scores at a block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from exitbench.methods.base import BlockView, Cost, Gate, Model, argmax_token


class Always(Gate):
    """Score 1 wherever it is asked: the blocks at which it is asked decide alone."""

    score_sql: ClassVar[str | None] = "1"

    def score(self, view: BlockView) -> Tensor:
        """Return ones [A]."""
        return view.hidden_AD.new_ones(view.hidden_AD.shape[0])


class SoftmaxMargin(Gate):
    """CALM's softmax measure: p_(1) - p_(2), in [0, 1]; a tie gives 0 (methods.md 1.2)."""

    needs_logits: ClassVar[bool] = True
    score_sql: ClassVar[str | None] = "p1[l] - p2[l]"

    def score(self, view: BlockView) -> Tensor:
        """Return the margin [A]."""
        top_A2 = torch.softmax(view.logits_AV.float(), dim=-1).topk(2).values
        return top_A2[:, 0] - top_A2[:, 1]

    def cost(self, model: Model) -> Cost:
        """Softmax and top two over the vocabulary."""
        return Cost(elementwise_flops=7 * model.vocab_size)


class FullAgreement(Gate):
    """Score 1 where this block already chooses the token of the last block.

    ``stable`` also asks that every later block chooses it (methods.md 1.8 and 1.12). Runs the full depth first.
    """

    looks_ahead: ClassVar[bool] = True

    def __init__(self, stable: bool) -> None:
        self.score_sql = "l >= stable_from" if stable else "top1_id[l] = top1_id[-1]"  # type: ignore[misc]
        self.stable = stable

    def score(self, view: BlockView) -> Tensor:
        """Return 1.0 or 0.0 a row, [A]."""
        if "agrees_AL" not in view.memory:
            assert view.ahead_LAD is not None, "the decode loop runs ahead for gates that ask for it"
            n_blocks, n_rows, width = view.ahead_LAD.shape
            logits = view.model.logits(view.ahead_LAD.reshape(n_blocks * n_rows, width))
            choice_LA = argmax_token(logits).view(n_blocks, n_rows)
            agrees_LA = choice_LA == choice_LA[-1]
            if self.stable:
                agrees_LA = agrees_LA.flip(0).cummin(0).values.flip(0)
            view.memory["agrees_AL"] = agrees_LA.T
        return view.memory["agrees_AL"][:, view.block - 1].float()

    def cost(self, model: Model) -> Cost:
        """Nothing: an oracle is told, its cost is that of a method which knew."""
        return Cost()


class Scheduled(Gate):
    """Exit layers known in advance: what an oracle would cost if it really knew, with blocks really skipped.

    Args:
        layers: Exit layer of every token, by the seed of its row; deeper or later tokens run at full depth.
    """

    def __init__(self, layers: Mapping[int, Sequence[int]]) -> None:
        self.layers = layers

    def score(self, view: BlockView) -> Tensor:
        """Return 1.0 or 0.0 a row, [A]."""
        if "exit_A" not in view.memory:
            at, depth = view.position - 1, view.model.n_blocks
            rows = (self.layers[seed] for seed in view.seeds_A)
            exits = [row[at] if at < len(row) else depth for row in rows]
            view.memory["exit_A"] = torch.tensor(exits, device=view.hidden_AD.device)
        return (view.memory["exit_A"] <= view.block).float()
