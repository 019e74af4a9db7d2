"""Off-ramps: the heads with which a classifier's blocks before the last are read out.

Shape suffixes: A rows, D model width, C labels (1 of a regression).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

RampKind = Literal["linear", "pooler-linear"]
KINDS: tuple[RampKind, ...] = get_args(RampKind)


@dataclass(frozen=True)
class OffRamps:
    """Off-ramps of some blocks, all of one kind.

    Attributes:
        kind: ``linear``: out(x); ``pooler-linear``: out(tanh(pool(x))), x being what the model's own classifier reads.
        blocks: Blocks that have one, ascending.
        tensors: By name, ``{block}.out.weight`` [C, D] and ``{block}.out.bias`` [C]; with a pooler also
            ``{block}.pool.weight`` [D, D] and ``{block}.pool.bias`` [D].
    """

    kind: RampKind
    blocks: tuple[int, ...]
    tensors: Mapping[str, Tensor]

    def logits(self, block: int, state_AD: Tensor) -> Tensor:
        """Return what the off-ramp of a block says of states, [A, C]."""
        if self.kind == "pooler-linear":
            state_AD = torch.tanh(self._linear(block, "pool", state_AD))
        return self._linear(block, "out", state_AD)

    def numel(self, block: int) -> int:
        """Weights that one read-out multiplies."""
        parts = ("pool", "out") if self.kind == "pooler-linear" else ("out",)
        return sum(self.tensors[f"{block}.{part}.weight"].numel() for part in parts)

    def _linear(self, block: int, part: str, state_AD: Tensor) -> Tensor:
        return F.linear(state_AD, self.tensors[f"{block}.{part}.weight"], self.tensors[f"{block}.{part}.bias"])
