"""Continuous batching for untimed decodes, in which one prefill of a prompt serves all thresholds.

At most a given number of rows decode together. When rows have ended, waiting prompts are prefilled and take their
places, the longest first, so that one long answer delays no other. If a cache cannot take in rows (the hosted
engine's), a batch is decoded to its end first. Each row has its own exits and its own seed. Its answer does not depend
on the other rows, except for matrix products that sum in another order.
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
"""Share of the rows that must have ended before others join, since joining copies all keys and values."""


@dataclass(frozen=True)
class _Waiting:
    """Prompt in the queue of `Stream`: its index, and the indices of thresholds that still need an answer to it."""

    prompt: int
    thresholds: tuple[int, ...]


@dataclass
class Stream:
    """Continuous batching of prompts, each of which is answered once with every threshold.

    Attributes:
        checkpoint: The model and its special tokens.
        requests: Prompts to answer.
        parts: The method; its own threshold is not used.
        thresholds: Threshold rules; a single one if only one setting is decoded.
        max_new_tokens: Maximum number of tokens of an answer.
        rows: Maximum number of rows decoded together, one per prompt and threshold. Halved when memory runs out.
        is_stopped: Called with a row's new tokens after each token; True ends the row (stop strings).
        settings: Logit rules, and whether a whole answer keeps one exit layer; None: neither.
        on_done: Called with a prompt's index among the requests once it has all answers.
        answers: Answers by index of prompt and of threshold; None if there is no answer yet.
    """

    checkpoint: Checkpoint
    requests: Sequence[Request]
    parts: Parts
    thresholds: Sequence[Threshold]
    max_new_tokens: int
    rows: int
    is_stopped: IsStopped | None = None
    settings: GenerationSettings | None = None
    on_done: Callable[[int], None] = lambda prompt: None
    answers: list[list[Generation | None]] = field(init=False)

    def __post_init__(self) -> None:
        self.answers = [[None] * len(self.thresholds) for _ in self.requests]

    def run(self) -> None:
        """Answer all prompts; when memory runs out, decode the unanswered prompts again with half as many rows.

        Raises:
            ArithmeticError: A logit or a score is not finite.
            RuntimeError: There is no memory for a single row (see `is_out_of_memory`).
        """
        while self._waiting():
            if not self._answer_within_memory():
                self.rows = max(1, self.rows // 2)
                if torch.cuda.is_available():
                    torch.cuda.empty_cache()

    def answers_to(self, prompt: int) -> list[Generation]:
        """Return the answers to the prompt with this index, one per threshold."""
        return [answer for answer in self.answers[prompt] if answer is not None]

    def _answer_within_memory(self) -> bool:
        """Answer all unanswered prompts; return False, with their tensors freed, if memory ran out for several rows."""
        try:
            self._answer()
        except Exception as error:
            if self.rows == 1 or not is_out_of_memory(error):
                raise
            return False
        return True

    def _waiting(self) -> deque[_Waiting]:
        """Return the queue of unanswered prompts, longest first, each with the thresholds that still need an answer.

        A prompt that still needs more than ``rows`` thresholds is split over several entries.
        """
        queue: deque[_Waiting] = deque()
        for prompt in sorted(range(len(self.requests)), key=lambda place: -len(self.requests[place].prompt_ids)):
            missing = [number for number, answer in enumerate(self.answers[prompt]) if answer is None]
            for start in range(0, len(missing), self.rows):
                queue.append(_Waiting(prompt, tuple(missing[start : start + self.rows])))
        return queue

    def _answer(self) -> None:
        queue, running = self._waiting(), None
        places: dict[Row, tuple[int, int]] = {}
        while queue or (running is not None and running.rows):
            n_running = 0 if running is None else len(running.rows)
            if queue and self._lets_in(n_running, len(queue[0].thresholds), running):
                entries = self._take(queue, self.rows - n_running)
                joining = self._begin(entries)
                row_places = [(entry.prompt, number) for entry in entries for number in entry.thresholds]
                places.update(zip(joining.rows, row_places, strict=True))
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
        entries = [queue.popleft()]
        room -= len(entries[0].thresholds)
        while queue and len(queue[0].thresholds) <= room and self._go_together(entries[0], queue[0]):
            room -= len(queue[0].thresholds)
            entries.append(queue.popleft())
        return entries

    def _go_together(self, first: _Waiting, second: _Waiting) -> bool:
        """Return whether two prompts can be prefilled in one batch: models that cannot be padded need equal lengths."""
        model = self.checkpoint.model
        lengths = {len(self.requests[waiting.prompt].prompt_ids) for waiting in (first, second)}
        return model.pads_left or model.encoder_blocks > 0 or len(lengths) == 1

    def _begin(self, entries: Sequence[_Waiting]) -> Decoding:
        gates_first = self.settings is not None and self.settings.gates_first_token
        requests = [self.requests[entry.prompt] for entry in entries]
        batch = prefill(self.checkpoint.model, requests, self.max_new_tokens, gates_first_token=gates_first)
        if len(self.thresholds) > 1:
            batch = repeat_rows(batch, [[self.thresholds[number] for number in entry.thresholds] for entry in entries])
        else:
            batch.thresholds = tuple(self.thresholds) * len(requests)
        return Decoding(self.checkpoint, batch, self.parts, self.is_stopped, self.settings)

    def _note(self, ended: Sequence[Row], places: dict[Row, tuple[int, int]]) -> None:
        for row in ended:
            prompt, number = places.pop(row)
            self.answers[prompt][number] = row.generation
            if None not in self.answers[prompt]:
                self.on_done(prompt)
