"""Logits processors: repetition penalty, no-repeat n-grams, minimum length, forced first token, as in transformers.

They only affect the choice of the token. A gate's confidence uses the head's own logits (docs/prompts.md).

Shape suffixes: A rows that leave a block, B rows of the batch, V vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from exitbench.errors import UserError
from exitbench.harness.cells.cell import GenerationSettings
from exitbench.methods.base import BlockView, Parts

if TYPE_CHECKING:
    from exitbench.harness.engine.checkpoints.loading import Checkpoint


class LogitRules:
    """Logit rules of a batch, with each row's token history; `keep` and `join` must be called when the rows change.

    A history holds what transformers' ``generate`` without padding passes to its processors: prompt and answer for a
    decoder-only model, start token and answer for an encoder-decoder.

    Args:
        settings: Generation settings with at least one logit rule.
        checkpoint: The model and its special tokens.
        prompts: Token ids of each row's prompt.

    Raises:
        UserError: The forced token is not in the vocabulary.
    """

    def __init__(self, settings: GenerationSettings, checkpoint: Checkpoint, prompts: Sequence[Sequence[int]]) -> None:
        self._settings, self._device = settings, checkpoint.model.device
        vocab_size, forced, start = checkpoint.model.vocab_size, settings.forced_bos_token_id, checkpoint.start_id
        if forced is not None and forced >= vocab_size:
            raise UserError(f"forced_bos_token_id is {forced}; the vocabulary has tokens 0 to {vocab_size - 1}.")
        self._eos = checkpoint.eos_ids
        self._histories = [list(prompt) if start is None else [start] for prompt in prompts]
        self._seen_BV = torch.zeros(len(prompts), vocab_size, dtype=torch.bool, device=self._device)
        self._ngrams: list[dict[tuple[int, ...], set[int]]] = [{} for _ in prompts]
        for row, history in enumerate(self._histories):
            self._seen_BV[row, torch.tensor(history, device=self._device)] = True
            for end in range(1, len(history) + 1):
                self._note_ngram(row, end)

    def keep(self, rows: Sequence[int]) -> None:
        """Keep only the histories of these rows."""
        self._histories = [self._histories[row] for row in rows]
        self._ngrams = [self._ngrams[row] for row in rows]
        self._seen_BV = self._seen_BV[list(rows)]

    def join(self, other: LogitRules) -> None:
        """Append the rows of another batch, with their histories."""
        self._histories += other._histories
        self._ngrams += other._ngrams
        self._seen_BV = torch.cat((self._seen_BV, other._seen_BV))

    def applied(self, view: BlockView) -> BlockView:
        """Return a `BlockView` of the same rows whose logits the rules have changed, to choose tokens from.

        Raises:
            UserError: The head reads only a part of the vocabulary.
        """
        if view.ids_AK is not None:
            raise UserError(f"{', '.join(self._settings.logit_rules)}: the head must read the whole vocabulary.")
        changed = copy.copy(view)
        changed.set_logits(self(view.logits_AK, view.active.rows))
        return changed

    def __call__(self, logits_AV: Tensor, rows: Sequence[int]) -> Tensor:
        """Return the logits [A, V] changed by the rules, in float32; ``rows`` are the rows' indices in the batch."""
        settings, logits_AV = self._settings, logits_AV.float()
        if settings.repetition_penalty is not None:
            penalty, is_seen_AV = settings.repetition_penalty, self._seen_BV[list(rows)]
            punished_AV = torch.where(logits_AV < 0, logits_AV * penalty, logits_AV / penalty)
            logits_AV = torch.where(is_seen_AV, punished_AV, logits_AV)
        banned = [(i, token) for i, row in enumerate(rows) for token in self._banned(row)]
        forced = settings.forced_bos_token_id
        if banned:
            logits_AV = logits_AV.index_put(
                tuple(torch.tensor(banned, device=self._device).T), logits_AV.new_tensor(float("-inf"))
            )
        if forced is not None and (first := [i for i, row in enumerate(rows) if len(self._histories[row]) == 1]):
            logits_AV = logits_AV.clone()
            logits_AV[first] = float("-inf")
            logits_AV[first, forced] = 0.0
        return logits_AV

    def note(self, token_ids: Sequence[int]) -> None:
        """Append each row's new token to its history."""
        self._seen_BV[list(range(len(token_ids))), list(token_ids)] = True
        for row, (history, token_id) in enumerate(zip(self._histories, token_ids, strict=True)):
            history.append(token_id)
            self._note_ngram(row, len(history))

    def _note_ngram(self, row: int, end: int) -> None:
        size, history = self._settings.no_repeat_ngram_size, self._histories[row]
        if size is not None and end >= size:
            *before, last = history[end - size : end]
            self._ngrams[row].setdefault(tuple(before), set()).add(last)

    def _banned(self, row: int) -> list[int]:
        """Return the token ids that the rules on n-grams and minimum length exclude as a row's next token."""
        size, history, banned = self._settings.no_repeat_ngram_size, self._histories[row], set[int]()
        if size is not None and len(history) + 1 >= size:
            banned |= self._ngrams[row].get(tuple(history[len(history) + 1 - size :]), set())
        if self._settings.min_length is not None and len(history) < self._settings.min_length:
            banned |= self._eos
        return sorted(banned)


def why_not(parts: Parts) -> str | None:
    """Return why a method cannot be combined with logit rules such as a repetition penalty; None if it can."""
    if parts.gate.looks_ahead:
        return "compares the head's own choices, block by block"
    if parts.kv_policy.verifies:
        return "verifies its drafts by the head's own choices"
    if not parts.gate.chooses_from_logits:
        return "chooses its tokens from something else than the head's logits"
    if parts.head.reads_part:
        return "reads only a part of the vocabulary"
    return None
