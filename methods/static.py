"""Static exit: the same depth for every token."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from exitbench.methods.base import NOTHING_FITTED, Parts, check_block, param
from exitbench.methods.gated import Skipping
from exitbench.methods.gates import Always
from exitbench.methods.heads import LMHead
from exitbench.methods.kv_policies import KV_POLICIES
from exitbench.methods.registry import register
from exitbench.methods.thresholds import Constant


@register
@dataclass(frozen=True)
class Static(Skipping):
    """Every token exits after the same number of blocks; a control that uses no information about the token."""

    name: ClassVar[str] = "static"
    source: ClassVar[str] = "FREE's static baseline"
    version: ClassVar[int] = 2
    fixed_depth: ClassVar[str | None] = "exit_layer"

    exit_layer: int = param(1, "blocks executed for every token", low=1)

    def check(self, n_blocks: int) -> None:
        """Raise UserError if the exit layer is deeper than the decoder."""
        check_block(self, "exit_layer", n_blocks)

    def parts(self, n_blocks: int, fitted: Mapping[str, Tensor] = NOTHING_FITTED) -> Parts:
        """Return gate, threshold, head and KV policy; the gate is evaluated at `exit_layer` only."""
        return Parts(Always(), Constant(0.0), LMHead(), KV_POLICIES[self.kv_policy], frozenset({self.exit_layer}))
