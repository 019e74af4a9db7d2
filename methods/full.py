"""Full depth: the baseline of every comparison."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from exitbench.methods.base import NOTHING_FITTED, Method, Parts
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

    def parts(self, n_blocks: int, fitted: Mapping[str, Tensor] = NOTHING_FITTED) -> Parts:
        """A gate that is never asked."""
        return Parts(Always(), Constant(0.0), LMHead(), StateCopy(), frozenset())
