"""What a number format changes: log-probabilities and choices of full depth, next to those of its weights in float32.

Full depth's quality cell measures it where its number format is another one: it loads the checkpoint a second time, in
float32, and reads a few of its documents with both. Documents are read one by one, so that beside the weights little
memory is needed; where there is not enough, the quality is measured without.

Metrics, all of role ``format``:
    format_logprob_gap: Mean absolute difference of log-probabilities, nats: of choices, labels, or tokens.
    format_choice_gap: The same of the differences between two choices (or labels), over all pairs of a document.
    format_choice_match: Share of documents with the same choice or label.
    format_token_match: Share of tokens that are the most probable ones in both formats or in neither; of generated
        answers these are full depth's tokens, each behind those before it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

import numpy as np
import torch

from exitbench.errors import UserError, is_out_of_memory
from exitbench.harness.cells.job import CellJob
from exitbench.harness.cells.seeds import seed_for
from exitbench.harness.cells.texts import EncodedText
from exitbench.harness.engine.checkpoints.encoder_loading import EncoderCheckpoint
from exitbench.harness.engine.checkpoints.loading import Checkpoint
from exitbench.harness.engine.checkpoints.sizes import gib, weights_bytes
from exitbench.harness.engine.decoding.branches import Context
from exitbench.harness.engine.decoding.likelihood import Scored, score
from exitbench.harness.engine.encoders.classify import pooled_states
from exitbench.harness.engine.encoders.model import EncoderClassifier
from exitbench.harness.engine.model.available import available_bytes
from exitbench.harness.running.choice_tables import chosen_place, n_choices
from exitbench.harness.running.lm import Answer
from exitbench.harness.running.passes.session import Session, load_model, with_role
from exitbench.harness.running.scored_texts import ScoredText, score_texts
from exitbench.harness.running.scoring import Metric
from exitbench.results.statistics.intervals import Interval, bounded_ratio_interval, ratio_interval
from exitbench.tasks.base import take_by_hash
from exitbench.tasks.classification import ClassificationTask
from exitbench.tasks.document import Document
from exitbench.tasks.lm_eval.task import LmEvalTask

REFERENCE: Final = "float32"
"""The number format that others are compared with."""
DOCUMENTS: Final = 50
"""Documents that are read in both formats, at most: those whose keys sort first."""
_ROOM: Final = 1.25
"""Times the weights' bytes that must be free: activations and a document's keys and values need some too."""

_Loaded = Checkpoint | EncoderCheckpoint


def answer_gaps(
    session: Session, item: CellJob, documents: Sequence[Document], answers: Sequence[Answer]
) -> dict[str, Metric]:
    """Return what the number format changes of generated answers, token by token; empty where it is not measured."""

    def compare(reference: _Loaded) -> dict[str, Interval]:
        by_key = dict(zip((document.key for document in documents), answers, strict=True))
        contexts = [
            Context(session.request(item, document).prompt_ids, [by_key[document.key].generation.token_ids])
            for document in _sampled(documents)
            if by_key[document.key].generation.token_ids
        ]
        assert isinstance(reference, Checkpoint), "the planner gives encoders tasks of their own"
        own, other = (
            score(one, contexts, session.full_parts(), rows=1, traced=False) for one in (session.checkpoint, reference)
        )
        return _of_tokens(item, zip(own, other, strict=True))

    return _compared(session, item, compare)


def choice_gaps(
    session: Session, item: CellJob, documents: Sequence[Document], scored: Mapping[str, Sequence[ScoredText]]
) -> dict[str, Metric]:
    """Return what the number format changes of scored texts; empty where it is not measured."""
    task = item.data.task_object
    assert isinstance(task, LmEvalTask), "only lm-eval's tasks ask for log-likelihoods"

    def compare(reference: _Loaded) -> dict[str, Interval]:
        chosen = _sampled(documents)
        assert isinstance(reference, Checkpoint), "the planner gives encoders tasks of their own"
        seed_of = functools.partial(seed_for, "decode", item.cell.seed)
        texts, parts = session.texts(item, chosen), session.full_parts()
        others = score_texts(reference, texts, parts, item.cell.generation, 1, seed_of, lambda done: None)
        if task.output_type != "multiple_choice":
            pairs = ((_parts(scored[document.key]), _parts(others[document.key])) for document in chosen)
            return _of_tokens(item, pairs)
        rows = []
        for document in chosen:
            own, other = scored[document.key], others[document.key]
            n = n_choices(task, document, own)
            rows.append(
                _Choices(
                    [text.logprob for text in own[:n]],
                    [text.logprob for text in other[:n]],
                    chosen_place(task, document, own) == chosen_place(task, document, other),
                )
            )
        return _of_choices(item, rows)

    return _compared(session, item, compare)


def label_gaps(session: Session, item: CellJob, documents: Sequence[Document]) -> dict[str, Metric]:
    """Return what the number format changes of an encoder's labels; empty where it is not measured, or has none."""
    task = item.data.task_object
    assert isinstance(task, ClassificationTask), "the planner gives encoders tasks of their own"
    if task.is_regression:
        return {}

    def compare(reference: _Loaded) -> dict[str, Interval]:
        assert isinstance(reference, EncoderCheckpoint), "the planner gives encoders tasks of their own"
        texts = session.encoded(item, _sampled(documents))
        own, other = (_label_logprobs(model, texts) for model in (session.classifier, reference.model))
        pairs = zip(own.tolist(), other.tolist(), strict=True)
        return _of_choices(item, [_Choices(a, b, int(np.argmax(a)) == int(np.argmax(b))) for a, b in pairs])

    return _compared(session, item, compare)


def _sampled(documents: Sequence[Document]) -> list[Document]:
    return take_by_hash(documents, DOCUMENTS)


def _compared(session: Session, item: CellJob, compare: Callable[[_Loaded], dict[str, Interval]]) -> dict[str, Metric]:
    """Load the reference and compare; empty for float32, for early exits, and where there is no memory for it."""
    cell = item.cell
    if cell.dtype == REFERENCE or cell.full_depth_cell_id is not None:
        return {}
    try:
        _require_room(session, item)
        reference = load_model(session.model_path, torch.float32, cell.device, cell.engine, cell.device_map)
        return with_role("format", compare(reference))
    except Exception as error:
        if not (isinstance(error, UserError) or is_out_of_memory(error)):
            raise
        print(f"{item.label}: {cell.dtype} was not compared with {REFERENCE}: {error}", file=sys.stderr)
        return {}


def _require_room(session: Session, item: CellJob) -> None:
    """Check that the weights fit into memory a second time, in float32.

    Raises:
        UserError: They do not; has the numbers.
    """
    if torch.cuda.is_available():
        torch.cuda.empty_cache()  # what torch keeps of the pass before counts as used
    devices = [item.cell.device] if item.cell.device_map is None else list(dict(item.cell.device_map))
    needed, available = _ROOM * weights_bytes(session.model_path, torch.float32), available_bytes(*devices)
    if available is not None and needed > available:
        raise UserError(f"that needs {gib(round(needed))}, and {gib(available)} are available on {', '.join(devices)}.")


@torch.inference_mode()
def _label_logprobs(model: EncoderClassifier, texts: Sequence[EncodedText]) -> np.ndarray:
    """Log-probability of each label at full depth, [n, C]."""
    logits = [model.logits(pooled_states(model, [text])[-1])[0] for text in texts]
    found: np.ndarray = torch.stack(logits).float().log_softmax(-1).cpu().numpy()
    return found


def _parts(texts: Sequence[ScoredText]) -> list[Scored]:
    return [part for text in texts for part in text.parts]


def _of_tokens(item: CellJob, pairs: Iterable[tuple[Sequence[Scored], Sequence[Scored]]]) -> dict[str, Interval]:
    """Compare tokens, given what was scored of each document in both formats."""
    gaps: list[float] = []
    same: list[int] = []
    counts: list[int] = []
    for own, other in pairs:
        tokens = [
            (abs(a - b), is_greedy == is_other_greedy)
            for one, two in zip(own, other, strict=True)
            for a, b, is_greedy, is_other_greedy in zip(one.logprobs, two.logprobs, one.greedy, two.greedy, strict=True)
        ]
        gaps.append(sum(gap for gap, _ in tokens))
        same.append(sum(is_same for _, is_same in tokens))
        counts.append(len(tokens))
    if not sum(counts):
        return {}
    return {
        "format_logprob_gap": _mean(item, gaps, counts),
        "format_token_match": bounded_ratio_interval(same, counts),
    }


@dataclass(frozen=True)
class _Choices:
    """Log-probabilities of a document's choices in both formats, and whether both choose the same."""

    own: Sequence[float]
    other: Sequence[float]
    is_same: bool


def _of_choices(item: CellJob, documents: Sequence[_Choices]) -> dict[str, Interval]:
    """Compare choices, one entry per document."""
    moved = [[a - b for a, b in zip(one.own, one.other, strict=True)] for one in documents]
    apart = [[abs(a - b) for a, b in combinations(each, 2)] for each in moved]
    intervals = {
        "format_logprob_gap": _mean(item, [sum(map(abs, each)) for each in moved], list(map(len, moved))),
        "format_choice_match": bounded_ratio_interval([one.is_same for one in documents], [1] * len(documents)),
    }
    if any(apart):
        intervals["format_choice_gap"] = _mean(item, list(map(sum, apart)), list(map(len, apart)))
    return intervals


def _mean(item: CellJob, sums: Sequence[float], counts: Sequence[int]) -> Interval:
    return ratio_interval(sums, counts, seed=seed_for("bootstrap", item.cell.seed))
