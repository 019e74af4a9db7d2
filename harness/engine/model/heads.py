"""LM head and trained exit heads of a model, whichever engine runs its blocks.

Shape suffixes: A rows, D model width, V vocabulary, K token ids of a row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from exitbench.harness.engine.model.exit_heads import ExitHeads
from exitbench.methods.base import LogitBounds


class Headed(ABC):
    """A model that states can be read out of.

    Attributes:
        exit_heads: The trained ones; None where it has none.
    """

    exit_heads: ExitHeads | None

    @property
    @abstractmethod
    def lm_head(self) -> Any:
        """The LM head: ``weight`` [V, D], and perhaps ``bias`` [V]."""

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """Read out as the model does after its last block, [..., D] to [..., V]."""

    def logit_bounds(self, hidden_AD: Tensor) -> LogitBounds:
        """Bound what `logits` gives; what a model does after its LM head, if anything, must be known for that."""
        raise NotImplementedError(f"{type(self).__name__} does not bound its logits")

    @property
    def vocab_size(self) -> int:
        """Rows of the LM head, V."""
        return int(self.lm_head.weight.shape[0])

    @property
    def exit_blocks(self) -> tuple[int, ...]:
        """Blocks with a trained exit head, ascending."""
        return () if self.exit_heads is None else self.exit_heads.blocks

    def exit_logits(self, block: int, hidden_AD: Tensor) -> Tensor:
        """Read out with the trained exit head of a block, [A, D] to [A, V]."""
        assert self.exit_heads is not None, "asked at exit blocks only"
        return self.exit_heads.logits(block, hidden_AD, self.logits)

    def exit_head_numel(self, block: int) -> int:
        """Weights that one read-out of an exit head multiplies; a lens ends in the model's own LM head."""
        assert self.exit_heads is not None, "asked at exit blocks only"
        numel = self.exit_heads.numel(block)
        return numel + int(self.lm_head.weight.numel()) if self.exit_heads.kind == "lens" else numel

    def head_rows(self, ids: Tensor) -> Tensor:
        """Rows of the LM head's weight, [ids, D]."""
        rows: Tensor = self.lm_head.weight.index_select(0, ids)
        return rows

    def head_weights(self, ids_AK: Tensor) -> Tensor:
        """Rows of the LM head, [A, K, D]; with a bias as one more column."""
        rows = self.head_rows(ids_AK.flatten()).view(*ids_AK.shape, -1)
        bias = getattr(self.lm_head, "bias", None)
        return rows if bias is None else torch.cat((rows, bias[ids_AK][..., None]), dim=-1)
