"""FREE: tokens exit after S (shallow) or L blocks (deep); a deep token's pass also completes earlier shallow tokens."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from exitbench.methods.base import (
    NOTHING_FITTED,
    FitData,
    Fitted,
    KVPolicy,
    Method,
    Parts,
    check_block,
    param,
)
from exitbench.methods.beta_mixture import adaptive_threshold
from exitbench.methods.gates import SoftmaxMargin
from exitbench.methods.heads import LMHead
from exitbench.methods.kv_policies import KV_POLICIES, ROLLBACKS
from exitbench.methods.offline import score_states
from exitbench.methods.registry import register
from exitbench.methods.thresholds import Constant


@register
@dataclass(frozen=True)
class Free(Method):
    """Exit after S blocks when the two largest token probabilities differ by more than the threshold, else after L.

    The adaptive rules fit the threshold on the train split (`beta_mixture.py`) and then keep it, so that an answer
    depends on its document alone. FREE fits the threshold again before every sequence, on all tokens decoded so far.
    """

    name: ClassVar[str] = "free"
    source: ClassVar[str] = "FREE sections 4.1-4.3"

    exit_layer: int = param(2, "S: number of blocks run for a shallow token", low=1)
    threshold: float = param(
        0.9, "lambda: exit if the margin > threshold; initial value of adaptive rules", low=0.0, high=1.0
    )
    rule: str = param(
        "constant",
        "constant: threshold; adaptive: fitted on the train split by a Beta mixture; adaptive-code: the same with the "
        "errors of the published code",
        choices=("constant", "adaptive", "adaptive-code"),
    )
    kv_policy: str = param(
        "sync-parallel",
        "skipped blocks run with the next deep token, or project the shallow state then, or run and are verified "
        "(-code: all but the shallow tokens that end an answer, as published)",
        choices=("sync-parallel", "state-copy-lazy", *ROLLBACKS),
    )
    rollback: float = param(
        2.0, "sync-parallel-rollback: largest cross-entropy of a shallow token under the full model, nats", low=0.0
    )

    def check(self, n_blocks: int) -> None:
        """Raise UserError if the shallow exit is deeper than the decoder."""
        check_block(self, "exit_layer", n_blocks)

    def parts(self, n_blocks: int, fitted: Mapping[str, Tensor] = NOTHING_FITTED) -> Parts:
        """Return gate, threshold, head and KV policy; the gate is the softmax margin, at the shallow exit only.

        No token exits early under an adaptive rule whose threshold has not been fitted.
        """
        level = self.threshold
        if self.rule != "constant":
            fitted_level = fitted.get("threshold")
            level = float("inf") if fitted_level is None else float(fitted_level)
        rollback = ROLLBACKS.get(self.kv_policy)
        policy: KVPolicy = KV_POLICIES[self.kv_policy] if rollback is None else rollback(self.rollback)
        return Parts(SoftmaxMargin(), Constant(level), LMHead(), policy, frozenset({self.exit_layer}))

    def score_params(self) -> dict[str, Any]:
        """Return the exit layer, by the parameter's name; no other parameter affects the gate's score."""
        return {"exit_layer": self.exit_layer}

    def fit_params(self) -> dict[str, Any]:
        """Return the parameters that affect the fitted threshold of the adaptive rules; empty for the constant rule."""
        if self.rule == "constant":
            return {}
        return {"exit_layer": self.exit_layer, "threshold": self.threshold, "rule": self.rule}

    def fit(self, data: FitData, on_progress: Callable[[float], None]) -> Fitted:
        """Fit the threshold to the tokens' margins at the shallow exit and their agreement with full depth.

        The result is the tensor ``threshold``, a number. It is used by the adaptive rules only.
        """
        form: Literal["correct", "code"] = "code" if self.rule == "adaptive-code" else "correct"
        level = self.threshold
        if self.exit_layer < data.model.n_blocks:
            scores_LN, emitted_LN = score_states(self.parts(data.model.n_blocks), data.model, data.states_LND)
            score_N = scores_LN[self.exit_layer - 1]
            agrees_N = emitted_LN[self.exit_layer - 1] == data.final_token_N
            if form == "code":
                used_N = in_parallel_passes(score_N > self.threshold, data.document_N)
                score_N, agrees_N = score_N[used_N], agrees_N[used_N]
            level = adaptive_threshold(score_N, agrees_N, self.threshold, form)
        on_progress(1.0)
        return Fitted({"threshold": torch.tensor(level, dtype=torch.float64)})


def in_parallel_passes(shallow_N: Tensor, document_N: Tensor) -> Tensor:
    """Return a mask [N], True for the tokens that deep passes run together: waiting shallow tokens and one deep token.

    False are deep tokens with no shallow token waiting for them, and shallow tokens at the end of a document. The
    published code excludes these when it fits the threshold.

    Args:
        shallow_N: True if the token exits early; tokens are in the order of decoding.
        document_N: Index of the token's document.
    """
    used = [False] * len(shallow_N)
    waiting: list[int] = []
    before = None
    for at, (is_shallow, document) in enumerate(zip(shallow_N.tolist(), document_N.tolist(), strict=True)):
        waiting = waiting if document == before else []
        before = document
        if is_shallow:
            waiting.append(at)
            continue
        for index in [*waiting, at] if waiting else []:
            used[index] = True
        waiting = []
    return torch.tensor(used, dtype=torch.bool, device=shallow_N.device)
