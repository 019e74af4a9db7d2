"""The four parts of a method: gate, threshold, head and KV policy.

Shape suffixes: A rows still running at a block, D model width, V vocabulary, N drafts, K columns of logits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from exitbench.methods.base.cost import Cost, Drafting
from exitbench.methods.base.protocols import DecoderCache, LogitBounds, ModelInterface
from exitbench.methods.base.view import BlockView, Reading


class Gate(ABC):
    """Computes a confidence score at a block; higher is more confident."""

    needs_history: ClassVar[bool] = False
    """Whether scoring reads the states of earlier blocks (`BlockView.earlier`)."""
    looks_ahead: ClassVar[bool] = False
    """Whether the gate must see all blocks first (oracles): the full depth is run, nothing is saved."""
    decides: ClassVar[bool] = True
    """Whether a token's exit depends on its score; False: on the gate blocks alone."""
    reads_logits: ClassVar[bool] = True
    """Whether blocks that have heads of their own are read out for the score; else the exit layer's alone is."""
    scores_numbers: ClassVar[bool] = False
    """Whether it can score a regression too, whose head gives one number and no probabilities."""

    @property
    def chooses_from_logits(self) -> bool:
        """Return whether `choose` reads logits, seeds and positions only.

        Rows that left after different blocks are then read out together. False for every other `choose` that does not
        say so itself.
        """
        return type(self).choose is Gate.choose

    @abstractmethod
    def score(self, view: BlockView) -> Tensor:
        """Return the confidence of each running row, [A]."""

    def choose(self, view: BlockView) -> Tensor:
        """Return the token that each row emits, [A]: by default the most probable one."""
        return view.most_probable()

    def bounds(self, lower_AV: Tensor, upper_AV: Tensor) -> tuple[Tensor, Tensor]:
        """Return lower and upper bounds of `score`, [A] each, for any logits within the given intervals.

        They include the rounding error of `score` itself. Only gates that read nothing but logits can have bounds; such
        gates can be evaluated without reading the LM head (`is_bounded`).
        """
        raise NotImplementedError(f"{type(self).__name__} has no bounds")

    @property
    def is_bounded(self) -> bool:
        """Return whether `bounds` belongs to this `score`."""
        owner = next(cls for cls in type(self).__mro__ if "score" in vars(cls) or "bounds" in vars(cls))
        return owner is not Gate and "bounds" in vars(owner)

    def log_p(self, view: BlockView) -> Tensor:
        """Return natural logarithms of the distribution that `choose` emits from, [A, V]: by default the head's own.

        Called for given tokens instead of `choose`, if the view's head reads the whole vocabulary.
        """
        return torch.log_softmax(view.logits_AK.float(), dim=-1)

    @property
    def why_no_log_p(self) -> str | None:
        """Return why given tokens have no `log_p`: a subclass overrides `choose` alone; None if they have one."""
        owner = next(cls for cls in type(self).__mro__ if "choose" in vars(cls) or "log_p" in vars(cls))
        return None if "log_p" in vars(owner) else "its gate chooses tokens in a way that gives them no probabilities"

    def score_sql(self, gate_blocks: Sequence[int]) -> str | None:
        """The score at block ``l`` as SQL over one row of a probe, for replays; None if a probe cannot tell.

        Args:
            gate_blocks: The blocks at which the gate is evaluated, ascending.
        """
        return None

    def cost(self, model: ModelInterface, gate_blocks: Sequence[int]) -> Cost:
        """Work of one token whose gate was evaluated at these blocks (ascending), without rows of the LM head."""
        return Cost()


class Threshold(ABC):
    """Threshold of a gate: a row exits where score > value."""

    @abstractmethod
    def value(self, block: int, position: int, max_new_tokens: int) -> float:
        """Return the threshold for this block and position (1 = first generated token)."""

    @abstractmethod
    def sql(self, max_new_tokens: int) -> str:
        """Return the threshold as SQL over the probe columns ``position`` and the block ``l``."""


class Head(ABC):
    """Turns states into logits, of the whole vocabulary or of a part of it."""

    reads_vocabulary: ClassVar[bool] = True
    """Whether every block is read out over the whole vocabulary with the model's own head (as a probe does)."""
    reads_part: ClassVar[bool] = False
    """Whether a block may be read out over a part of the vocabulary only: other tokens have no probability then."""

    @abstractmethod
    def read(self, view: BlockView) -> Reading:
        """Return logits at this block, and add the rows multiplied to ``view.head_rows``."""

    @abstractmethod
    def earlier_logits(self, view: BlockView, block: int) -> Tensor:
        """Return logits [A, K] of an earlier block over the ids read at this one; counts rows too."""

    def bounds(self, view: BlockView) -> LogitBounds | None:
        """Return bounds of what `read` would give, and count ``view.head_rows_int8``; None where it is read at once."""
        return None

    @property
    def is_bounded(self) -> bool:
        """Return whether bounds of the logits are read before the logits."""
        return type(self).bounds is not Head.bounds

    def certified(self) -> Head | None:
        """Return the same head with `bounds`; None where the model cannot bound what it reads."""
        return None

    def logits_ahead(self, model: ModelInterface, ahead_LAD: Tensor) -> Tensor:
        """Return logits [L, A, V] of the states after every block: by default with the model's own head."""
        n_blocks, n_rows, width = ahead_LAD.shape
        return model.logits(ahead_LAD.reshape(n_blocks * n_rows, width)).view(n_blocks, n_rows, -1)

    def cost(self, model: ModelInterface, rows: float) -> Cost:
        """Return the work of multiplying n rows of the head."""
        numel = rows * model.d_model
        return Cost(matmul_flops=2 * numel, read_numel=numel)

    def cost_beyond_rows(self, model: ModelInterface, blocks: Sequence[int]) -> Cost:
        """Work of reading blocks beyond as many rows of the LM head; less than 0 if it is less."""
        return Cost()


class KVPolicy(ABC):
    """Policy for the keys and values of the blocks that a token skipped."""

    name: ClassVar[str]
    deferred: ClassVar[Literal["project", "run", "rerun"] | None] = None
    """How a deferred token is completed when a later one runs a block that it skipped: its exit state is projected to
    keys and values; or it runs the block together with the later one; or it runs again from block 1 on."""
    runs_all_blocks: ClassVar[bool] = False
    """Whether the skipped blocks are run after all, before the next token."""
    verifies: ClassVar[bool] = False
    """Whether a waiting token is kept only if `rejects` allows it, once a later one has run all blocks with it."""
    verifies_tail: ClassVar[bool] = True
    """Whether a policy that verifies also runs and verifies what waits when an answer ends."""

    @abstractmethod
    def on_exit(self, cache: DecoderCache, block: int, hidden_AD: Tensor, rows_A: Tensor | None) -> Tensor | None:
        """Handle rows that leave after ``block`` < L; ``rows_A`` None means every row of the batch.

        Returns:
            The state after block L if the token is to be emitted from there; None for the exit.
        """

    @abstractmethod
    def cost(self, model: ModelInterface, exit_layers: Sequence[int], block_costs: Sequence[Cost]) -> Cost:
        """Work of one answer in addition to its tokens' own blocks up to their exits.

        Args:
            model: The model.
            exit_layers: Of every token.
            block_costs: Work of one block for each token.
        """

    def rejects(self, logits_NV: Tensor, token_N: Tensor) -> Tensor:
        """Return the mask of drafts that the full model rejects, [N]; called for policies that verify.

        Args:
            logits_NV: The full model's, where each draft was chosen.
            token_N: The drafts.
        """
        raise NotImplementedError(f"KV policy {self.name!r} verifies nothing")

    def verification_cost(
        self, model: ModelInterface, exit_layers: Sequence[int], block_costs: Sequence[Cost], drafting: Drafting
    ) -> Cost:
        """Work of one answer that verifying adds to `cost`, the LM head's products apart."""
        return Cost()


@dataclass(frozen=True)
class Parts:
    """A method bound to a depth: the four parts, and the blocks at which the gate is evaluated."""

    gate: Gate
    threshold: Threshold
    head: Head
    kv_policy: KVPolicy
    blocks: frozenset[int]

    def gate_blocks(self, n_blocks: int) -> list[int]:
        """The blocks at which the gate of an L-block decoder is evaluated, ascending; never the last."""
        return sorted(block for block in self.blocks if block < n_blocks)

    @property
    def why_not_certified(self) -> str | None:
        """Return why decisions cannot be made from bounds of the logits; None if they can."""
        if not self.gate.is_bounded:
            return "its gate's score cannot be bounded from intervals of the logits"
        if self.head.certified() is None:
            return "it reads something else than the model's own LM head over the whole vocabulary"
        return None

    def certified(self) -> Parts:
        """Return the same, deciding from bounds of the logits: tokens and exit layers stay."""
        head = self.head.certified()
        assert head is not None and self.gate.is_bounded, "called only if the gate is bounded"
        return replace(self, head=head)

    @property
    def runs_all_blocks(self) -> bool:
        """Return whether every token runs all blocks, regardless of its exit layer."""
        return self.kv_policy.runs_all_blocks or self.gate.looks_ahead

    @property
    def reads_skipped(self) -> bool:
        """Return whether a token may run a block that an earlier token skipped, and so read that token's keys there.

        If exits depend on the gate blocks alone, every token exits after the same one.
        """
        return self.gate.decides or self.runs_all_blocks

    @property
    def runs_fixed_blocks(self) -> bool:
        """Return whether every token runs the same number of blocks, regardless of its content."""
        return self.runs_all_blocks or not (self.gate.decides or self.kv_policy.deferred)

    def cost(
        self,
        model: ModelInterface,
        exit_layers: Sequence[int],
        head_rows: Sequence[float],
        block_costs: Sequence[Cost],
        rejected: Sequence[int] = (),
        wasted: Sequence[int] = (),
    ) -> Cost:
        """Work of one answer: blocks, gates, read-outs, keys and values of skipped blocks, and verification.

        Args:
            model: The model.
            exit_layers: Of every token that a step of decoding made.
            head_rows: Rows of the LM head multiplied for every token, as the trace has them; of a first one too that
                the prompt's own pass made.
            block_costs: Work of one block for each token.
            rejected: Drafts thrown away before each token; empty if none were.
            wasted: Positions run in vain before each token; empty if none were.
        """
        blocks = sum((cost * layer for cost, layer in zip(block_costs, exit_layers, strict=True)), Cost())
        gates = {layer: self.evaluation_cost(model, layer) for layer in set(exit_layers)}
        gating = sum((gates[layer] for layer in exit_layers), Cost())
        reading = self.head.cost(model, sum(head_rows))
        total = blocks + gating + reading + self.kv_cost(model, exit_layers, block_costs)
        if not self.kv_policy.verifies:
            return total
        in_vain = self.evaluation_cost(model, model.n_blocks) * sum(wasted)
        drafting = Drafting(rejected, wasted, min(self.gate_blocks(model.n_blocks), default=model.n_blocks))
        return total + in_vain + self.kv_policy.verification_cost(model, exit_layers, block_costs, drafting)

    def kv_cost(self, model: ModelInterface, exit_layers: Sequence[int], block_costs: Sequence[Cost]) -> Cost:
        """Return the work of the KV policy; none where its writes are never read."""
        if self.kv_policy.deferred is None and not self.reads_skipped:
            return Cost()
        return self.kv_policy.cost(model, exit_layers, block_costs)

    def evaluation_cost(self, model: ModelInterface, exit_layer: int) -> Cost:
        """Work of the gate on the way to an exit layer, beyond the rows of the LM head that are read for it."""
        gate_blocks = [block for block in self.gate_blocks(model.n_blocks) if block <= exit_layer]
        read = gate_blocks if self.gate.reads_logits else [exit_layer]
        return self.gate.cost(model, gate_blocks) + self.head.cost_beyond_rows(model, read)

    def score_sql(self, n_blocks: int) -> str | None:
        """The score at block ``l`` as SQL over one row of a probe; None if the probe's columns cannot tell."""
        return self.gate.score_sql(self.gate_blocks(n_blocks)) if self.head.reads_vocabulary else None

    def exit_layer_sql(self, n_blocks: int, max_new_tokens: int, score_sql: str, first_position: int = 1) -> str:
        """The exit layer of one probe row as a SQL expression.

        Args:
            n_blocks: Decoder blocks, L.
            max_new_tokens: Longest answer allowed.
            score_sql: The score at block ``l``.
            first_position: The first position whose token may exit early: 2 where the first token is read from the
                prompt's own pass.
        """
        # The loop compares in the score's precision, so the threshold is rounded to it here too.
        test = f"({score_sql})::FLOAT > ({self.threshold.sql(max_new_tokens)})::FLOAT"
        gate_blocks = f"{self.gate_blocks(n_blocks)}::INTEGER[]"
        exit_layer = f"coalesce(list_filter({gate_blocks}, lambda l: {test})[1], {n_blocks})"
        if first_position == 1:
            return exit_layer
        return f"CASE WHEN position < {first_position} THEN {n_blocks} ELSE {exit_layer} END"


def blocks_from(first: int, n_blocks: int, every: int = 1) -> frozenset[int]:
    """The blocks at which a gate may end a token: first, first + every, ... below L."""
    return frozenset(range(first, n_blocks, every))
