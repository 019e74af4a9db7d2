"""Scoring of given texts: requests, scores, and rows of the spool's tables that compare the scores with full depth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch

from exitbench.harness.cells.cell import GenerationSettings
from exitbench.harness.engine.checkpoints.loading import Checkpoint
from exitbench.harness.engine.decoding.branches import Context
from exitbench.harness.engine.decoding.likelihood import Scored
from exitbench.harness.engine.decoding.likelihood import score as score_contexts
from exitbench.harness.engine.model.batches import in_batches
from exitbench.harness.work.encoding import EncodedPair, Encoding
from exitbench.methods.base import Parts
from exitbench.tasks.document import Document
from exitbench.tasks.lm_eval.task import LmEvalTask


@dataclass(frozen=True)
class TextRequest:
    """One text to score, such as a choice of a document.

    Attributes:
        doc_key: Key of the document.
        text: Text to score.
        pairs: Token ids of the text and its context; one pair per window if a long text is scored in windows.
    """

    doc_key: str
    text: str
    pairs: tuple[EncodedPair, ...]

    @classmethod
    def encode(cls, encoding: Encoding, doc_key: str, *texts: str) -> TextRequest:
        """Encode the texts of one lm-eval request: a context and its continuation, or one whole text.

        Raises:
            Unscorable: The text has no tokens to score, or more than the model reads; the message names the document.
            UserError: The request is a whole text, and the model is an encoder-decoder.
        """
        location = f"document {doc_key}"
        if len(texts) == 1:
            return cls(doc_key, texts[0], tuple(encoding.windows(texts[0], location)))
        context, continuation = texts
        return cls(doc_key, continuation, (encoding.pair(context, continuation, location),))


@dataclass(frozen=True)
class ScoredText:
    """Scores of one text, such as a choice of a document.

    Attributes:
        text: The scored text, as given by the task.
        n_context: Number of context tokens; for a text scored in windows, those of the first window.
        n_cut: Number of tokens cut off the left of the context.
        parts: Scored tokens, one entry per window.
    """

    text: str
    n_context: int
    n_cut: int
    parts: tuple[Scored, ...]

    @property
    def logprob(self) -> float:
        """Natural log-probability of the text: the sum over its tokens, in float32 within a window as in lm-eval."""
        return sum(float(torch.tensor(part.logprobs, dtype=torch.float32).sum()) for part in self.parts)

    @property
    def is_greedy(self) -> bool:
        """Whether every token of the text is the most probable token at its exit layer."""
        return all(part.is_greedy for part in self.parts)

    @property
    def token_ids(self) -> list[int]:
        """Token ids of the scored text, without its context."""
        return [token_id for part in self.parts for token_id in part.token_ids]

    @property
    def exit_layers(self) -> list[int]:
        """Exit layer of each token of the text."""
        return [layer for part in self.parts for layer in part.exit_layers]

    @property
    def blocks_run(self) -> list[int]:
        """Number of blocks executed for each token of the text."""
        return [blocks for part in self.parts for blocks in part.blocks_run]


def longest_of(requests: Sequence[TextRequest]) -> int:
    """Return the number of scored tokens in the longest text; for texts scored in windows, in the longest window."""
    return max(len(pair.continuation_ids) for request in requests for pair in request.pairs)


@dataclass(frozen=True)
class DocumentContext:
    """A context, with all texts of its document that are scored after it.

    Attributes:
        doc_key: Key of the document.
        text_numbers: Number of each text among the document's texts, from 1.
        context: Token ids of the context and of the texts.
    """

    doc_key: str
    text_numbers: tuple[int, ...]
    context: Context


def contexts_of(requests: Sequence[TextRequest], seed_of: Callable[[str], int]) -> list[DocumentContext]:
    """Group texts to score by their context; return the contexts with their continuations, in the order of documents.

    Args:
        requests: Texts to score; the texts of one document are adjacent and in order.
        seed_of: Function that returns a document's seed, given its key.
    """
    first: dict[str, int] = {}
    for number, request in enumerate(requests):
        first.setdefault(request.doc_key, number)
    contexts = []
    for group in _windows_by_context(requests):
        key = requests[group[0][0]].doc_key
        text_numbers = tuple(number - first[key] + 1 for number, _ in group)
        contexts.append(DocumentContext(key, text_numbers, _context(group, requests, seed_of)))
    return contexts


def scored_contexts(
    requests: Sequence[TextRequest], scored: Mapping[str, Sequence[ScoredText]]
) -> list[tuple[str, Context, list[Scored]]]:
    """Return a tuple for each context: document key, context with its continuations, and their scores.

    Args:
        requests: Texts to score; the texts of one document are adjacent and in order.
        scored: The scored texts, by document key.
    """
    texts = [text for key in dict.fromkeys(request.doc_key for request in requests) for text in scored[key]]
    return [
        (
            requests[group[0][0]].doc_key,
            _context(group, requests, lambda key: 0),
            [texts[number].parts[at] for number, at in group],
        )
        for group in _windows_by_context(requests)
    ]


def score_texts(
    checkpoint: Checkpoint,
    requests: Sequence[TextRequest],
    parts: Parts,
    generation: GenerationSettings,
    rows: int,
    seed_of: Callable[[str], int],
    on_documents: Callable[[int], None],
) -> dict[str, list[ScoredText]]:
    """Score texts in batches; a context shared by several texts is run once.

    Args:
        checkpoint: The model.
        requests: Texts to score; the texts of one document are adjacent and in order.
        parts: The method's parts.
        generation: Settings, of which the scope of exit decisions and the rule for the first token are used.
        rows: Maximum number of texts per batch.
        seed_of: Function that returns a document's seed, given its key.
        on_documents: Callback that receives the number of documents scored so far.

    Returns:
        Scored texts by document key; those of one document are in the order of ``requests``.

    Raises:
        UserError: The method provides no log-probabilities.
    """
    groups = sorted(_windows_by_context(requests), key=lambda group: (_length(group, requests), group))
    scored: dict[tuple[int, int], Scored] = {}
    n_done = 0
    n_left = Counter(request.doc_key for request in requests for _ in request.pairs)
    longest = longest_of(requests)

    def run(batch: Sequence[Sequence[tuple[int, int]]]) -> None:
        scored_groups = score_contexts(
            checkpoint,
            [_context(group, requests, seed_of) for group in batch],
            parts,
            scope="context" if generation.scope == "context" else "token",
            gates_first_token=checkpoint.kind == "seq2seq" or generation.gates_first_token,
            rows=min(rows, len(batch)),  # fewer after memory ran out
            max_new_tokens=longest,
        )
        nonlocal n_done
        for group, group_scores in zip(batch, scored_groups, strict=True):
            scored.update(zip(group, group_scores, strict=True))
            key = requests[group[0][0]].doc_key
            n_left[key] -= len(group)
            n_done += not n_left[key]

    in_batches(groups, rows, run, lambda _: on_documents(n_done))
    texts: dict[str, list[ScoredText]] = {}
    for number, request in enumerate(requests):
        parts_of = tuple(scored[number, at] for at in range(len(request.pairs)))
        first = request.pairs[0]
        n_cut = sum(pair.n_cut for pair in request.pairs)
        texts.setdefault(request.doc_key, []).append(ScoredText(request.text, len(first.context_ids), n_cut, parts_of))
    return texts


def _windows_by_context(requests: Sequence[TextRequest]) -> list[list[tuple[int, int]]]:
    """Group the windows of all texts by document and context; return each group as (text index, window index) pairs."""
    shared: dict[tuple[str, tuple[int, ...]], list[tuple[int, int]]] = {}
    for number, request in enumerate(requests):
        for at, pair in enumerate(request.pairs):
            shared.setdefault((request.doc_key, pair.context_ids), []).append((number, at))
    return list(shared.values())


def _context(
    group: Sequence[tuple[int, int]], requests: Sequence[TextRequest], seed_of: Callable[[str], int]
) -> Context:
    pairs = [requests[number].pairs[at] for number, at in group]
    seed = seed_of(requests[group[0][0]].doc_key)
    return Context(pairs[0].context_ids, [pair.continuation_ids for pair in pairs], seed)


def _length(group: Sequence[tuple[int, int]], requests: Sequence[TextRequest]) -> int:
    pairs = [requests[number].pairs[at] for number, at in group]
    return len(pairs[0].context_ids) + max(len(pair.continuation_ids) for pair in pairs)


@dataclass(frozen=True)
class FullChoice:
    """Full depth's scores of one text: log-probabilities, and whether its tokens are greedy.

    Attributes:
        logprob: Log-probability of the text.
        is_greedy: Whether every token of the text is the most probable token.
        is_chosen: Whether the text is the most probable choice; None if it is not one of the document's choices.
        logprobs: Log-probability of each token.
        greedy: Whether each token is the most probable token.
    """

    logprob: float
    is_greedy: bool
    is_chosen: bool | None
    logprobs: Sequence[float]
    greedy: Sequence[bool]


Full = Mapping[tuple[str, int], FullChoice]
"""Full depth's scores by (document key, number of the text from 1)."""
ScoredTexts = Mapping[str, Sequence[ScoredText]]
"""Scored texts of each document, in the order of its requests."""


def n_choices(task: LmEvalTask, document: Document, texts: Sequence[ScoredText]) -> int:
    """Return how many of a document's texts are choices; texts that only some metric needs come after the choices."""
    return len(task.choices(document)) if task.output_type == "multiple_choice" else len(texts)


def chosen_index(task: LmEvalTask, document: Document, texts: Sequence[ScoredText]) -> int:
    """Return the index of the most probable choice of a document; on ties the first, as in lm-eval."""
    return int(np.argmax([text.logprob for text in texts[: n_choices(task, document, texts)]]))


def full_choices(task: LmEvalTask, documents: Sequence[Document], scored: ScoredTexts) -> Full:
    """Return full depth's scores by (document key, index of the text from 1), given texts scored at full depth."""
    full = {}
    for document in documents:
        doc_texts = scored[document.key]
        chosen, n = chosen_index(task, document, doc_texts), n_choices(task, document, doc_texts)
        for place, text in enumerate(doc_texts):
            logprobs = [value for part in text.parts for value in part.logprobs]
            greedy = [value for part in text.parts for value in part.greedy]
            is_chosen = place == chosen if place < n else None
            full[document.key, place + 1] = FullChoice(text.logprob, text.is_greedy, is_chosen, logprobs, greedy)
    return full


def read_choices(choices: Path, tokens: Path) -> Full:
    """Return full depth's scores by (document key, index of the text from 1), read from the files of full depth's cell.

    Args:
        choices: File ``choices.parquet`` of the cell.
        tokens: File ``tokens.parquet`` of the cell.
    """
    columns = ["doc_key", "choice", "position", "logprob", "is_greedy"]
    by_choice: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in pq.read_table(tokens, columns=columns).to_pylist():
        by_choice.setdefault((row["doc_key"], row["choice"]), []).append(row)
    full = {}
    for row in pq.read_table(choices, columns=["doc_key", "choice", "logprob", "is_greedy", "is_chosen"]).to_pylist():
        key = (row["doc_key"], row["choice"])
        choice_tokens = sorted(by_choice[key], key=lambda token: int(token["position"]))
        logprobs, greedy = ([token[name] for token in choice_tokens] for name in ("logprob", "is_greedy"))
        full[key] = FullChoice(row["logprob"], row["is_greedy"], row["is_chosen"], logprobs, greedy)
    return full


def choice_rows(
    task: LmEvalTask, documents: Sequence[Document], scored: ScoredTexts, full: Full
) -> list[dict[str, Any]]:
    """Return the rows of the spool's table ``choices``: one per scored text, with its and full depth's scores."""
    rows = []
    for document in documents:
        doc_texts = scored[document.key]
        chosen, n = chosen_index(task, document, doc_texts), n_choices(task, document, doc_texts)
        right = task.right_choices(document) if task.output_type == "multiple_choice" else None
        for place, text in enumerate(doc_texts):
            full_choice = full[document.key, place + 1]
            rows.append(
                {
                    "doc_key": document.key,
                    "choice": place + 1,
                    "text": None if task.output_type == "loglikelihood_rolling" else text.text,
                    "n_context": text.n_context,
                    "n_cut": text.n_cut or None,
                    "n_tokens": len(text.token_ids),
                    "logprob": text.logprob,
                    "full_logprob": full_choice.logprob,
                    "is_greedy": text.is_greedy,
                    "full_is_greedy": full_choice.is_greedy,
                    "is_right": None if right is None or place >= n else place in right,
                    "is_chosen": place == chosen if place < n else None,
                    "full_is_chosen": full_choice.is_chosen,
                }
            )
    return rows


def token_rows(
    documents: Sequence[Document], scored: ScoredTexts, full: Full, parts: Parts | None
) -> list[dict[str, Any]]:
    """Return the rows of the spool's table ``tokens``: one per token of each scored text, with full depth's values.

    Args:
        documents: The documents, in the order of the rows.
        scored: Scored texts of each document.
        full: Full depth's scores of the same texts.
        parts: The method's parts; None for a replay, in which no LM head ran, so that columns of its reads are empty.
    """
    rows = []
    for document in documents:
        for choice, text in enumerate(scored[document.key], start=1):
            full_choice = full[document.key, choice]
            rows += [
                {
                    **record.to_row(parts),
                    "doc_key": document.key,
                    "choice": choice,
                    "position": index + 1,
                    "full_logprob": full_choice.logprobs[index],
                    "full_is_greedy": full_choice.greedy[index],
                }
                for index, record in enumerate(record for part in text.parts for record in part.records)
            ]
    return rows


def gap_nats(doc_key: str, texts: Sequence[ScoredText], full: Full) -> float:
    """Return the absolute difference from full depth's log-probabilities, summed over a document's tokens, in nats."""
    return sum(
        abs(logprob - full_logprob)
        for choice, text in enumerate(texts, start=1)
        for logprob, full_logprob in zip(
            (value for part in text.parts for value in part.logprobs), full[doc_key, choice].logprobs, strict=True
        )
    )
