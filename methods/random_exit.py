"""Random exit with a given mean depth: the control that a useful gate must beat."""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import ClassVar

import torch
from torch import Tensor

from exitbench.errors import UserError
from exitbench.methods.base import NOTHING_FITTED, BlockView, Gate, Parts, blocks_from, param
from exitbench.methods.gated import Skipping
from exitbench.methods.heads import LMHead
from exitbench.methods.kv_policies import KV_POLICIES
from exitbench.methods.registry import register
from exitbench.methods.sampling import uniform
from exitbench.methods.thresholds import Constant


def exit_distribution(mean_exit: float, n_blocks: int) -> list[float]:
    """Return the maximum-entropy distribution over exit layers 1..L with a given mean: p_l proportional to r^l.

    Raises:
        ValueError: The mean is not between 1 and ``n_blocks``.
    """
    if not 1 <= mean_exit <= n_blocks:
        raise ValueError(f"a mean exit layer of {mean_exit} is impossible with {n_blocks} blocks")
    low, high = -60.0, 60.0  # ln r; beyond these the distribution is one point in double precision
    for _ in range(200):
        middle = (low + high) / 2
        weights = _powers(middle, n_blocks)
        mean = sum(block * weight for block, weight in enumerate(weights, 1)) / sum(weights)
        low, high = (middle, high) if mean < mean_exit else (low, middle)
    weights = _powers((low + high) / 2, n_blocks)
    return [weight / sum(weights) for weight in weights]


def _powers(log_r: float, n_blocks: int) -> list[float]:
    exponents = [log_r * block for block in range(1, n_blocks + 1)]
    top = max(exponents)
    return [2.718281828459045 ** (exponent - top) for exponent in exponents]


class RandomDraw(Gate):
    """Gate that draws a random exit layer for each token, and scores 1 from that block on, 0 before.

    ``mean_exit`` is the mean of the exit layers 1..L. A draw depends on ``seed``, the row's seed and the position only.
    """

    scores_numbers: ClassVar[bool] = True

    def __init__(self, mean_exit: float, n_blocks: int, seed: int) -> None:
        self.mean_exit, self.n_blocks, self.seed = mean_exit, n_blocks, seed

    @cached_property
    def cumulative(self) -> list[float]:
        """Probabilities that the exit layer is at most l, for l = 1..L-1.

        Computed on first use: gates that are never evaluated may have fewer blocks than `mean_exit`, for which there is
        no distribution.
        """
        return list(accumulate(exit_distribution(self.mean_exit, self.n_blocks)))[:-1]

    def score(self, view: BlockView) -> Tensor:
        """Return 1 for each active row whose drawn exit layer is reached, else 0, [A]."""
        if "exit_A" not in view.memory:
            rows = zip(view.seeds_A, view.positions_A, strict=True)
            draws = (uniform(self.seed, row_seed, position) for row_seed, position in rows)
            layers = [1 + bisect.bisect_right(self.cumulative, draw) for draw in draws]
            view.memory["exit_A"] = torch.tensor(layers, device=view.hidden_AD.device)
        return (view.memory["exit_A"] <= view.block).float()


@register
@dataclass(frozen=True)
class RandomExit(Skipping):
    """Each token exits at a random block with a given mean exit layer, independent of the text.

    Set the mean to that of another method (the budget). If the other method has better quality, its gate is the cause.
    """

    name: ClassVar[str] = "random"
    source: ClassVar[str] = "budget-matched random control"

    mean_exit: float = param(1.0, "mean exit layer over tokens, between 1 and the model's depth", low=1.0)
    seed: int = param(0, "seed of the draws; one draw per document and position", low=0)

    def check(self, n_blocks: int) -> None:
        """Raise UserError if no distribution over the blocks has the given mean."""
        if self.mean_exit > n_blocks:
            raise UserError(
                f"random.mean_exit = {self.mean_exit} is above the model's depth; allowed: between 1 and {n_blocks}."
            )

    def parts(self, n_blocks: int, fitted: Mapping[str, Tensor] = NOTHING_FITTED) -> Parts:
        """Return gate, threshold, head and KV policy; the gate draws each token's exit layer."""
        gate = RandomDraw(self.mean_exit, n_blocks, self.seed)
        return Parts(gate, Constant(0.5), LMHead(), KV_POLICIES[self.kv_policy], blocks_from(1, n_blocks))
