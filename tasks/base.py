"""Task base class: documents, a prompt, a target, a score, and how scores add up.

A task reads the same records from three sources (built-in generated data, local files in the data
set's original format, the hub) and never needs the network to score. Scores are kept per document,
as values and as sufficient statistics, so that a metric over any of them is a sum away.
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

SourceKind = Literal["builtin", "local", "hub"]
ModelKind = Literal["seq2seq", "causal", "encoder"]
"""Encoder-decoder, decoder-only, or encoder-only with a classifier on top."""
OutputType = Literal["generate_until", "multiple_choice", "loglikelihood", "loglikelihood_rolling", "classification"]
FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Source:
    """Where a task's records come from.

    Attributes:
        kind: "builtin" (generated, no network), "local" (files in the original format), "hub".
        data_dir: Local only: folder that the paths of `files` are relative to.
        files: Local only: pairs (role, path). The roles are the task's `local_roles`.
        level: Built-in data only: how hard they are, 1 to 3.
    """

    kind: SourceKind = "builtin"
    data_dir: Path | None = None
    files: tuple[tuple[str, str], ...] = ()
    level: int = DEFAULT_LEVEL

    def __post_init__(self) -> None:
        if self.kind not in get_args(SourceKind):
            raise UserError(f"source: unknown kind {self.kind!r}.{suggestion(str(self.kind), get_args(SourceKind))}")


class Task(ABC):
    """One task. Instances have no state: everything is a function of the documents.

    Attributes:
        name: What suites call it.
        metric_version: Changes whenever a score could change; part of a cell's identity.
        metrics: Names of the metrics, headline first.
        lower_is_better: Those of `metrics` for which less is better; higher is for all others.
        output_type: What is asked of a model: texts, likelihoods of given ones, or a label or number for each text.
        consistency_metric: The metric, of `metrics`, by which two texts are compared in calibrations.
        default_max_new_tokens: Budget of generated tokens when the suite gives none.
        local_roles: The sets of roles that `Source.files` may consist of.
        redistributable: Whether the licence of its local and hub records lets anybody hand on their texts, without more
            ado; exports leave them out otherwise. Generated records are anybody's.
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

    @property
    def headline(self) -> str:
        """The metric, of `metrics`, that stands for the task where there is room for one."""
        return self.metrics[0]

    def load(self, source: Source, split: str, limit: int | None, seed: int = 0) -> list[Document]:
        """Read the documents of a split, in file order.

        Args:
            source: Where from. Local files are what they are: `split` does not select among them.
            split: "train", "calibration", "validation" or "test" (hub: the data set's own names).
            limit: Keep the documents whose keys come first in hash order, so that a larger limit
                gives a superset. None keeps all.
            seed: Built-in data only.

        Raises:
            UserError: For bad input, naming the file and the line or record.
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
            # Imported here: whoever reads files needs no generator.
            from exitbench.tasks.builtin import documents

            return documents(self.name, split, None, seed, source.level)
        if source.kind == "hub":
            return [Document.from_fields(fields) for fields in self._read_hub(split)]
        files = resolve_files(self.name, source.data_dir, source.files, self.local_roles)
        return [Document.from_fields(fields) for fields in self._read_local(files)]

    @abstractmethod
    def _read_local(self, files: Mapping[str, Path]) -> list[dict[str, Any]]:
        """Read the fields of every record of local files, given by role."""

    @abstractmethod
    def _read_hub(self, split: str) -> list[dict[str, Any]]:
        """Read the fields of every record of a hub split."""

    @abstractmethod
    def prompt(self, doc: Document) -> str:
        """Return the whole input text of an encoder-decoder."""

    def causal_prompt(self, doc: Document) -> str:
        """Return the whole input text of a decoder-only model: the same, unless the task says otherwise."""
        return self.prompt(doc)

    def prompt_for(self, doc: Document, kind: ModelKind) -> str:
        """Return the whole input text of a model of this kind."""
        return self.causal_prompt(doc) if kind == "causal" else self.prompt(doc)

    def prompts(self, documents: Sequence[Document], kind: ModelKind) -> list[str]:
        """Return all that is asked about each document, of a model of this kind, as one text, for digests."""
        return [self.prompt_for(document, kind) for document in documents]

    def likeness(self, doc: Document) -> str:
        """Return a text that is equal for documents that ask the same, whatever their references or ids."""
        return self.prompt(doc)

    @abstractmethod
    def target(self, doc: Document) -> str:
        """Return the training target, which is the first reference."""

    @abstractmethod
    def with_reference(self, doc: Document, text: str) -> Document:
        """Return the document with another text as its only reference (textual consistency)."""

    @abstractmethod
    def score(self, doc: Document, output: str) -> DocumentScore:
        """Score one output text against the document's references."""

    def aggregate(self, metric: str, total: FloatArray, n: FloatArray) -> FloatArray:
        """Turn summed statistics into the metric's value; a plain mean unless a task says otherwise.

        Args:
            metric: One of `metrics`.
            total: [..., S] sums over documents of `DocumentScore.summands(metric)`, with any
                leading dimensions (bootstrap weights @ statistics gives [resamples, S]).
            n: [...] number of documents in each sum, at least 1.

        Returns:
            [...] metric values, 0..100.
        """
        return total[..., 0] / n

    def aggregator(self, metric: str) -> Callable[[FloatArray, FloatArray], FloatArray]:
        """Return `aggregate` of a metric.

        Of one that no sums tell, such as a rank correlation: a function with a true attribute `of_columns`, from the
        summands [n, S] of all documents and how often each counts, [..., n], to the metric [...].
        """
        return partial(self.aggregate, metric)

    def bounds(self, metric: str) -> tuple[float, float] | None:
        """Return the least and the greatest value that a metric can have; None where there is no such."""
        return 0.0, 100.0

    def shortfall(self, metric: str, value: float, reference: float | None = None) -> float:
        """Return how much worse a value is than a reference value, as a share of the metric's scale; negative: better.

        Args:
            metric: One of `metrics`. Without a scale it is taken to be on one of 0 to 100.
            value: The metric's value.
            reference: Another value of it; None: the best that there can be.
        """
        low, high = self.bounds(metric) or (0.0, 100.0)
        if metric in self.lower_is_better:
            return (value - (low if reference is None else reference)) / (high - low)
        return ((high if reference is None else reference) - value) / (high - low)

    def lm_eval_config(self, documents: Sequence[Document], kind: ModelKind) -> dict[str, Any]:
        """Return a task configuration for lm-eval's ``TaskManager(include_defaults=False).load([...])``.

        Prompts are those of a model of this kind.

        Every record carries `doc_key`. Samples hold the per-document values under the metrics'
        names; lm-eval's aggregated results equal `aggregate` over all documents.
        """
        return lm_eval_bridge.config(self, documents, kind)


def take_by_hash(documents: Sequence[Document], limit: int | None) -> list[Document]:
    """Keep the `limit` documents whose keys sort first, in the order given; None keeps all."""
    if limit is None or limit >= len(documents):
        return list(documents)
    last = sorted(document.key for document in documents)[limit - 1]
    return [document for document in documents if document.key <= last]


def documents_sha256(documents: Sequence[Document]) -> str:
    """Return the digest of what is evaluated: the fields of all documents, in their order."""
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
"""Documents of a task that are looked at, the first ones."""
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
    """Score each document's reference as if a model had answered it.

    A metric of the whole corpus (BLEU) may be low for one short sentence alone; it is remarked on where it is for most.

    Args:
        task: A task whose answers are texts; others have nothing to be remarked on.
        documents: Its documents, of which the first `CHECKED` are looked at.

    Returns:
        One sentence per metric under which references are below its best value.
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
        alone = task.aggregate(metric, np.array([score.summands(metric) for score in scores]), np.ones(len(scores)))
        away = np.abs(alone - best) > _ROUNDING
        if away.sum() > (len(scores) / 2 if metric in scores[0].statistics else 0):
            worst = float((alone.max if least_good else alone.min)())
            is_one = bool((alone[away] == worst).all())
            value = f"{worst:.3g}" if is_one else f"not {best:g} (the worst: {worst:.3g})"
            remarks.append(
                f"{metric} of {away.sum()} of {len(scores)} references is {value} even for the reference itself"
                + (f": {_WHY[metric]}" if metric in _WHY else "")
            )
    return tuple(remarks)
