"""Exit heads: exit on the confidence of read-outs that were trained for blocks before the last."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from torch import Tensor

from exitbench.errors import UserError
from exitbench.methods.base import BlockView, FitData, Fitted, Head, param
from exitbench.methods.entropy import InversePerplexity
from exitbench.methods.gated import Thresholded
from exitbench.methods.gates import OneSoftmax, SoftmaxMargin, margin
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
class HeadConfidence(OneSoftmax, Sampling):
    """Gate whose score is a confidence measure of the exit head's logits.

    Attributes:
        confidence: Name of the measure, a key of `CONFIDENCES`.
    """

    confidence: str = "breaking-ties"

    def score(self, view: BlockView) -> Tensor:
        """Return the selected confidence measure of each active row, [A]."""
        return CONFIDENCES[self.confidence](view)


@register
@dataclass(frozen=True)
class TrainedExitHeads(Thresholded):
    """Exit at the first trained exit head whose confidence exceeds the threshold, and emit that head's token.

    The confidence is the margin p_(1) - p_(2) (breaking ties), exp(-H) of the entropy H in nats, or p_(1). In published
    code, it is the margin or the maximum of the raw logits, whose scale differs between heads. Thresholds are on the
    scale of the confidence: in [0, 1] for the first three, any number for raw logits.
    """

    name: ClassVar[str] = "heads"
    source: ClassVar[str] = "HEADS; kind lens: tuned lens"
    head_class: ClassVar[type[Head]] = TrainedHead
    needs_exit_heads: ClassVar[bool] = True

    threshold: float = param(0.9, "exit if the confidence > threshold, on the scale of the confidence")
    levels: tuple[float, ...] = param((), "thresholds of blocks 1..L-1, for rule per-block")
    exit_blocks: tuple[int, ...] = param((), "exit heads to use, by block; empty: all of the checkpoint", low=1)
    confidence: str = param("breaking-ties", "confidence of a head's logits", choices=tuple(CONFIDENCES))
    temperature: float = param(0.0, "tokens are drawn from softmax(logits / temperature); 0: greedy", low=0.0)

    def bound_to(self, exit_blocks: tuple[int, ...]) -> Self:
        """Return the method with `exit_blocks` set: the requested blocks, or by default all blocks with an exit head.

        Args:
            exit_blocks: Blocks after which the checkpoint has trained exit heads; () if it has none.

        Raises:
            UserError: The checkpoint has no exit heads, or lacks a requested one.
        """
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
        """Raise UserError if a requested exit head is at the last block or beyond."""
        super().check(n_blocks)
        if self.exit_blocks and max(self.exit_blocks) >= n_blocks:
            raise UserError(
                f"{self.name}.exit_blocks has {max(self.exit_blocks)}; allowed: between 1 and {n_blocks - 1}, "
                "before the last block of the model."
            )

    def blocks(self, n_blocks: int) -> frozenset[int]:
        """Return the blocks with an exit head in use, at which the gate is evaluated."""
        return frozenset(self.exit_blocks)

    def gate(self, fitted: Mapping[str, Tensor]) -> HeadConfidence:
        """Return the gate that scores the selected confidence measure."""
        return HeadConfidence(self.temperature, self.confidence)

    def score_params(self) -> dict[str, Any]:
        """Return the parameters that affect the score, by name; the sampling temperature does not."""
        return {name: value for name, value in super().score_params().items() if name != "temperature"}

    def fit(self, data: FitData, on_progress: Callable[[float], None]) -> Fitted:
        """For rule epsilon, return each head's scores of tokens, and whether its own token is full depth's.

        The tokens are greedy at any sampling temperature. Under other threshold rules, nothing is fitted.
        """
        return super(TrainedExitHeads, replace(self, temperature=0.0)).fit(data, on_progress)
