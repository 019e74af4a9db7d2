"""Rows of the spool's choices and of their tokens, and full depth's beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from exitbench.harness.running.scored_texts import ScoredText
from exitbench.tasks.document import Document
from exitbench.tasks.lm_eval.task import LmEvalTask


@dataclass(frozen=True)
class FullChoice:
    """What full depth said of one text.

    Attributes:
        is_chosen: None for a text that is none of the document's choices.
        logprobs: Of its tokens.
        greedy: Whether each is the most probable one.
    """

    logprob: float
    is_greedy: bool
    is_chosen: bool | None
    logprobs: Sequence[float]
    greedy: Sequence[bool]


Full = Mapping[tuple[str, int], FullChoice]
"""By document and choice, counted from 1."""
Scored = Mapping[str, Sequence[ScoredText]]
"""The texts of each document, in the order of its requests."""


def n_choices(task: LmEvalTask, document: Document, own: Sequence[ScoredText]) -> int:
    """How many of a document's texts are its choices; behind them come those that a metric asks besides."""
    return len(task.choices(document)) if task.output_type == "multiple_choice" else len(own)


def chosen_place(task: LmEvalTask, document: Document, own: Sequence[ScoredText]) -> int:
    """Place of the most probable choice, from 0; of equals the first, as in lm-eval."""
    return int(np.argmax([text.logprob for text in own[: n_choices(task, document, own)]]))


def full_choices(task: LmEvalTask, documents: Sequence[Document], scored: Scored) -> Full:
    """Return what full depth said, of what it scored just now."""
    found = {}
    for document in documents:
        own = scored[document.key]
        chosen, n = chosen_place(task, document, own), n_choices(task, document, own)
        for place, text in enumerate(own):
            logprobs = [value for part in text.parts for value in part.logprobs]
            greedy = [value for part in text.parts for value in part.greedy]
            is_chosen = place == chosen if place < n else None
            found[document.key, place + 1] = FullChoice(text.logprob, text.is_greedy, is_chosen, logprobs, greedy)
    return found


def read_choices(choices: Path, tokens: Path) -> Full:
    """Return what full depth said, of its cell's files."""
    columns = ["doc_key", "choice", "position", "logprob", "is_greedy"]
    by_choice: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in pq.read_table(tokens, columns=columns).to_pylist():
        by_choice.setdefault((row["doc_key"], row["choice"]), []).append(row)
    found = {}
    for row in pq.read_table(choices, columns=["doc_key", "choice", "logprob", "is_greedy", "is_chosen"]).to_pylist():
        key = (row["doc_key"], row["choice"])
        own = sorted(by_choice[key], key=lambda one: int(one["position"]))
        logprobs, greedy = ([one[name] for one in own] for name in ("logprob", "is_greedy"))
        found[key] = FullChoice(row["logprob"], row["is_greedy"], row["is_chosen"], logprobs, greedy)
    return found


def choice_rows(task: LmEvalTask, documents: Sequence[Document], scored: Scored, full: Full) -> list[dict[str, Any]]:
    """Return one row a text."""
    rows = []
    for document in documents:
        own = scored[document.key]
        chosen, n = chosen_place(task, document, own), n_choices(task, document, own)
        right = task.right_choices(document) if task.output_type == "multiple_choice" else None
        for place, text in enumerate(own):
            whole = full[document.key, place + 1]
            rows.append(
                {
                    "doc_key": document.key,
                    "choice": place + 1,
                    "text": None if task.output_type == "loglikelihood_rolling" else text.text,
                    "n_context": text.n_context,
                    "n_cut": text.n_cut or None,
                    "n_tokens": len(text.token_ids),
                    "logprob": text.logprob,
                    "full_logprob": whole.logprob,
                    "is_greedy": text.is_greedy,
                    "full_is_greedy": whole.is_greedy,
                    "is_right": None if right is None or place >= n else place in right,
                    "is_chosen": place == chosen if place < n else None,
                    "full_is_chosen": whole.is_chosen,
                }
            )
    return rows


def token_rows(documents: Sequence[Document], scored: Scored, full: Full, n_blocks: int) -> list[dict[str, Any]]:
    """Return one row a token of a text."""
    rows = []
    for document in documents:
        for choice, text in enumerate(scored[document.key], start=1):
            whole = full[document.key, choice]
            made = [
                token
                for part in text.parts
                for token in zip(
                    part.token_ids,
                    part.exit_layers,
                    part.blocks_run,
                    part.head_rows or repeat(None, len(part.token_ids)),
                    part.scores or repeat(None, len(part.token_ids)),
                    part.logprobs,
                    part.greedy,
                    strict=True,
                )
            ]
            for position, (token_id, layer, blocks, head_rows, score, logprob, greedy) in enumerate(made, start=1):
                rows.append(
                    {
                        "doc_key": document.key,
                        "choice": choice,
                        "position": position,
                        "token_id": token_id,
                        "exit_layer": layer,
                        "blocks_run": blocks,
                        "head_rows": head_rows,
                        "score": score,
                        "reason": "last" if layer == n_blocks else "threshold",
                        "logprob": logprob,
                        "full_logprob": whole.logprobs[position - 1],
                        "is_greedy": greedy,
                        "full_is_greedy": whole.greedy[position - 1],
                    }
                )
    return rows


def gap_nats(doc_key: str, own: Sequence[ScoredText], full: Full) -> float:
    """Return how far a document's tokens are from full depth: the sum of absolute differences of log-probabilities."""
    return sum(
        abs(logprob - whole)
        for choice, text in enumerate(own, start=1)
        for logprob, whole in zip(
            (value for part in text.parts for value in part.logprobs), full[doc_key, choice].logprobs, strict=True
        )
    )
