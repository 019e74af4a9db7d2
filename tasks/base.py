"""Base class of tasks: documents, prompts, targets, scores, and how scores are aggregated.

A task reads the same records from three sources: built-in generated data, local files in the data set's original
format, or the hub. Scoring never needs the network. Scores are kept per document, as values and as sufficient
statistics, so that a metric over any subset of documents is computed from sums.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Literal, get_args

import numpy as np
import numpy.typing as npt

from exitbench.errors import UserError, suggestion
from exitbench.tasks import lm_eval_bridge
from exitbench.tasks.document import DEFAULT_LEVEL, Document, DocumentScore, canonical_json
from exitbench.tasks.sources import resolve_files
from exitbench.tasks.styles import Prompting, StyleTexts

SourceKind = Literal["builtin", "local", "hub"]
Part = Literal["all", "train", "test"]
"""Part of local files: all, or about four fifths or one fifth of their documents, by a hash of `Task.group`."""
ModelKind = Literal["seq2seq", "causal", "encoder"]
"""Encoder-decoder, decoder-only, or encoder-only with a classifier on top."""
OutputType = Literal["generate_until", "multiple_choice", "loglikelihood", "loglikelihood_rolling", "classification"]
FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Source:
    """Origin of a task's records: generated data, local files, or a data set of the hub.

    Attributes:
        kind: "builtin" (generated, no network), "local" (files in the data set's original format) or "hub".
        data_dir: Local only: folder that the paths in `files` are relative to.
        files: Local only: pairs (role, path); a role says what the file is for, such as `data`. The task's
            `local_roles` has the allowed sets of roles.
        level: Built-in data only: difficulty, 1 to 3.
        part: Local only: which of the documents are read: all, or those of the train or test part (`Part`).
    """

    kind: SourceKind = "builtin"
    data_dir: Path | None = None
    files: tuple[tuple[str, str], ...] = ()
    level: int = DEFAULT_LEVEL
    part: Part = "all"

    def __post_init__(self) -> None:
        if self.kind not in get_args(SourceKind):
            raise UserError(f"source: unknown kind {self.kind!r}.{suggestion(str(self.kind), get_args(SourceKind))}")


class Task(ABC):
    """Base class of tasks. Instances have no state: every result is a function of the documents.

    Attributes:
        name: The task's name in suites.
        metric_version: Changes whenever a score could change; part of a cell's identity.
        metrics: Names of the metrics; the first is the headline metric.
        lower_is_better: Those of `metrics` for which lower is better; for all others, higher is better.
        output_type: The kind of request: generated text, likelihoods of given texts, or a label or number per text.
        consistency_metric: The one of `metrics` with which calibrations compare an early-exit answer with the
            full-depth answer.
        default_max_new_tokens: Maximum number of generated tokens if the suite sets none.
        local_roles: Allowed sets of roles in `Source.files`. A role says what a file is for, such as `data`.
        redistributable: True if the licence of its local and hub records allows redistributing their texts without
            further conditions; otherwise exports leave the texts out. Generated records may always be redistributed.
        style_texts: Texts of the prompt styles `chat` and `completion`; None if the task has only its own prompts.
        prompting: Prompts of another style, if the cell requests one; None: the task's own prompts.
    """

    name: str
    metric_version: str
    metrics: tuple[str, ...]
    consistency_metric: str
    default_max_new_tokens: int
    local_roles: tuple[frozenset[str], ...]
    redistributable: bool = False
    lower_is_better: frozenset[str] = frozenset()
    output_type: OutputType = "generate_until"
    style_texts: StyleTexts | None = None
    prompting: Prompting | None = None

    @property
    def headline(self) -> str:
        """Name of the headline metric: the first of `metrics`."""
        return self.metrics[0]

    def load(self, source: Source, split: str, limit: int | None, seed: int = 0) -> list[Document]:
        """Read the documents of a split, in file order.

        Args:
            source: Where the records are read from. `split` does not select among the records of local files.
            split: "train", "calibration", "validation" or "test" (hub: the data set's own names).
            limit: Maximum number of documents, chosen by hash so that a larger limit gives a superset. None keeps all.
            seed: Seed of the built-in data; ignored for other sources.

        Raises:
            UserError: Invalid input; the message names the file and the line or record.
        """
        if limit is not None and limit < 1:
            raise UserError(
                f"{self.name}: limit is {limit}. Allowed: a number from 1 up, or none to keep all documents."
            )
        documents = self._read(source, split, seed)
        if not documents:
            raise UserError(f"{self.name}: the {source.kind} source holds no records for split {split!r}.")
        _require_distinct(self.name, documents)
        return take_by_hash(documents, limit)

    def _read(self, source: Source, split: str, seed: int) -> list[Document]:
        if source.kind == "builtin":
            # Imported here: reading files does not need the generator.
            from exitbench.tasks.builtin import documents

            return documents(self.name, split, None, seed, source.level)
        if source.kind == "hub":
            return [Document.from_fields(fields) for fields in self._read_hub(split)]
        files = resolve_files(self.name, source.data_dir, source.files, self.local_roles)
        records = [Document.from_fields(fields) for fields in self._read_local(files)]
        if source.part == "all":
            return records
        selected = [record for record in records if part_of(self.group(record)) == source.part]
        if not selected:
            names = " and ".join(path for _, path in source.files)
            raise UserError(f'{self.name}: part {source.part!r} of {names} has no documents. Allowed: part = "all".')
        return selected

    @abstractmethod
    def _read_local(self, files: Mapping[str, Path]) -> list[dict[str, Any]]:
        """Read local files, by role (what a file is for, such as `data`), into one dictionary of fields per record."""

    @abstractmethod
    def _read_hub(self, split: str) -> list[dict[str, Any]]:
        """Read a split of the hub's data set into one dictionary of fields per record."""

    @abstractmethod
    def prompt(self, doc: Document) -> str:
        """Return a document's complete input text for an encoder-decoder model."""

    def causal_prompt(self, doc: Document) -> str:
        """Return a document's complete input text for a decoder-only model; by default `prompt`."""
        return self.prompt(doc)

    def prompt_for(self, doc: Document, kind: ModelKind) -> str:
        """Return a document's complete input text for a model of this kind, in the cell's prompt style.

        A chat template, if any, is applied by the caller.
        """
        if self.prompting is not None:
            return self.prompting.text(doc.fields)
        return self.causal_prompt(doc) if kind == "causal" else self.prompt(doc)

    def prompts(self, documents: Sequence[Document], kind: ModelKind) -> list[str]:
        """Return one text per document that identifies all its requests to a model of this kind; used in digests."""
        return [self.prompt_for(document, kind) for document in documents]

    def likeness(self, doc: Document) -> str:
        """Return a text that is equal for documents with the same question, whatever their references or ids."""
        return self.prompt(doc)

    def passage(self, doc: Document) -> str:
        """Return the text whose equality keeps a document from being a few-shot example for another one.

        A document with the same text as an evaluated one cannot be an example. By default, this is the result of
        `likeness`, which is the prompt. A task whose documents share a source text, such as questions on one paragraph,
        returns that instead.
        """
        return self.likeness(doc)

    def group(self, doc: Document) -> str:
        """Return a text that is equal for documents that must be in the same part (train or test) of a file.

        By default, it is the `passage`.
        """
        return self.passage(doc)

    @abstractmethod
    def target(self, doc: Document) -> str:
        """Return the training target, which is the document's first reference."""

    @abstractmethod
    def with_reference(self, doc: Document, text: str) -> Document:
        """Return a copy of the document with `text` as its only reference, to measure how far two outputs agree."""

    @abstractmethod
    def score(self, doc: Document, output: str) -> DocumentScore:
        """Return the scores of one output text against the document's references."""

    def aggregate(self, metric: str, total: FloatArray, n: FloatArray) -> FloatArray:
        """Return a metric's value from statistics summed over documents; by default, a plain mean.

        Args:
            metric: One of `metrics`.
            total: [..., S] sums over documents of the metric's S statistics (`summands`), with any leading dimensions
                (bootstrap weights @ statistics gives [resamples, S]).
            n: [...] number of documents per sum, at least 1.

        Returns:
            [...] metric values, 0..100.
        """
        return total[..., 0] / n

    def aggregator(self, metric: str) -> Callable[[FloatArray, FloatArray], FloatArray]:
        """Return the function that computes a metric from (summed statistics, numbers of documents): `aggregate`.

        A task overrides this for a metric that is not a function of sums, such as a rank correlation. Then the function
        has a true attribute `of_columns`, and maps the statistics of all documents [n, S], and how often each document
        counts [..., n], to the metric [...].
        """
        return partial(self.aggregate, metric)

    def bounds(self, metric: str) -> tuple[float, float] | None:
        """Return the lowest and the highest possible value of a metric; None if it is unbounded."""
        return 0.0, 100.0

    def shortfall(self, metric: str, value: float, reference: float | None = None) -> float:
        """Return how much worse a value is than a reference, as a share of the metric's range; negative if better.

        Args:
            metric: One of `metrics`. An unbounded metric is assumed to range from 0 to 100.
            value: The metric's value.
            reference: The value to compare with; None: the best possible value.
        """
        low, high = self.bounds(metric) or (0.0, 100.0)
        if metric in self.lower_is_better:
            return (value - (low if reference is None else reference)) / (high - low)
        return ((high if reference is None else reference) - value) / (high - low)

    def lm_eval_config(self, documents: Sequence[Document], kind: ModelKind) -> dict[str, Any]:
        """Return a task configuration for lm-eval's ``TaskManager(include_defaults=False).load([...])``.

        Prompts are those for a model of this kind.

        Every record has its document's key as `doc_key`. lm-eval's samples have each document's values under the
        metrics' names. lm-eval's aggregated results equal `aggregate` over all documents.
        """
        return lm_eval_bridge.config(self, documents, kind)


def part_of(group: str) -> Part:
    """Return the part (train or test) of documents with this `Task.group`, by a hash: test for about one in five."""
    return "test" if int(sha256(group.encode()).hexdigest()[:8], 16) % 5 == 0 else "train"


def take_by_hash(documents: Sequence[Document], limit: int | None) -> list[Document]:
    """Return the `limit` documents with the smallest keys (hashes), in their given order; all if `limit` is None."""
    if limit is None or limit >= len(documents):
        return list(documents)
    last = sorted(document.key for document in documents)[limit - 1]
    return [document for document in documents if document.key <= last]


def documents_sha256(documents: Sequence[Document]) -> str:
    """Return the SHA-256 of the fields of all documents, in the documents' order."""
    digest = sha256()
    for document in documents:
        digest.update(canonical_json(document.fields).encode() + b"\n")
    return digest.hexdigest()


def _require_distinct(task: str, documents: Sequence[Document]) -> None:
    first: dict[str, int] = {}
    for position, document in enumerate(documents, start=1):
        if document.key in first:
            raise UserError(
                f"{task}: record {position} repeats record {first[document.key]} in every field "
                f"(id {document.fields.get('id')!r}). Each document must be given once."
            )
        first[document.key] = position


CHECKED: Final = 200
"""The number of documents checked by `self_score_remarks`, from the first one on."""
_ROUNDING: Final = 1e-6
_ROUGE: Final = "rouge-score keeps only the letters a to z and the digits 0 to 9"
_SQUAD: Final = "SQuAD's rules leave out articles (a, an, the) and punctuation"
_WHY: Final[Mapping[str, str]] = {
    "rouge1": _ROUGE,
    "rouge2": f"{_ROUGE}, and counts pairs of words",
    "rougeL": _ROUGE,
    "rougeLsum": _ROUGE,
    "f1": _SQUAD,
    "em": _SQUAD,
    "bleu": "BLEU counts runs of four words, and sacrebleu's tokenizer cuts the references into fewer",
}


def self_score_remarks(task: Task, documents: Sequence[Document]) -> tuple[str, ...]:
    """Score each document's reference as if it were a model's output, and report metrics below their best value.

    A corpus metric (BLEU) may be low for one short sentence; it is reported only if it is low for most documents.

    Args:
        task: A task with generated answers; for other tasks the result is empty.
        documents: The task's documents, of which the first `CHECKED` are scored.

    Returns:
        One sentence per metric under which some references score below the best value.
    """
    if task.output_type != "generate_until":
        return ()
    scores = [task.score(document, task.target(document)) for document in documents[:CHECKED]]
    remarks = []
    for metric in task.metrics:
        bounds = task.bounds(metric)
        if bounds is None:
            continue
        least_good = metric in task.lower_is_better
        best = bounds[0] if least_good else bounds[1]
        values = task.aggregate(metric, np.array([score.summands(metric) for score in scores]), np.ones(len(scores)))
        is_imperfect = np.abs(values - best) > _ROUNDING
        if is_imperfect.sum() > (len(scores) / 2 if metric in scores[0].statistics else 0):
            worst = float((values.max if least_good else values.min)())
            is_one = bool((values[is_imperfect] == worst).all())
            value = f"{worst:.3g}" if is_one else f"not {best:g} (the worst: {worst:.3g})"
            remarks.append(
                f"{metric} of {is_imperfect.sum()} of {len(scores)} references is {value} even for the reference itself"
                + (f": {_WHY[metric]}" if metric in _WHY else "")
            )
    return tuple(remarks)
