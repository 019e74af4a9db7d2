"""Exit traces: one `TokenRecord` per token, and the check that all numbers are finite.

The decode loop calls an `Observer` when rows are scored, exit and are read out. The observer of a traced decode is a
`Trace`. A timed decode has none, and nothing here is needed to choose a token (`harness.running.timing`).

Shape suffixes: A rows running at a block, N drafts of all rows, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from exitbench.harness.engine.model.token_record import TokenColumns, TokenRecord
from exitbench.methods.base import BlockView, ModelInterface

if TYPE_CHECKING:
    from exitbench.harness.engine.decoding.generation import Generation


class Observer:
    """Callbacks of the decode loop; this base class ignores all of them."""

    def step_began(self, n_rows: int) -> None:
        """Called when a decode step begins, with the number of rows of the batch."""

    def scored(self, view: BlockView, score_A: Tensor) -> None:
        """Called when the gate has scored the rows that ran a block; ``score_A`` are the scores."""

    def exited(self, view: BlockView, *, runs_all_blocks: bool) -> None:
        """Called when the rows of ``view`` exit at the block scored last.

        ``runs_all_blocks`` is True if their skipped blocks are run nevertheless.
        """

    def read(self, view: BlockView) -> None:
        """Called after the next tokens of the rows in ``view``, which have exited, were chosen; does nothing here."""

    def read_together(self, views: Sequence[BlockView]) -> None:
        """Called when one LM-head product has read out rows that exited at different blocks.

        ``views`` has the rows of each exit block.
        """

    def emitted(self, generations: Sequence[Generation]) -> None:
        """Called when the step's token of each row has been appended to its generation."""

    def verified(self, logits_NV: Tensor) -> None:
        """Called with the full model's logits at the positions of N drafts (tokens emitted early) to verify."""

    def accepted(self, generation: Generation, first: int, drafts: int) -> None:
        """Called when verification keeps tokens of a generation: ``drafts`` tokens from index ``first`` on."""

    def replaced(self, generation: Generation, discarded: Sequence[TokenRecord], rejected: int, wasted: int) -> None:
        """Called when the full model's token has replaced rejected drafts at the end of a generation.

        Args:
            generation: The answer, which ends with the new token.
            discarded: Records of all tokens that were removed.
            rejected: Number of drafts among them.
            wasted: Number of positions that were run in vain.
        """


_NOT_CHOSEN: Final = -1
"""Token id of a record until the token is chosen."""


class Trace(Observer, TokenColumns):
    """Observer that appends one record per token to each answer, and raises an error if a logit or score is not finite.

    A record has the token's exit layer, the numbers of blocks and LM-head rows computed for it, and its gate score.

    Attributes:
        records: Records of the tokens of the current decode step, one per batch row.
        gate_scores: For each gate block of the current step: its number, the scores, and the indices of the batch rows
            that they belong to.
    """

    def __init__(self, model: ModelInterface) -> None:
        self._n_blocks, self._vocab_size = model.n_blocks, model.vocab_size
        self.step_began(0)

    def step_began(self, n_rows: int) -> None:
        """Start new records for ``n_rows`` rows, without those of the previous step."""
        self.records = [TokenRecord(_NOT_CHOSEN, self._n_blocks, self._n_blocks)] * n_rows
        self.gate_scores: list[tuple[int, Tensor, Sequence[int]]] = []
        self._half_width_A: Tensor | None = None
        self._read: list[tuple[int, Tensor]] = []  # (block, largest logit of rows read there)

    def scored(self, view: BlockView, score_A: Tensor) -> None:
        """Keep the gate's scores of the sequences that ran a block, and record the LM-head work done for them."""
        self.gate_scores.append((view.block, score_A, view.active.rows))
        self._half_width_A = view.score_half_width_A
        self.read(view)

    def exited(self, view: BlockView, *, runs_all_blocks: bool) -> None:
        """Record exit layer, blocks run and score of the rows that exit."""
        block, score_A, running = self.gate_scores[-1]
        scores = dict(zip(running, score_A.tolist(), strict=True))
        half_widths: dict[int, float] = {}
        if self._half_width_A is not None:
            half_widths = dict(zip(running, self._half_width_A.tolist(), strict=True))
        for row in view.active.rows:
            self.records[row] = self.records[row]._replace(
                exit_layer=block,
                blocks_run=self._n_blocks if runs_all_blocks else block,
                score=scores[row],
                score_half_width=half_widths.get(row),
            )

    def read(self, view: BlockView) -> None:
        """Record the LM-head work done for each sequence in ``view`` since the last call, and its largest logit.

        The work is the number of vocabulary rows of the LM head that were multiplied. Without any, nothing is recorded.
        """
        rows, work = view.active.rows, view.pop_work()
        if work is None:
            return
        for row, head_rows in zip(rows, work.head_rows_A, strict=True):
            record = self.records[row]
            self.records[row] = record._replace(
                head_rows=record.head_rows + head_rows,
                head_rows_int8=record.head_rows_int8 + work.head_rows_int8,
                head_fallbacks=record.head_fallbacks + work.head_fallbacks,
            )
        self._read.append((view.block, view.largest_logits()))

    def read_together(self, views: Sequence[BlockView]) -> None:
        """Split the largest logits of a joint read-out by exit block, so that an error can name the block."""
        _, largest_A = self._read.pop()
        pieces = torch.split(largest_A, [len(view.active.rows) for view in views])
        self._read += zip((view.block for view in views), pieces, strict=True)

    def emitted(self, generations: Sequence[Generation]) -> None:
        """Append each row's record of the step to its generation, after a check that all numbers are finite."""
        self.check_finite()
        for generation, record in zip(generations, self.records, strict=True):
            generation.records.append(record._replace(token_id=generation.token_ids[-1]))

    def check_finite(self) -> None:
        """Check that the logits and gate scores of the step are finite.

        Raises:
            ArithmeticError: A value is infinite or not a number; the message names the block.
        """
        values = [("logits", *pair) for pair in self._read]
        values += [("confidence scores", block, score_A) for block, score_A, _ in self.gate_scores]
        if math.isfinite(float(torch.cat([value_A for _, _, value_A in values]).sum())):
            return
        for what, block, value_A in sorted(values, key=lambda item: item[1]):
            if not bool(value_A.isfinite().all()):
                raise ArithmeticError(f"the {what} at block {block} are not finite: {value_A.tolist()}")

    def verified(self, logits_NV: Tensor) -> None:
        """Raise ArithmeticError if the largest logit at a draft's position is infinite or not a number."""
        best_N = logits_NV.amax(-1).float()
        if not math.isfinite(float(best_N.sum())):
            raise ArithmeticError(f"the logits at block {self._n_blocks} are not finite: {best_N.tolist()}")

    def accepted(self, generation: Generation, first: int, drafts: int) -> None:
        """Record that accepted drafts ran all blocks, and were read out by the whole LM head once more."""
        for index in range(first, first + drafts):
            record = generation.records[index]
            generation.records[index] = record._replace(
                blocks_run=self._n_blocks, head_rows=record.head_rows + self._vocab_size
            )

    def replaced(self, generation: Generation, discarded: Sequence[TokenRecord], rejected: int, wasted: int) -> None:
        """Append the record of the full model's token; it also counts the work done for all tokens removed."""
        generation.records.append(
            TokenRecord(
                generation.token_ids[-1],
                self._n_blocks,
                self._n_blocks,
                sum(record.head_rows for record in discarded) + rejected * self._vocab_size,
                head_rows_int8=sum(record.head_rows_int8 for record in discarded),
                head_fallbacks=sum(record.head_fallbacks for record in discarded),
                rejected=rejected,
                rejected_layers=tuple(record.exit_layer for record in discarded[:rejected]),
                wasted=wasted,
            )
        )
