"""Heads: what turns a hidden state into logits."""

from __future__ import annotations

from torch import Tensor

from exitbench.methods.base import BlockView, Cost, Head, Model


class LMHead(Head):
    """The model's own LM head after its own final norm, at every block (no extra output layers)."""

    def logits(self, view: BlockView) -> Tensor:
        """Return logits [A, V]."""
        return view.model.logits(view.hidden_AD)

    def cost(self, model: Model, block: int) -> Cost:
        """One V x D product."""
        numel = model.vocab_size * model.d_model
        return Cost(matmul_flops=2 * numel, read_numel=numel)
