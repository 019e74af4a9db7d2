"""Texts of documents to be scored, what each got, and the rows that are stored of it beside full depth's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
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
from exitbench.harness.work.encoding import Encoding, Pair
from exitbench.methods.base import Parts
from exitbench.tasks.document import Document
from exitbench.tasks.lm_eval.task import LmEvalTask


@dataclass(frozen=True)
class TextRequest:
    """One text that a document gives to be scored.

    Attributes:
        doc_key: The document.
        text: What is scored.
        pairs: Its tokens behind their context; several where it is scored in windows.
    """

    doc_key: str
    text: str
    pairs: tuple[Pair, ...]

    @classmethod
    def of(cls, encoding: Encoding, doc_key: str, *texts: str) -> TextRequest:
        """Make one of lm-eval's: of context and continuation, or of a whole text.

        Raises:
            Unscorable: There is nothing to score, or more than the model reads; names the document.
            UserError: A whole text is asked of an encoder-decoder.
        """
        where = f"document {doc_key}"
        if len(texts) == 1:
            return cls(doc_key, texts[0], tuple(encoding.windows(texts[0], where)))
        context, continuation = texts
        return cls(doc_key, continuation, (encoding.pair(context, continuation, where),))


@dataclass(frozen=True)
class ScoredText:
    """One scored text.

    Attributes:
        text: As the task gave it.
        n_context: Tokens of its context; of a text scored in windows, of the first.
        n_cut: Tokens cut off its context.
        parts: Its tokens; several where it was scored in windows.
    """

    text: str
    n_context: int
    n_cut: int
    parts: tuple[Scored, ...]

    @property
    def logprob(self) -> float:
        """Natural logarithm of its probability, summed in single precision as lm-eval does, window by window."""
        return sum(float(torch.tensor(part.logprobs, dtype=torch.float32).sum()) for part in self.parts)

    @property
    def is_greedy(self) -> bool:
        """Whether every token is the most probable where it left."""
        return all(part.is_greedy for part in self.parts)

    @property
    def token_ids(self) -> list[int]:
        """Its tokens."""
        return [token_id for part in self.parts for token_id in part.token_ids]

    @property
    def exit_layers(self) -> list[int]:
        """Blocks after which they were read."""
        return [layer for part in self.parts for layer in part.exit_layers]

    @property
    def blocks_run(self) -> list[int]:
        """Blocks executed for them."""
        return [blocks for part in self.parts for blocks in part.blocks_run]


def longest_of(asked: Sequence[TextRequest]) -> int:
    """Tokens of the longest text that is scored in one go."""
    return max(len(pair.continuation_ids) for request in asked for pair in request.pairs)


@dataclass(frozen=True)
class Shared:
    """A context with the texts of its document that share it.

    Attributes:
        doc_key: The document.
        choices: Which of its texts, counted from 1.
        context: Their tokens.
    """

    doc_key: str
    choices: tuple[int, ...]
    context: Context


def contexts_of(asked: Sequence[TextRequest], seed_of: Callable[[str], int]) -> list[Shared]:
    """Return the contexts of texts, each with what is scored behind it, in the order of documents.

    Args:
        asked: The texts of a document stand together, in their order.
        seed_of: Seed of a document, by its key.
    """
    first: dict[str, int] = {}
    for number, request in enumerate(asked):
        first.setdefault(request.doc_key, number)
    found = []
    for of in _places(asked):
        key = asked[of[0][0]].doc_key
        choices = tuple(number - first[key] + 1 for number, _ in of)
        found.append(Shared(key, choices, _context(of, asked, seed_of)))
    return found


def scored_contexts(
    asked: Sequence[TextRequest], scored: Mapping[str, Sequence[ScoredText]]
) -> list[tuple[str, Context, list[Scored]]]:
    """Return every context of texts with what was scored behind it, and the document that it is of.

    Args:
        asked: The texts of a document stand together, in their order.
        scored: Of them, by document.
    """
    texts = [text for key in dict.fromkeys(request.doc_key for request in asked) for text in scored[key]]
    return [
        (asked[of[0][0]].doc_key, _context(of, asked, lambda key: 0), [texts[number].parts[at] for number, at in of])
        for of in _places(asked)
    ]


def score_texts(
    checkpoint: Checkpoint,
    asked: Sequence[TextRequest],
    parts: Parts,
    generation: GenerationSettings,
    rows: int,
    seed_of: Callable[[str], int],
    on_documents: Callable[[int], None],
) -> dict[str, list[ScoredText]]:
    """Score texts.

    Args:
        checkpoint: The model.
        asked: The texts of a document stand together, in their order.
        parts: The method.
        generation: By what exits are decided, and whether the first token may leave early.
        rows: Texts scored together, at most.
        seed_of: Seed of a document, by its key.
        on_documents: Told how many documents have been scored.

    Returns:
        By document, in the order asked.

    Raises:
        UserError: The method gives no log-probabilities.
    """
    places = sorted(_places(asked), key=lambda of: (_length(of, asked), of))
    scored: dict[tuple[int, int], Scored] = {}
    n_done = 0
    left = {key: sum(map(len, of)) for key, of in _by_document(places, asked).items()}
    longest = longest_of(asked)

    def run(batch: Sequence[Sequence[tuple[int, int]]]) -> None:
        found = score_contexts(
            checkpoint,
            [_context(of, asked, seed_of) for of in batch],
            parts,
            scope=generation.scope or "token",
            gates_first_token=checkpoint.kind == "seq2seq" or generation.gates_first_token,
            rows=min(rows, len(batch)),  # fewer once memory is out
            max_new_tokens=longest,
        )
        nonlocal n_done
        for of, made in zip(batch, found, strict=True):
            scored.update(zip(of, made, strict=True))
            key = asked[of[0][0]].doc_key
            left[key] -= len(of)
            n_done += not left[key]

    in_batches(places, rows, run, lambda _: on_documents(n_done))
    texts: dict[str, list[ScoredText]] = {}
    for number, request in enumerate(asked):
        parts_of = tuple(scored[number, at] for at in range(len(request.pairs)))
        first = request.pairs[0]
        n_cut = sum(pair.n_cut for pair in request.pairs)
        texts.setdefault(request.doc_key, []).append(ScoredText(request.text, len(first.context_ids), n_cut, parts_of))
    return texts


def _places(asked: Sequence[TextRequest]) -> list[list[tuple[int, int]]]:
    """Number of the text and of its window, of everything that is scored; what shares a context stands together."""
    shared: dict[tuple[str, tuple[int, ...]], list[tuple[int, int]]] = {}
    for number, request in enumerate(asked):
        for at, pair in enumerate(request.pairs):
            shared.setdefault((request.doc_key, pair.context_ids), []).append((number, at))
    return list(shared.values())


def _context(of: Sequence[tuple[int, int]], asked: Sequence[TextRequest], seed_of: Callable[[str], int]) -> Context:
    pairs = [asked[number].pairs[at] for number, at in of]
    seed = seed_of(asked[of[0][0]].doc_key)
    return Context(pairs[0].context_ids, [pair.continuation_ids for pair in pairs], seed)


def _length(of: Sequence[tuple[int, int]], asked: Sequence[TextRequest]) -> int:
    pairs = [asked[number].pairs[at] for number, at in of]
    return len(pairs[0].context_ids) + max(len(pair.continuation_ids) for pair in pairs)


def _by_document(
    places: Sequence[Sequence[tuple[int, int]]], asked: Sequence[TextRequest]
) -> dict[str, list[Sequence[tuple[int, int]]]]:
    ordered = sorted(places, key=lambda of: asked[of[0][0]].doc_key)
    return {key: list(own) for key, own in groupby(ordered, key=lambda of: asked[of[0][0]].doc_key)}


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
ScoredTexts = Mapping[str, Sequence[ScoredText]]
"""The texts of each document, in the order of its requests."""


def n_choices(task: LmEvalTask, document: Document, own: Sequence[ScoredText]) -> int:
    """How many of a document's texts are its choices; behind them come those that a metric asks besides."""
    return len(task.choices(document)) if task.output_type == "multiple_choice" else len(own)


def chosen_place(task: LmEvalTask, document: Document, own: Sequence[ScoredText]) -> int:
    """Place of the most probable choice, from 0; of equals the first, as in lm-eval."""
    return int(np.argmax([text.logprob for text in own[: n_choices(task, document, own)]]))


def full_choices(task: LmEvalTask, documents: Sequence[Document], scored: ScoredTexts) -> Full:
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


def choice_rows(
    task: LmEvalTask, documents: Sequence[Document], scored: ScoredTexts, full: Full
) -> list[dict[str, Any]]:
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


def token_rows(
    documents: Sequence[Document], scored: ScoredTexts, full: Full, parts: Parts | None
) -> list[dict[str, Any]]:
    """Return one row per token of a text; ``parts`` as of `TokenRecord.to_row`."""
    rows = []
    for document in documents:
        for choice, text in enumerate(scored[document.key], start=1):
            whole = full[document.key, choice]
            rows += [
                {
                    **record.to_row(parts),
                    "doc_key": document.key,
                    "choice": choice,
                    "position": index + 1,
                    "full_logprob": whole.logprobs[index],
                    "full_is_greedy": whole.greedy[index],
                }
                for index, record in enumerate(record for part in text.parts for record in part.records)
            ]
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
