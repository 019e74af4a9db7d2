"""Confidence gates that several methods share. A gate of one method lives in that method's file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from exitbench.methods.base import BlockView, Cost, Gate, Model
from exitbench.methods.sampling import Sampling


class Always(Sampling):
    """Score 1 wherever it is asked: the blocks at which it is asked decide alone."""

    decides = False

    def score(self, view: BlockView) -> Tensor:
        """Return ones [A]."""
        return torch.ones(view.hidden_AD.shape[0], device=view.hidden_AD.device)

    def score_sql(self, asked: Sequence[int]) -> str:
        """Always 1."""
        return "1"


class SoftmaxMargin(Gate):
    """CALM's softmax measure: p_(1) - p_(2), in [0, 1]; a tie gives 0."""

    def score(self, view: BlockView) -> Tensor:
        """Return the margin [A]."""
        return margin(torch.softmax(view.logits_AK.float(), dim=-1))

    def score_sql(self, asked: Sequence[int]) -> str:
        """The margin of the recorded probabilities."""
        return "p1[l] - p2[l]"

    def cost(self, model: Model, asked: Sequence[int]) -> Cost:
        """Softmax and top two over the vocabulary."""
        return softmax_cost(model, len(asked))


def margin(p_AK: Tensor) -> Tensor:
    """Largest minus second largest, [A]; the largest itself where there is only one."""
    if p_AK.shape[-1] == 1:
        return p_AK[:, 0]
    top_A2 = p_AK.topk(2).values
    return top_A2[:, 0] - top_A2[:, 1]


def softmax_cost(model: Model, times: float) -> Cost:
    """A softmax over the vocabulary and the search for its best."""
    return Cost(elementwise_flops=7 * model.vocab_size * times)


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
            known = [(self.layers[seed], at) for seed, at in zip(view.seeds_A, view.positions_A, strict=True)]
            exits = [row[at - 1] if at <= len(row) else view.model.n_blocks for row, at in known]
            view.memory["exit_A"] = torch.tensor(exits, device=view.hidden_AD.device)
        return (view.memory["exit_A"] <= view.block).float()
