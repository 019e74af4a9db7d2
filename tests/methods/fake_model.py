"""Fake model whose states are its logits, so that tests can set the logits of every block."""

from __future__ import annotations

import torch
from torch import Tensor


class Identity:
    """Logits are the final-normed state, and the weight of each row of the head is its id.

    The final norm multiplies by a vector, of ones by default.
    """

    def __init__(self, n_blocks: int, width: int, norm: Tensor | None = None) -> None:
        self.n_blocks = n_blocks
        self.d_model = self.vocab_size = self.kv_width = width
        self.norm = torch.ones(width) if norm is None else norm

    def final_normed(self, hidden: Tensor) -> Tensor:
        return hidden * self.norm

    def logits(self, hidden: Tensor) -> Tensor:
        return self.final_normed(hidden)

    def head_weights(self, ids_AK: Tensor) -> Tensor:
        return ids_AK[..., None]

    def logits_of(self, hidden_AD: Tensor, weights_AKD: Tensor) -> Tensor:
        return self.logits(hidden_AD).gather(1, weights_AKD[..., 0])


def random_states(n_blocks: int, n_rows: int, width: int) -> Tensor:
    """Return states after the embedding and every block, [L+1, A, D]."""
    return torch.randn(n_blocks + 1, n_rows, width, generator=torch.Generator().manual_seed(0))
