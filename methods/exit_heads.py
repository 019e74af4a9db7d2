"""Exit-head gate: exit on the confidence of heads trained for it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from torch import Tensor

from exitbench.errors import UserError
from exitbench.methods.base import BlockView, Cost, FitData, Fitted, Head, ModelInterface, param
from exitbench.methods.entropy import InversePerplexity
from exitbench.methods.gated import Thresholded
from exitbench.methods.gates import SoftmaxMargin, margin, softmax_cost
from exitbench.methods.heads import TrainedHead
from exitbench.methods.max_prob import LargestProbability
from exitbench.methods.registry import register
from exitbench.methods.sampling import Sampling

CONFIDENCES: Mapping[str, Callable[[BlockView], Tensor]] = {
    "breaking-ties": SoftmaxMargin().score,
    "entropy": InversePerplexity().score,
    "max-prob": LargestProbability().score,
    "breaking-ties-logits": lambda view: margin(view.logits_AK.float()),
    "max-logit": lambda view: view.logits_AK.float().amax(-1),
}


@dataclass(frozen=True)
class HeadConfidence(Sampling):
    """A confidence of the head's logits.

    Attributes:
        confidence: A name of `CONFIDENCES`.
    """

    confidence: str = "breaking-ties"

    def score(self, view: BlockView) -> Tensor:
        """Return the confidence [A]."""
        return CONFIDENCES[self.confidence](view)

    def cost(self, model: ModelInterface, gate_blocks: Sequence[int]) -> Cost:
        """A softmax a block."""
        return softmax_cost(model, len(gate_blocks))


@register
@dataclass(frozen=True)
class TrainedExitHeads(Thresholded):
    """Exit at a trained head whose confidence is above the threshold; emit that head's token.

    The confidence is a margin p_(1) - p_(2) (breaking ties), exp(-H) of the entropy H in nats, or p_(1); published code
    takes margin or maximum of the raw logits, whose scale is the head's own. A score is compared as it is: thresholds
    of the first three lie in [0, 1], those of logits anywhere.
    """

    name: ClassVar[str] = "heads"
    source: ClassVar[str] = "HEADS; kind lens: tuned lens"
    needs_exit_heads: ClassVar[bool] = True

    threshold: float = param(0.9, "exit if the confidence > threshold, on the scale of the confidence")
    levels: tuple[float, ...] = param((), "thresholds of blocks 1..L-1, for rule per-block")
    exit_blocks: tuple[int, ...] = param((), "exit heads to use, by block; empty: all of the checkpoint", low=1)
    confidence: str = param("breaking-ties", "confidence of a head's logits", choices=tuple(CONFIDENCES))
    temperature: float = param(0.0, "tokens are drawn from softmax(logits / temperature); 0: greedy", low=0.0)

    def bound_to(self, exit_blocks: tuple[int, ...]) -> Self:
        """All heads, or the requested ones that exist."""
        if not exit_blocks:
            raise UserError(
                f"method {self.name!r} needs a checkpoint with trained exit heads, and this one has none. "
                "Train them with a recipe that has an [exit_heads] table."
            )
        if missing := sorted(set(self.exit_blocks) - set(exit_blocks)):
            raise UserError(
                f"{self.name}.exit_blocks has {missing[0]}, where the checkpoint has no exit head; "
                f"allowed: {', '.join(map(str, exit_blocks))}."
            )
        return replace(self, exit_blocks=self.exit_blocks or exit_blocks)

    def check(self, n_blocks: int) -> None:
        """A head lies before the last block."""
        super().check(n_blocks)
        if self.exit_blocks and max(self.exit_blocks) >= n_blocks:
            raise UserError(
                f"{self.name}.exit_blocks has {max(self.exit_blocks)}; allowed: between 1 and {n_blocks - 1}, "
                "before the last block of the model."
            )

    def blocks(self, n_blocks: int) -> frozenset[int]:
        """Return the blocks with a head."""
        return frozenset(self.exit_blocks)

    def make_head(self) -> Head:
        """The trained heads."""
        return TrainedHead()

    def gate(self, fitted: Mapping[str, Tensor]) -> HeadConfidence:
        """The confidence."""
        return HeadConfidence(self.temperature, self.confidence)

    def score_params(self) -> dict[str, Any]:
        """The token drawn does not change the score."""
        return {name: value for name, value in super().score_params().items() if name != "temperature"}

    def fit(self, data: FitData, on_progress: Callable[[float], None]) -> Fitted:
        """Thresholds from the agreement of most probable tokens, however tokens are drawn later."""
        return super(TrainedExitHeads, replace(self, temperature=0.0)).fit(data, on_progress)
