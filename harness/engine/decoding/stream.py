"""Continuous batches, where nothing is timed: a prompt is prefilled once for all thresholds, and others follow it.

As many rows are decoded together as are allowed. Where rows have ended, prompts that wait are prefilled and take their
places, the longest first, so that one long answer delays no other; of caches that cannot take rows in (the hosted
engine's) a batch is decoded to its end first. Each row exits on its own and has a seed of its own: what it says does
not depend on who is beside it, but for products that add up in another order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from exitbench.errors import is_out_of_memory
from exitbench.harness.cells.cell import GenerationSettings
from exitbench.harness.engine.checkpoints.loading import Checkpoint
from exitbench.harness.engine.decoding.decode import Decoding, IsStopped, Row, prefill, repeat_rows
from exitbench.harness.engine.decoding.generation import Generation, Request
from exitbench.methods.base import Parts, Threshold

_REFILLED = 0.25
"""Share of the rows that must have ended before others are let in, as each time all keys and values are copied."""


@dataclass(frozen=True)
class _Waiting:
    """A prompt, and those thresholds by number that it is yet to be answered with."""

    prompt: int
    thresholds: tuple[int, ...]


@dataclass
class Stream:
    """Prompts, each to be answered with every threshold.

    Attributes:
        checkpoint: The model and its special tokens.
        requests: What is answered.
        parts: The method; its own threshold is not looked at.
        thresholds: What scores are compared with; one for a method alone.
        max_new_tokens: Longest answer.
        rows: Rows decoded together, at most; one row a threshold. Halved where memory is out.
        is_stopped: As in `Decoding`.
        asked: As in `Decoding`.
        on_done: Told of every prompt that has all answers, by its place among the requests.
        answers: Of each prompt, by threshold; None where it has not been answered yet.
    """

    checkpoint: Checkpoint
    requests: Sequence[Request]
    parts: Parts
    thresholds: Sequence[Threshold]
    max_new_tokens: int
    rows: int
    is_stopped: IsStopped | None = None
    asked: GenerationSettings | None = None
    on_done: Callable[[int], None] = lambda prompt: None
    answers: list[list[Generation | None]] = field(init=False)

    def __post_init__(self) -> None:
        self.answers = [[None] * len(self.thresholds) for _ in self.requests]

    def run(self) -> None:
        """Answer everything; where memory is out, what was not answered yet goes on with half as many rows.

        Raises:
            ArithmeticError: A logit or a score is not finite.
            RuntimeError: There is no memory for a single row (what `is_out_of_memory` knows).
        """
        while self._waiting():
            if not self._fits():
                self.rows = max(1, self.rows // 2)
                if torch.cuda.is_available():
                    torch.cuda.empty_cache()

    def made(self, prompt: int) -> list[Generation]:
        """Return the answers to a prompt, one per threshold."""
        return [answer for answer in self.answers[prompt] if answer is not None]

    def _fits(self) -> bool:
        """Answer what waits; False where there was no memory for several rows. Their tensors are gone by then."""
        try:
            self._answer()
        except Exception as error:
            if self.rows == 1 or not is_out_of_memory(error):
                raise
            return False
        return True

    def _waiting(self) -> deque[_Waiting]:
        """Return what has not been answered, the longest prompt first, in pieces that fit the rows."""
        queue: deque[_Waiting] = deque()
        for prompt in sorted(range(len(self.requests)), key=lambda place: -len(self.requests[place].prompt_ids)):
            left = [number for number, answer in enumerate(self.answers[prompt]) if answer is None]
            for start in range(0, len(left), self.rows):
                queue.append(_Waiting(prompt, tuple(left[start : start + self.rows])))
        return queue

    def _answer(self) -> None:
        queue, running = self._waiting(), None
        places: dict[Row, tuple[int, int]] = {}
        while queue or (running is not None and running.rows):
            n_running = 0 if running is None else len(running.rows)
            if queue and self._lets_in(n_running, len(queue[0].thresholds), running):
                taken = self._take(queue, self.rows - n_running)
                joining = self._begin(taken)
                where = [(one.prompt, number) for one in taken for number in one.thresholds]
                places.update(zip(joining.rows, where, strict=True))
                if joining.holds_first_token:
                    self._note(joining.step(), places)
                if running is None or not running.rows:
                    running = joining
                elif joining.rows:
                    running.join(joining)
            if running is not None and running.rows:
                self._note(running.step(), places)

    def _lets_in(self, n_running: int, n_next: int, running: Decoding | None) -> bool:
        room = self.rows - n_running
        return n_running == 0 or (
            running is not None and running.can_be_joined and room >= max(n_next, self.rows * _REFILLED)
        )

    def _take(self, queue: deque[_Waiting], room: int) -> list[_Waiting]:
        taken = [queue.popleft()]
        room -= len(taken[0].thresholds)
        while queue and len(queue[0].thresholds) <= room and self._go_together(taken[0], queue[0]):
            room -= len(queue[0].thresholds)
            taken.append(queue.popleft())
        return taken

    def _go_together(self, one: _Waiting, other: _Waiting) -> bool:
        """Return whether prompts can be prefilled in one batch: some models cannot be padded."""
        model = self.checkpoint.model
        lengths = {len(self.requests[waiting.prompt].prompt_ids) for waiting in (one, other)}
        return model.pads_left or model.encoder_blocks > 0 or len(lengths) == 1

    def _begin(self, taken: Sequence[_Waiting]) -> Decoding:
        gates_first = self.asked is not None and self.asked.gates_first_token
        requests = [self.requests[one.prompt] for one in taken]
        batch = prefill(self.checkpoint.model, requests, self.max_new_tokens, gates_first_token=gates_first)
        if len(self.thresholds) > 1:
            batch = repeat_rows(batch, [[self.thresholds[number] for number in one.thresholds] for one in taken])
        else:
            batch.thresholds = tuple(self.thresholds) * len(requests)
        return Decoding(self.checkpoint, batch, self.parts, self.is_stopped, self.asked)

    def _note(self, ended: Sequence[Row], places: dict[Row, tuple[int, int]]) -> None:
        for row in ended:
            prompt, number = places.pop(row)
            self.answers[prompt][number] = row.generation
            if None not in self.answers[prompt]:
                self.on_done(prompt)
