"""What the tokens of a step leave behind besides themselves, and the check of every number that they came from.

A timed decode makes none of it: nothing here is needed to choose a token (`harness.timing`).

Shape suffixes: A rows running at a block.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from exitbench.methods.base import BlockView


class StepTrace:
    """The trace of one step, filled as rows leave.

    Attributes:
        exit_layers: Blocks whose output each token was read from.
        blocks_run: Blocks executed for each.
        head_rows: Rows of the LM head multiplied for each.
        scores: Confidence at each exit; None at the last block.
        asked: Block, scores of the rows running there, and their places in the batch.
    """

    def __init__(self, n_rows: int, n_blocks: int) -> None:
        self.exit_layers, self.blocks_run = [n_blocks] * n_rows, [n_blocks] * n_rows
        self.head_rows = [0] * n_rows
        self.scores: list[float | None] = [None] * n_rows
        self.asked: list[tuple[int, Tensor, Sequence[int]]] = []
        self._read: list[tuple[int, Tensor]] = []  # (block, largest logit of rows read there)

    def note_score(self, view: BlockView, score_A: Tensor) -> None:
        """Keep what the gate said at a block of the rows running there, and what it read to say it."""
        self.asked.append((view.block, score_A, view.active.rows))
        self.note_reading(view)

    def note_exit(self, view: BlockView, *, runs_all_blocks: bool) -> None:
        """Rows leave at the block asked last."""
        block, score_A, running = self.asked[-1]
        scores = dict(zip(running, score_A.tolist(), strict=True))
        for row in view.active.rows:
            self.exit_layers[row], self.scores[row] = block, scores[row]
            if not runs_all_blocks:
                self.blocks_run[row] = block

    def note_reading(self, view: BlockView) -> None:
        """Count the rows of the head that the view multiplied since last asked, and keep its largest logits."""
        multiplied, rows = view.head_rows, view.active.rows
        if isinstance(multiplied, int) and multiplied == 0:
            return
        numbers = [multiplied] * len(rows) if isinstance(multiplied, int) else multiplied.tolist()
        for row, number in zip(rows, numbers, strict=True):
            self.head_rows[row] += number
        self._read.append((view.block, view.logits_AK.amax(-1).float()))
        view.head_rows = 0

    def split_reading(self, views: Sequence[BlockView]) -> None:
        """The newest reading was of rows that left after several blocks, told by their views."""
        _, largest_A = self._read.pop()
        pieces = torch.split(largest_A, [len(view.active.rows) for view in views])
        self._read += zip((view.block for view in views), pieces, strict=True)

    def check_finite(self) -> None:
        """Raise ArithmeticError, naming the block, if a logit or a score is not a number or infinite."""
        found = [("logits", *pair) for pair in self._read]
        found += [("confidence scores", block, score_A) for block, score_A, _ in self.asked]
        if math.isfinite(float(torch.cat([value_A for _, _, value_A in found]).sum())):
            return
        for what, block, value_A in sorted(found, key=lambda item: item[1]):
            if not bool(value_A.isfinite().all()):
                raise ArithmeticError(f"the {what} at block {block} are not finite: {value_A.tolist()}")

    def by_row(self) -> Iterator[tuple[int, int, int, float | None]]:
        """Exit layer, blocks run, rows of the head and score of each row's token."""
        return zip(self.exit_layers, self.blocks_run, self.head_rows, self.scores, strict=True)
