"""CALM with the softmax measure."""

from dataclasses import dataclass
from typing import ClassVar, Literal, cast

from exitbench.methods.base import Method, Parts, Threshold, blocks_from, check_block, param
from exitbench.methods.gates import SoftmaxMargin
from exitbench.methods.heads import LMHead
from exitbench.methods.kv_policies import StateCopy
from exitbench.methods.registry import register
from exitbench.methods.thresholds import Constant, PositionDecayed


@register
@dataclass(frozen=True)
class CalmSoftmax(Method):
    """Exit when the two most probable tokens differ by more than the threshold; state copying."""

    name: ClassVar[str] = "calm-softmax"
    source: ClassVar[str] = "CALM section 3.5; methods.md 1.2"

    threshold: float = param(0.9, "lambda: exit where p_(1) - p_(2) > threshold", low=0.0, high=1.0)
    decay: str = param(
        "code",
        "how the threshold falls with the position: none (FREE's scripts), code (t5x and FREE) or paper (CALM's text)",
        choices=("none", "code", "paper"),
    )
    temperature: float = param(4.0, "speed of the decay over the longest answer allowed", low=0.0)
    min_exit: int = param(1, "first block at which the gate is asked", low=1)

    def check(self, n_blocks: int) -> None:
        """The first block must exist."""
        check_block(self, "min_exit", n_blocks)

    def parts(self, n_blocks: int) -> Parts:
        """The margin gate over the model's own head."""
        threshold: Threshold = Constant(self.threshold)
        if self.decay != "none":
            decay = cast(Literal["code", "paper"], self.decay)
            threshold = PositionDecayed(self.threshold, self.temperature, decay)
        return Parts(SoftmaxMargin(), threshold, LMHead(), StateCopy(), blocks_from(self.min_exit, n_blocks))
