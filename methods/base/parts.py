"""The four parts of a method: gate, threshold, head and KV policy.

Shape suffixes: A active rows at a block, D model width, V vocabulary, N drafts, K columns of logits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from exitbench.methods.base.cost import Cost, Drafting
from exitbench.methods.base.protocols import DecoderCache, LogitBounds, ModelInterface
from exitbench.methods.base.view import BlockView, Reading


class Gate(ABC):
    """Base class of gates: a gate computes a confidence score at a block; higher is more confident.

    Examples:
        A gate whose score is the probability of the most probable token:

        >>> import torch
        >>> from exitbench.methods.base import Gate
        >>> class LargestProbability(Gate):
        ...     def score(self, view):
        ...         return torch.softmax(view.logits_AK.float(), dim=-1).amax(-1)
        ...
        ...     def score_sql(self, gate_blocks):
        ...         return "p1[l]"  # the same number in the columns of a probe
    """

    needs_history: ClassVar[bool] = False
    """True if `score` reads the states of earlier blocks (`BlockView.earlier`)."""
    looks_ahead: ClassVar[bool] = False
    """True if the gate reads the states of all blocks first (oracles): full depth runs, and no work is saved."""
    decides: ClassVar[bool] = True
    """True if a token's exit depends on its score.

    False if it depends on the gate blocks alone, as for a static exit.
    """
    reads_logits: ClassVar[bool] = True
    """True if scoring reads the head at every gate block; False if only the exit layer's head is read.

    It matters to the cost of blocks that have exit heads, and to certified heads, whose bounds are read only for scores
    of logits.
    """
    remembers: ClassVar[bool] = False
    """True if exits depend on earlier tokens of the same answer (`BlockView.answer_memory`, `ActiveRows.texts_A`)."""
    scores_numbers: ClassVar[bool] = False
    """True if the gate can also score a regression, whose head returns one number and no probabilities."""

    @property
    def chooses_from_logits(self) -> bool:
        """Whether `choose` reads only logits, seeds and positions.

        If so, one LM-head product serves all rows of the batch, whatever their exit layers. By default, it is False for
        a gate that overrides `choose`; such a gate can override this property too.
        """
        return type(self).choose is Gate.choose

    @abstractmethod
    def score(self, view: BlockView) -> Tensor:
        """Return the confidence of each active row of the batch, [A].

        Read `view.hidden_AD` [A, D], `view.logits_AK` [A, K] or `view.memory`, and change none of them in place except
        `memory`. The score is one floating-point number per row, as in the example of `Gate`.
        """

    def choose(self, view: BlockView) -> Tensor:
        """Return the token that each row of the batch emits, [A]; by default the most probable token."""
        return view.most_probable()

    def draft(self, view: BlockView) -> Tensor | None:
        """Return the tokens [A] that rows of ``view`` emit as they exit early, for gates that draft without logits.

        By default, return None: `choose` reads the tokens from logits.
        """
        return None

    def start_answers(self, n_rows: int, device: torch.device) -> dict[str, Tensor]:
        """Return `BlockView.answer_memory` for the start of answers: tensors by name, with ``n_rows`` rows each.

        A row's entries are kept from token to token, even if verification discards tokens in between.
        """
        return {}

    def remember(self, view: BlockView, token_A: Tensor) -> None:
        """Update ``view.answer_memory`` after the tokens of a step were chosen; called if `remembers` is True.

        Args:
            view: View of the rows that exited after ``view.block``. Replace entries of its `answer_memory` instead of
                changing them in place.
            token_A: The tokens that these rows emit.
        """

    def remember_cost(self, model: ModelInterface, exit_layer: int) -> Cost:
        """Return the cost of `remember`, which updates the answer memory, for one token; by default 0.

        Reads of the LM head by `remember` are included.
        """
        return Cost()

    def bounds(self, lower_AV: Tensor, upper_AV: Tensor) -> tuple[Tensor, Tensor]:
        """Return lower and upper bounds of `score`, [A] each, for all logits between ``lower_AV`` and ``upper_AV``.

        They include the rounding error of `score`. Only gates whose score depends on logits alone can have bounds. For
        these, the exact LM head is read only if the bounds leave an exit undecided.
        """
        raise NotImplementedError(f"{type(self).__name__} has no bounds")

    @property
    def is_bounded(self) -> bool:
        """Whether the gate has `bounds` of its own `score`, not bounds inherited from a gate with another score."""
        owner = next(cls for cls in type(self).__mro__ if "score" in vars(cls) or "bounds" in vars(cls))
        return owner is not Gate and "bounds" in vars(owner)

    def log_p(self, view: BlockView) -> Tensor:
        """Return natural log-probabilities of the distribution that `choose` emits from, [A, V]; by default the head's.

        Called instead of `choose` to score given tokens, if the head reads the whole vocabulary.
        """
        return torch.log_softmax(view.logits_AK.float(), dim=-1)

    @property
    def why_no_log_p(self) -> str | None:
        """Reason why given tokens cannot be scored by `log_p`; None if they can.

        By default, they cannot if a subclass overrides `choose` without `log_p`.
        """
        owner = next(cls for cls in type(self).__mro__ if "choose" in vars(cls) or "log_p" in vars(cls))
        return None if "log_p" in vars(owner) else "its gate chooses tokens in a way that gives them no probabilities"

    def score_sql(self, gate_blocks: Sequence[int]) -> str | None:
        """Return SQL for the score at block ``l``, over the columns of a probe; None if a probe lacks what it needs.

        A probe is the stored record of every block's predictions, one row per token. A replay uses the SQL to compute
        exit layers at other thresholds without running the model.

        Args:
            gate_blocks: The blocks at which the gate is evaluated, ascending.
        """
        return None

    def cost(self, model: ModelInterface, gate_blocks: Sequence[int]) -> Cost:
        """Return the cost of the gate for one token, without its reads of the LM head, which `Parts.cost` adds.

        Args:
            model: The model.
            gate_blocks: The blocks at which the gate was evaluated, ascending.
        """
        return Cost()


class Threshold(ABC):
    """Base class of threshold rules: a row exits if its score is greater than the rule's value at this block.

    Examples:
        A threshold that is higher for the first token of an answer:

        >>> from exitbench.methods.base import Threshold
        >>> class CarefulStart(Threshold):
        ...     def value(self, block, position, max_new_tokens):
        ...         return 0.99 if position == 1 else 0.9
        ...
        ...     def sql(self, max_new_tokens):
        ...         return "CASE WHEN position = 1 THEN 0.99 ELSE 0.9 END"
        >>> CarefulStart().value(block=3, position=1, max_new_tokens=64)
        0.99
    """

    @abstractmethod
    def value(self, block: int, position: int, max_new_tokens: int) -> float:
        """Return the value that a score must exceed at one block and position.

        Args:
            block: Blocks executed so far, 1..L-1.
            position: Position in the answer; 1 for the first generated token.
            max_new_tokens: Longest answer allowed, in tokens.
        """

    @abstractmethod
    def sql(self, max_new_tokens: int) -> str:
        """Return SQL for the value that the score must exceed, for replays, which compute exits without the model.

        It may use ``l``, the block number, and ``position``, the token's position in the answer.

        Args:
            max_new_tokens: Longest answer allowed, in tokens.
        """


class Head(ABC):
    """Base class of heads: a head turns hidden states into logits over the whole vocabulary or a part of it."""

    reads_vocabulary: ClassVar[bool] = True
    """True if every block is read out over the whole vocabulary with the model's own LM head, as in a probe."""
    reads_part: ClassVar[bool] = False
    """True if a block may be read out over a part of the vocabulary only; all other tokens then have no probability."""

    @abstractmethod
    def read(self, view: BlockView) -> Reading:
        """Return the logits of the view's batch rows; add the LM-head weight rows read to ``view.head_rows``."""

    @abstractmethod
    def earlier_logits(self, view: BlockView, block: int) -> Tensor:
        """Return the logits [A, K] after an earlier ``block``, for the token ids that were read at the view's block.

        Add the number of LM-head weight rows read to ``view.head_rows``.
        """

    def bounds(self, view: BlockView) -> LogitBounds | None:
        """Return bounds of the logits that `read` would return; None if the head has none at this block.

        Add the number of weight rows read from the LM head's int8 copy to ``view.head_rows_int8``.
        """
        return None

    @property
    def is_bounded(self) -> bool:
        """Whether the head computes bounds of the logits before the logits themselves."""
        return type(self).bounds is not Head.bounds

    def certified(self) -> Head | None:
        """Return the variant of this head that has `bounds`, or None if there are no bounds for this head's logits."""
        return None

    def logits_ahead(self, model: ModelInterface, ahead_LAD: Tensor) -> Tensor:
        """Return the logits after every block, [L, A, V]; by default from the model's own LM head.

        Args:
            model: The model.
            ahead_LAD: States after blocks 1..L, [L, A, D].
        """
        n_blocks, n_rows, width = ahead_LAD.shape
        return model.logits(ahead_LAD.reshape(n_blocks * n_rows, width)).view(n_blocks, n_rows, -1)

    def cost(self, model: ModelInterface, rows: float) -> Cost:
        """Return the cost of multiplying ``rows`` weight rows of the LM head; ``rows`` may be a mean over tokens."""
        numel = rows * model.d_model
        return Cost(matmul_flops=2 * numel, read_numel=numel)

    def cost_beyond_rows(self, model: ModelInterface, blocks: Sequence[int]) -> Cost:
        """Return the cost of reading out the given blocks, minus that of one whole LM-head read for each of them.

        It corrects `cost`, which counts each read-out as one of the LM head. It is nonzero for trained exit heads, and
        negative if they are smaller than the LM head.
        """
        return Cost()


class KVPolicy(ABC):
    """Base class of KV policies: a policy computes keys and values of the blocks that a token skipped."""

    name: ClassVar[str]
    deferred: ClassVar[Literal["project", "run", "rerun"] | None] = None
    """How an early-exited token is completed when a later token runs a block that it skipped.

    ``project``: its exit state is projected to the block's keys and values. ``run``: it runs the block together with
    the later token. ``rerun``: it runs again from block 1. None: it is completed as it exits.
    """
    runs_all_blocks: ClassVar[bool] = False
    """True if the skipped blocks still run before the next token."""
    verifies: ClassVar[bool] = False
    """True if early-exited tokens are drafts, which `rejects` judges after a later token ran all blocks with them."""
    evicts: ClassVar[bool] = False
    """True if later tokens do not attend to a position in the blocks that its token skipped."""
    max_drafts: int | None = None
    """Drafts of a row that may wait for verification: the next token runs all blocks. None: no limit."""
    verifies_tail: ClassVar[bool] = True
    """True if drafts that still wait when an answer ends are run and verified too; for policies that verify."""

    @abstractmethod
    def on_exit(self, cache: DecoderCache, block: int, hidden_AD: Tensor, rows_A: Tensor | None) -> Tensor | None:
        """Handle the skipped blocks of rows that exit after ``block`` < L.

        Args:
            cache: Operations on the keys and values of the token being decoded.
            block: Number of blocks that the rows ran.
            hidden_AD: States of the rows after that block.
            rows_A: Indices of the rows in the batch; None means every row.

        Returns:
            The state after block L if the token is to be emitted from it; None to emit from the exit state.
        """

    @abstractmethod
    def cost(self, model: ModelInterface, exit_layers: Sequence[int], block_costs: Sequence[Cost]) -> Cost:
        """Return the policy's cost for one answer, in addition to the blocks that its tokens ran before they exited.

        Args:
            model: The model.
            exit_layers: Exit layer of every token.
            block_costs: Cost of one block for each token.
        """

    def rejects(self, logits_NV: Tensor, token_N: Tensor) -> Tensor:
        """Return a mask [N], True for drafts that full depth rejects; called only for policies that verify.

        Args:
            logits_NV: Full-depth logits at the positions where the drafts were chosen.
            token_N: The drafts.
        """
        raise NotImplementedError(f"KV policy {self.name!r} verifies nothing")

    def verification_cost(
        self, model: ModelInterface, exit_layers: Sequence[int], block_costs: Sequence[Cost], drafting: Drafting
    ) -> Cost:
        """Return what verification adds to `cost` in one answer, without FLOPs of the LM head; by default 0.

        ``drafting`` has the drafts that verification discarded; other arguments as in `cost`.
        """
        return Cost()


@dataclass(frozen=True)
class Parts:
    """The four parts of a method for a decoder of a given depth, and the blocks at which its gate is evaluated."""

    gate: Gate
    threshold: Threshold
    head: Head
    kv_policy: KVPolicy
    blocks: frozenset[int]

    def gate_blocks(self, n_blocks: int) -> list[int]:
        """Return the blocks at which the gate is evaluated in a decoder of ``n_blocks`` blocks, ascending.

        The last block is never among them.
        """
        return sorted(block for block in self.blocks if block < n_blocks)

    @property
    def why_not_certified(self) -> str | None:
        """Reason why exits cannot be decided from bounds of the logits, without the exact LM head; None if they can."""
        if not self.gate.is_bounded:
            return "its gate's score cannot be bounded from intervals of the logits"
        if self.head.certified() is None:
            return "it reads something else than the model's own LM head over the whole vocabulary"
        return None

    def certified(self) -> Parts:
        """Return the same parts with a head that bounds logits before reading them; tokens and exits do not change."""
        head = self.head.certified()
        assert head is not None and self.gate.is_bounded, "called only if the gate is bounded"
        return replace(self, head=head)

    @property
    def runs_all_blocks(self) -> bool:
        """Whether every token runs all blocks, regardless of its exit layer."""
        return self.kv_policy.runs_all_blocks or self.gate.looks_ahead

    @property
    def may_read_skipped_keys(self) -> bool:
        """Whether a token may run a block that an earlier token skipped, and attend to the earlier token's keys there.

        It cannot if exits do not depend on scores and skipped blocks never run: all tokens then run the same blocks.
        """
        return self.gate.decides or self.runs_all_blocks

    @property
    def runs_fixed_blocks(self) -> bool:
        """Whether every token runs the same number of blocks, regardless of its content."""
        return self.runs_all_blocks or not (self.gate.decides or self.kv_policy.deferred)

    def cost(
        self,
        model: ModelInterface,
        exit_layers: Sequence[int],
        head_rows: Sequence[float],
        block_costs: Sequence[Cost],
        drafting: Drafting | None = None,
    ) -> Cost:
        """Return the cost of one answer: blocks, gates, read-outs, keys and values of skipped blocks, and verification.

        Args:
            model: The model.
            exit_layers: Exit layer of every token from a decode step; a first token read from prefill is left out.
            head_rows: Weight rows of the LM head multiplied for every token, as recorded in the trace. A first token
                read from prefill is included.
            block_costs: Cost of one block for each token.
            drafting: Drafts that verification discarded, for policies that verify.
        """
        blocks = sum((cost * layer for cost, layer in zip(block_costs, exit_layers, strict=True)), Cost())
        reading = self.head.cost(model, sum(head_rows))
        total = blocks + reading + self.kv_cost(model, exit_layers, block_costs)
        total += self.gating_cost(model, exit_layers, drafting)
        if drafting is None:
            return total
        return total + self.kv_policy.verification_cost(model, exit_layers, block_costs, drafting)

    def gating_cost(self, model: ModelInterface, exit_layers: Sequence[int], drafting: Drafting | None) -> Cost:
        """Return the gate's cost in one answer, discarded drafts included; arguments as in `cost`.

        LM-head reads are left out, since `cost` adds them from ``head_rows``.
        """
        evaluated = Counter(exit_layers)
        if drafting is not None:
            for layer, rejected, n_fed in zip(
                exit_layers, drafting.rejected_layers, drafting.n_fed_rejected, strict=True
            ):
                evaluated.update(rejected)
                # If one draft was not fed, it would have ended the answer: no token ran alongside it.
                evaluated[layer] -= len(rejected) - n_fed
        return sum((self.evaluation_cost(model, layer) * times for layer, times in evaluated.items()), Cost())

    def kv_cost(self, model: ModelInterface, exit_layers: Sequence[int], block_costs: Sequence[Cost]) -> Cost:
        """Return the KV policy's cost in one answer; zero if no token reads the keys and values that it writes.

        Arguments as in `cost`.
        """
        if self.kv_policy.deferred is None and not self.may_read_skipped_keys:
            return Cost()
        return self.kv_policy.cost(model, exit_layers, block_costs)

    def evaluation_cost(self, model: ModelInterface, exit_layer: int) -> Cost:
        """Return the gate's cost for one token: all gate blocks up to its exit layer, and updates of answer memory.

        LM-head reads of `Gate.score` are left out. What trained exit heads cost more than the LM head, or less, is
        added (`Head.cost_beyond_rows`).
        """
        gate_blocks = [block for block in self.gate_blocks(model.n_blocks) if block <= exit_layer]
        read = gate_blocks if self.gate.reads_logits else [exit_layer]
        remembering = self.gate.remember_cost(model, exit_layer)
        return self.gate.cost(model, gate_blocks) + remembering + self.head.cost_beyond_rows(model, read)

    def score_sql(self, n_blocks: int) -> str | None:
        """Return SQL for the gate's score at block ``l``, over the columns of a probe; None if a probe lacks columns.

        A probe is the stored record of every block's predictions, one row per token.
        """
        return self.gate.score_sql(self.gate_blocks(n_blocks)) if self.head.reads_vocabulary else None

    def exit_layer_sql(self, n_blocks: int, max_new_tokens: int, score_sql: str, first_position: int = 1) -> str:
        """Return SQL for a token's exit layer, over the columns of a probe (stored predictions of every block).

        Args:
            n_blocks: Number of decoder blocks, L.
            max_new_tokens: Longest answer allowed, in tokens.
            score_sql: SQL for the score at block ``l``.
            first_position: The first position whose token may exit early; 2 if the first token is read from prefill.
        """
        # The decode loop compares in the score's precision, so the threshold is rounded to it here too.
        test = f"({score_sql})::FLOAT > ({self.threshold.sql(max_new_tokens)})::FLOAT"
        gate_blocks = f"{self.gate_blocks(n_blocks)}::INTEGER[]"
        exit_layer = f"coalesce(list_filter({gate_blocks}, lambda l: {test})[1], {n_blocks})"
        if first_position == 1:
            return exit_layer
        return f"CASE WHEN position < {first_position} THEN {n_blocks} ELSE {exit_layer} END"


def blocks_from(first: int, n_blocks: int, every: int = 1) -> frozenset[int]:
    """Return the block numbers first, first + every, ... below ``n_blocks``, at which a gate is to be evaluated."""
    return frozenset(range(first, n_blocks, every))
