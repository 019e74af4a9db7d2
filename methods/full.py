"""Full depth: the baseline of every comparison."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from exitbench.methods.base import NOTHING_FITTED, Method, Parts, param
from exitbench.methods.gates import Always
from exitbench.methods.heads import LMHead
from exitbench.methods.kv_policies import StateCopy
from exitbench.methods.registry import register
from exitbench.methods.thresholds import Constant


@register
@dataclass(frozen=True)
class Full(Method):
    """Every token runs every block."""

    name: ClassVar[str] = "full"
    source: ClassVar[str] = "baseline"
    is_baseline: ClassVar[bool] = True

    temperature: float = param(0.0, "tokens are drawn from softmax(logits / temperature); 0: greedy", low=0.0)

    def parts(self, n_blocks: int, fitted: Mapping[str, Tensor] = NOTHING_FITTED) -> Parts:
        """Return gate, threshold, head and KV policy; the gate is never evaluated, so that all blocks run."""
        return Parts(Always(self.temperature), Constant(0.0), LMHead(), StateCopy(), frozenset())
