"""Shared parameters of confidence-gated methods: threshold rule, gate blocks, head and KV policy."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

from torch import Tensor

from exitbench.errors import UserError
from exitbench.methods.base import (
    NOTHING_FITTED,
    FitData,
    Fitted,
    Gate,
    Head,
    Method,
    Parts,
    Threshold,
    blocks_from,
    check_block,
    param,
)
from exitbench.methods.heads import Keeping, LMHead, PrunedHead, Schedule
from exitbench.methods.kv_policies import GATE_POLICIES, KV_POLICIES
from exitbench.methods.offline import epsilon_thresholds, score_states
from exitbench.methods.sampling import Sampling
from exitbench.methods.thresholds import Constant, PerBlock, PositionDecayed

HELD_OUT = 0.2
"""Share of the documents held out from fitting; the loss is reported on them, and rule epsilon scores them."""
_EPSILON_SCORES, _EPSILON_AGREES = "epsilon_scores", "epsilon_agrees"
"""Names of what rule epsilon fits: scores of tokens, and whether they agree with full depth, at blocks 1..L-1."""


@dataclass(frozen=True)
class Skipping(Method):
    """Base class of methods whose tokens may skip blocks, with a policy for the keys and values of skipped blocks."""

    kv_policy: str = param(
        "state-copy", "policy that computes keys and values of skipped blocks", choices=tuple(KV_POLICIES)
    )


@dataclass(frozen=True)
class Gating(Skipping):
    """Base class of methods that evaluate a gate at some of the blocks and compare its score with a threshold."""

    head_class: ClassVar[type[Head]] = LMHead

    kv_policy: str = param(
        "state-copy",
        "policy that computes keys and values of skipped blocks; under self-speculation, the full model verifies up to "
        "6 tokens that exited early, and the answer is that of full depth",
        choices=tuple(GATE_POLICIES),
    )

    def check(self, n_blocks: int) -> None:
        """Raise UserError if the KV policy verifies drafts, but the head is pruned or tokens are sampled.

        Verification compares drafts with the greedy choice over the whole vocabulary.
        """
        super().check(n_blocks)
        parts = self.parts(n_blocks)
        if not parts.kv_policy.verifies:
            return
        if parts.head.reads_part:
            raise UserError(f"{self.name}: kv_policy = {self.kv_policy!r} needs all logits; use head = 'full'.")
        if isinstance(parts.gate, Sampling) and parts.gate.temperature > 0:
            raise UserError(f"{self.name}: kv_policy = {self.kv_policy!r} is greedy; use temperature = 0.")

    @abstractmethod
    def blocks(self, n_blocks: int) -> frozenset[int]:
        """Return the blocks of a decoder of ``n_blocks`` blocks at which the gate is evaluated."""

    @abstractmethod
    def gate(self, fitted: Mapping[str, Tensor]) -> Gate:
        """Return the gate, given the tensors from `fit`; these may be missing if `Gate.score` is never called."""

    @abstractmethod
    def threshold_rule(self, fitted: Mapping[str, Tensor]) -> Threshold:
        """Return the threshold rule with which the gate's score is compared."""

    def make_head(self) -> Head:
        """Return the head; by default of the class `head_class`."""
        return self.head_class()

    def parts(self, n_blocks: int, fitted: Mapping[str, Tensor] = NOTHING_FITTED) -> Parts:
        """Return gate, threshold, head and KV policy; the gate is evaluated at the blocks that `blocks` returns."""
        policy, blocks = GATE_POLICIES[self.kv_policy], self.blocks(n_blocks)
        return Parts(self.gate(fitted), self.threshold_rule(fitted), self.make_head(), policy, blocks)


@dataclass(frozen=True)
class PeriodicGating(Gating):
    """Base class of methods that evaluate a gate at every n-th block."""

    min_exit: int = param(1, "first block at which the gate is evaluated", low=1)
    every: int = param(1, "evaluate the gate at every n-th block from min_exit on", low=1)

    def check(self, n_blocks: int) -> None:
        """Raise UserError if the first gate block is deeper than the decoder."""
        super().check(n_blocks)
        check_block(self, "min_exit", n_blocks)

    def blocks(self, n_blocks: int) -> frozenset[int]:
        """Return the gate blocks min_exit, min_exit + every, ... below ``n_blocks``."""
        return blocks_from(self.min_exit, n_blocks, self.every)


@dataclass(frozen=True)
class Thresholded(Gating):
    """Base class of methods whose threshold is constant, given per block, or fitted per block."""

    threshold: float = param(0.9, "lambda: exit if the score > threshold", low=0.0, high=1.0)
    rule: str = param(
        "constant",
        "constant: threshold; per-block: levels; epsilon: one threshold per block, fitted on the train split so that "
        "at least a share epsilon of the tokens at or above it agree with full depth (HEADS)",
        choices=("constant", "per-block", "epsilon"),
    )
    levels: tuple[float, ...] = param((), "thresholds of blocks 1..L-1, for rule per-block", low=0.0)
    epsilon: float = param(0.95, "required agreement, for rule epsilon", low=0.0, high=1.0)

    def check(self, n_blocks: int) -> None:
        """Raise UserError if `rule` is per-block and `levels` does not have one threshold per block 1..L-1."""
        super().check(n_blocks)
        if self.rule == "per-block" and len(self.levels) != n_blocks - 1:
            raise UserError(f"{self.name}.levels has {len(self.levels)} values; {n_blocks} blocks need {n_blocks - 1}.")

    def level(self, threshold: float) -> float:
        """Convert a threshold from the unit of the parameter to the scale of the score; by default, unchanged."""
        return threshold

    def threshold_rule(self, fitted: Mapping[str, Tensor]) -> Threshold:
        """Return the threshold rule that `rule` selects: constant, given per block, or fitted per block."""
        if self.rule == "epsilon":
            if _EPSILON_SCORES not in fitted:
                return PerBlock(())
            return PerBlock(epsilon_thresholds(fitted[_EPSILON_SCORES], fitted[_EPSILON_AGREES], self.epsilon))
        if self.rule == "per-block":
            return PerBlock(tuple(self.level(threshold) for threshold in self.levels))
        return Constant(self.level(self.threshold))

    def unused_params(self) -> frozenset[str]:
        """Return the names of parameters that the selected threshold rule ignores."""
        looked_at = {"constant": "threshold", "per-block": "levels", "epsilon": "epsilon"}
        return super().unused_params() | {name for rule, name in looked_at.items() if rule != self.rule}

    def score_params(self) -> dict[str, Any]:
        """Return the parameters that affect the gate's score, by name.

        These are all except those of the threshold rule and the KV policy.
        """
        rule = {"threshold", "rule", "levels", "epsilon", "kv_policy"}
        return {name: value for name, value in self.params().items() if name not in rule}

    def gate_fit_params(self) -> dict[str, Any]:
        """Return the parameters that affect the training of the gate, by name; empty if the gate is not trained."""
        return {}

    def fit_gate(self, train_data: FitData, held_out_data: FitData, on_progress: Callable[[float], None]) -> Fitted:
        """Train the gate; return its weights by name and a training curve. By default, train nothing.

        The curve includes the loss on ``held_out_data``. ``on_progress`` takes the finished share of the work, 0 to 1.
        """
        return Fitted({})

    def fit_params(self) -> dict[str, Any]:
        """Return the parameters that affect the trained gate and, for rule epsilon, its scores, by name.

        `epsilon` is not one of them: scores are stored, and thresholds for any value of it follow from them.
        """
        gate_params = self.gate_fit_params()
        if self.rule != "epsilon":
            return gate_params
        return {**self.score_params(), "rule": self.rule, "epsilon": 0.0}  # not the default, which a fit once was for

    def fit(self, data: FitData, on_progress: Callable[[float], None]) -> Fitted:
        """Train the gate, if it is trainable; then, for rule epsilon, score tokens, from which thresholds follow.

        The tokens are of the documents held out from the gate's training, or of all if there was none.
        """
        if not self.gate_fit_params():
            train_data, held_out_data, fitted = data, data, Fitted({})
        else:
            train_data, held_out_data = data.split(HELD_OUT)
            fitted = self.fit_gate(train_data, held_out_data, on_progress)
        if self.rule != "epsilon":
            return fitted
        parts = self.parts(data.model.n_blocks, fitted.tensors)
        scores_LN, emitted_LN = score_states(parts, data.model, held_out_data.states_LND)
        agrees_LN = emitted_LN == held_out_data.final_token_N
        on_progress(1.0)
        scored = {_EPSILON_SCORES: scores_LN[:-1], _EPSILON_AGREES: agrees_LN[:-1]}
        return Fitted({**fitted.tensors, **scored}, fitted.curve)


@dataclass(frozen=True)
class Gated(Thresholded, PeriodicGating):
    """Base class of methods with a gate at every n-th block, and thresholds that may decay over the answer's tokens."""

    decay: str = param(
        "none",
        "decay of the threshold with the position: none (run by the code of t5x and FREE), code (formula of t5x, run "
        "by MEE) or paper (text of CALM)",
        choices=("none", "code", "paper"),
    )
    temperature: float = param(4.0, "speed of the decay over the longest answer allowed", low=0.0)

    def threshold_rule(self, fitted: Mapping[str, Tensor]) -> Threshold:
        """Return the threshold rule that `rule` and `decay` select; fitted thresholds do not decay."""
        rule = super().threshold_rule(fitted)
        if self.decay == "none" or self.rule == "epsilon":
            return rule
        return PositionDecayed(rule, self.temperature, cast(Literal["code", "paper"], self.decay))

    def unused_params(self) -> frozenset[str]:
        """Return the names of parameters that the selected threshold rule and decay ignore."""
        if self.rule == "epsilon":
            return super().unused_params() | {"decay", "temperature"}
        return super().unused_params() | ({"temperature"} if self.decay == "none" else set())

    def score_params(self) -> dict[str, Any]:
        """Return the parameters that affect the gate's score, by name.

        These are all except those of the threshold rule, its decay, and the KV policy.
        """
        return {name: value for name, value in super().score_params().items() if name not in ("decay", "temperature")}


@dataclass(frozen=True)
class SoftmaxGating(PeriodicGating):
    """Base class of methods whose gate reads logits, of the whole vocabulary or a part of it (pruned head)."""

    head: str = param(
        "full",
        "vocabulary read at gate blocks: full, or only the best ids of the first gate block (pruned-*)",
        choices=(
            "full",
            "pruned-fixed",
            "pruned-decaying",
            "pruned-decaying-idsorted",
            "pruned-adaptive",
            "pruned-adaptive-code",
        ),
    )
    k_first: int = param(35000, "pruned heads: k_1, number of ids kept at the first block; it falls with depth", low=1)
    k_min: int = param(250, "pruned heads: minimum number of ids kept", low=1)
    k_schedule: str = param(
        "inverse", "pruned heads: inverse (PRUNE) or constant (k_1)", choices=("inverse", "constant")
    )

    def check(self, n_blocks: int) -> None:
        """Raise UserError if k_min is greater than k_first."""
        super().check(n_blocks)
        if self.k_min > self.k_first:
            raise UserError(f"{self.name}.k_min = {self.k_min} is above k_first = {self.k_first}.")

    def make_head(self) -> Head:
        """Return the model's LM head, whole or pruned as the parameter `head` selects."""
        if self.head == "full":
            return LMHead()
        keeping = cast(Keeping, self.head.removeprefix("pruned-"))
        return PrunedHead(keeping, self.k_first, self.k_min, cast(Schedule, self.k_schedule))


@dataclass(frozen=True)
class SoftmaxGated(SoftmaxGating, Gated):
    """Base class of methods with a threshold rule, whose gate reads logits of the whole vocabulary or a part of it."""
