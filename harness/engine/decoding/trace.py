"""Exit traces: exit layers, scores and work of each token, and the check that every number is finite.

The decode loop calls an `Observer` as rows are scored, leave and are read out. That of a traced decode is a `Trace`; a
timed one has none, and nothing here is needed to choose a token (`harness.running.timing`).

Shape suffixes: A rows running at a block, N drafts of all rows, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from exitbench.methods.base import BlockView, Model

if TYPE_CHECKING:
    from exitbench.harness.engine.decoding.generation import Generation


class Told(NamedTuple):
    """What a token of a step took; see `Generation` for each."""

    exit_layer: int
    blocks_run: int
    head_rows: int
    score: float | None
    int8_rows: int = 0
    fallbacks: int = 0
    half_width: float | None = None


class Lost(NamedTuple):
    """Read-outs of drafts that were thrown away: rows of the LM head, of its int8 copy, and fallbacks."""

    head_rows: int
    int8_rows: int
    fallbacks: int


class Observer:
    """What the decode loop calls; this one looks at nothing."""

    def step_began(self, n_rows: int) -> None:
        """A step begins, for so many rows."""

    def scored(self, view: BlockView, score_A: Tensor) -> None:
        """The gate has scored the rows running at a block."""

    def left(self, view: BlockView, *, runs_all_blocks: bool) -> None:
        """Rows leave at the block scored last."""

    def read(self, view: BlockView) -> None:
        """Tokens have been chosen from a view."""

    def read_together(self, views: Sequence[BlockView]) -> None:
        """What was read last were rows that had left after several blocks, told by their views."""

    def emitted(self, generations: Sequence[Generation]) -> None:
        """Each row's token has been added to its answer."""

    def verified(self, logits_NV: Tensor) -> None:
        """The full model has been read out where drafts wait."""

    def kept(self, generation: Generation, first: int, drafts: int) -> None:
        """So many drafts from index ``first`` on stay."""

    def replaced(self, generation: Generation, lost: Lost, rejected: int, wasted: int) -> None:
        """The full model's choice has taken the place of rejected drafts; see `Generation` for what was in vain."""


class Trace(Observer):
    """Notes exit layers, blocks run, head rows and scores in the answers, and refuses numbers that are not finite.

    Attributes:
        exit_layers: Blocks whose output each token of the step was read from.
        blocks_run: Blocks executed for each.
        head_rows: Rows of the LM head multiplied for each.
        int8_rows: Rows of its int8 copy, likewise.
        fallbacks: How often the LM head was read for each because bounds left a decision open.
        scores: Confidence at each exit; None at the last block.
        half_widths: By how much each may be off; None where it is exact.
        asked: Block, scores of the rows running there, and their places in the batch.
    """

    def __init__(self, model: Model) -> None:
        self._n_blocks, self._vocab_size = model.n_blocks, model.vocab_size
        self.step_began(0)

    def step_began(self, n_rows: int) -> None:
        """Forget the step before."""
        self.exit_layers, self.blocks_run = [self._n_blocks] * n_rows, [self._n_blocks] * n_rows
        self.head_rows, self.int8_rows, self.fallbacks = [0] * n_rows, [0] * n_rows, [0] * n_rows
        self.scores: list[float | None] = [None] * n_rows
        self.half_widths: list[float | None] = [None] * n_rows
        self.asked: list[tuple[int, Tensor, Sequence[int]]] = []
        self._half_width_A: Tensor | None = None
        self._read: list[tuple[int, Tensor]] = []  # (block, largest logit of rows read there)

    def scored(self, view: BlockView, score_A: Tensor) -> None:
        """Keep what the gate said at a block of the rows running there, and what it read to say it."""
        self.asked.append((view.block, score_A, view.active.rows))
        self._half_width_A = view.half_width_A
        self.read(view)

    def left(self, view: BlockView, *, runs_all_blocks: bool) -> None:
        """Note the block and the score of the rows that leave."""
        block, score_A, running = self.asked[-1]
        scores = dict(zip(running, score_A.tolist(), strict=True))
        half_widths: dict[int, float] = {}
        if self._half_width_A is not None:
            half_widths = dict(zip(running, self._half_width_A.tolist(), strict=True))
        for row in view.active.rows:
            self.exit_layers[row], self.scores[row] = block, scores[row]
            self.half_widths[row] = half_widths.get(row)
            if not runs_all_blocks:
                self.blocks_run[row] = block

    def read(self, view: BlockView) -> None:
        """Count the rows of the head that the view multiplied since last asked, and keep its largest logits."""
        rows, work = view.active.rows, view.take_work()
        if work is None:
            return
        for row, head_rows in zip(rows, work.head_rows_A, strict=True):
            self.head_rows[row] += head_rows
            self.int8_rows[row] += work.int8_rows
            self.fallbacks[row] += work.fallbacks
        self._read.append((view.block, view.largest_logits()))

    def read_together(self, views: Sequence[BlockView]) -> None:
        """Assign the largest logits to the blocks that the rows left after."""
        _, largest_A = self._read.pop()
        pieces = torch.split(largest_A, [len(view.active.rows) for view in views])
        self._read += zip((view.block for view in views), pieces, strict=True)

    def emitted(self, generations: Sequence[Generation]) -> None:
        """Add the step's row to each answer's trace, if every number it came from is finite."""
        for generation, record in zip(generations, self.told(), strict=True):
            _note(generation, record)

    def told(self) -> list[Told]:
        """What each row of the step took.

        Raises:
            ArithmeticError: A number that they came from is not finite.
        """
        self._check_finite()
        columns = (
            *(self.exit_layers, self.blocks_run, self.head_rows, self.scores),
            *(self.int8_rows, self.fallbacks, self.half_widths),
        )
        return [Told(*row) for row in zip(*columns, strict=True)]

    def _check_finite(self) -> None:
        """Raise ArithmeticError, naming the block, if a logit or a score is not a number or infinite."""
        values = [("logits", *pair) for pair in self._read]
        values += [("confidence scores", block, score_A) for block, score_A, _ in self.asked]
        if math.isfinite(float(torch.cat([value_A for _, _, value_A in values]).sum())):
            return
        for what, block, value_A in sorted(values, key=lambda item: item[1]):
            if not bool(value_A.isfinite().all()):
                raise ArithmeticError(f"the {what} at block {block} are not finite: {value_A.tolist()}")

    def verified(self, logits_NV: Tensor) -> None:
        """Raise ArithmeticError if a logit is not a number or infinite."""
        best_N = logits_NV.amax(-1).float()
        if not math.isfinite(float(best_N.sum())):
            raise ArithmeticError(f"the logits at block {self._n_blocks} are not finite: {best_N.tolist()}")

    def kept(self, generation: Generation, first: int, drafts: int) -> None:
        """Drafts that stay have run all blocks, and one more read-out each."""
        for index in range(first, first + drafts):
            generation.blocks_run[index] = self._n_blocks
            generation.head_rows[index] += self._vocab_size

    def replaced(self, generation: Generation, lost: Lost, rejected: int, wasted: int) -> None:
        """Note the work done for what was dropped at the token that takes the place of the first rejected draft."""
        head_rows = lost.head_rows + rejected * self._vocab_size
        told = Told(self._n_blocks, self._n_blocks, head_rows, None, lost.int8_rows, lost.fallbacks)
        _note(generation, told, rejected, wasted)


def _note(generation: Generation, told: Told, rejected: int = 0, wasted: int = 0) -> None:
    """Add the trace of the newest token."""
    generation.exit_layers.append(told.exit_layer)
    generation.blocks_run.append(told.blocks_run)
    generation.head_rows.append(told.head_rows)
    generation.int8_rows.append(told.int8_rows)
    generation.fallbacks.append(told.fallbacks)
    generation.scores.append(told.score)
    generation.half_widths.append(told.half_width)
    generation.rejected.append(rejected)
    generation.wasted.append(wasted)
