"""Full depth: the baseline of every comparison."""

from dataclasses import dataclass
from typing import ClassVar

from exitbench.methods.base import Method, Parts
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

    def parts(self, n_blocks: int) -> Parts:
        """A gate that is never asked."""
        return Parts(Always(), Constant(0.0), LMHead(), StateCopy(), frozenset())
