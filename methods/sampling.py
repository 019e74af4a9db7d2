"""Temperature sampling with the same draws in every batch and for every method that reads the same logits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from exitbench.methods.base import BlockView, Gate

_MASK = (1 << 64) - 1


def _mix(value: int) -> int:
    """Return SplitMix64's finalizer: a well-distributed 64-bit hash of a counter (Steele, Lea and Flood 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def uniform(seed: int, row_seed: int, position: int) -> float:
    """Return a pseudorandom number in [0, 1) that depends on the arguments only, so that batches do not matter.

    ``row_seed`` is the seed of the answer's row, and ``position`` the token's position in the answer.
    """
    return (_mix(_mix(_mix(seed & _MASK) ^ (row_seed & _MASK)) + position) >> 11) / (1 << 53)


def drawn_index(logits_AK: Tensor, temperature: float, uniform_A: Tensor) -> Tensor:
    """Draw one column of the logits per row from softmax(logits / temperature), with a uniform number per row, [A].

    Args:
        logits_AK: Logits of one distribution per row.
        temperature: Greater than 0; 1 is the model's own distribution, near 0 its most probable token.
        uniform_A: Numbers in [0, 1), float64, so that rare tokens of a large vocabulary can be drawn.
    """
    share_AK = torch.softmax(logits_AK.double() / temperature, dim=-1).cumsum(-1)
    # The last cumulative sum may be below 1 by rounding; scaling keeps the index within the columns.
    reached_A1 = (uniform_A * share_AK[:, -1])[:, None]
    index_A: Tensor = torch.searchsorted(share_AK, reached_A1, right=True)[:, 0]
    return index_A.clamp(max=logits_AK.shape[-1] - 1)


@dataclass(frozen=True)
class Sampling(Gate):
    """Base class of gates that draw tokens from the head's distribution; at temperature 0 they choose greedily.

    Attributes:
        temperature: Divisor of the logits; 0 is greedy.
    """

    temperature: float = 0.0

    @property
    def chooses_from_logits(self) -> bool:
        """Whether `choose` reads only logits, seeds and positions: True unless a subclass overrides it."""
        return type(self).choose is Sampling.choose

    def choose(self, view: BlockView) -> Tensor:
        """Return the token that each row of the batch emits, [A]: drawn at the temperature, greedy at 0."""
        if self.temperature == 0:
            return super().choose(view)
        places = zip(view.seeds_A, view.positions_A, strict=True)
        draws = [uniform(0, row_seed, position) for row_seed, position in places]
        uniform_A = torch.tensor(draws, dtype=torch.float64, device=view.hidden_AD.device)
        return view.token(drawn_index(view.logits_AK, self.temperature, uniform_A))

    def log_p(self, view: BlockView) -> Tensor:
        """Return the log-probabilities [A, V] of softmax(logits / temperature), from which tokens are drawn.

        At temperature 0, they are those of softmax(logits).
        """
        if self.temperature == 0:
            return super().log_p(view)
        return torch.log_softmax(view.logits_AK.double() / self.temperature, dim=-1).float()
