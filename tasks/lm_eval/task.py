"""A task, group or tag of lm-eval as a `Task`."""

import base64
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from exitbench.errors import UserError
from exitbench.tasks.base import FloatArray, ModelKind, OutputType, Source, Task
from exitbench.tasks.document import Document, DocumentScore, canonical_json
from exitbench.tasks.lm_eval import metrics
from exitbench.tasks.lm_eval.configs import LeafConfig, generation_of, leaf_configs, lm_eval_version
from exitbench.tasks.lm_eval.leaves import Chat, Leaf, leaves
from exitbench.tasks.lm_eval.metrics import LmEvalMetric, metrics_of
from exitbench.tasks.lm_eval.settings import PREFIX, LmEvalSettings

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

_DEFAULT_MAX_NEW_TOKENS = 256
"""lm-eval's default for tasks that set none."""


@dataclass(frozen=True)
class LmEvalDocument(Document):
    """Document of an lm-eval task.

    `fields` are task (lm-eval's name of the single task), split (test, validation or train), doc_id (lm-eval's index of
    the document in the split) and doc (the record). Documents from `with_reference` also have `reference`.

    Attributes:
        source: Source of the record, and of the few-shot examples in its prompt. Not part of the key.
    """

    source: Source = field(default_factory=Source)


class LmEvalTask(Task):
    """Task, group or tag of lm-eval: its documents, requests, filters, scores and aggregation are lm-eval's.

    Metrics that are proportions, such as accuracy, are scaled to 0..100; all others are as in lm-eval.

    Args:
        name: Name in suites, with the prefix `lm-eval:`.
        settings: The suite's settings of the task, such as the number of few-shot examples.

    Raises:
        UserError: The task does not exist; the members of the group or tag cannot be combined; or no metric is a
            function of sums over documents.
    """

    local_roles = ()

    def __init__(self, name: str, settings: LmEvalSettings) -> None:
        self.name, self.settings = name, settings
        self._own_name = name.removeprefix(PREFIX)
        configs = leaf_configs(self._own_name, settings)
        self._configs = {config.task_name: config for config in configs}
        first = configs[0]
        self._metrics = {metric.name: metric for metric in metrics_of(first)}
        self.metrics = tuple(self._metrics)
        self.lower_is_better = frozenset(name for name, entry in self._metrics.items() if not entry.higher_is_better)
        self.consistency_metric = self.metrics[0]
        self.output_type = cast(OutputType, first.output_type)
        self.metric_version = _version(configs)
        is_generating = self.output_type == "generate_until"
        self.generation_kwargs: dict[str, Any] = generation_of(first.config) if is_generating else {}
        """Generation arguments with the settings applied: until, max_gen_toks, ...; empty for other output types."""
        max_gen_toks = self.generation_kwargs.get("max_gen_toks")
        self.default_max_new_tokens = int(max_gen_toks) if max_gen_toks else _DEFAULT_MAX_NEW_TOKENS

    @property
    def num_fewshot(self) -> int:
        """Number of few-shot examples before each question, according to the first single task."""
        return next(iter(self._configs.values())).num_fewshot

    @cached_property
    def is_unsafe(self) -> bool:
        """True if scoring runs code that the model wrote."""
        return any(bool(config.config.get("unsafe_code")) for config in self._configs.values())

    def bounds(self, metric: str) -> tuple[float, float] | None:
        """Return the lowest and the highest possible value of a metric; None if it is unbounded."""
        return self._metrics[metric].bounds

    def aggregate(self, metric: str, total: FloatArray, n: FloatArray) -> FloatArray:
        """Return lm-eval's value of a metric [...] from sums [..., S] of its S statistics over `n` documents [...]."""
        return self._metrics[metric].aggregate(total, n)

    def instances(self, documents: Sequence[Document], chat: Chat | None = None) -> "dict[str, list[Instance]]":
        """Return lm-eval's requests per document, by document key, in the order of lm-eval's request index (`idx`).

        Args:
            documents: Documents from `load`.
            chat: A system message and a chat template; None for neither.
        """
        by_key: dict[str, list[Instance]] = {}
        for leaf, split, by_ordinal in self._group_by_leaf(documents):
            subset = leaf.subset_task(split, sorted(by_ordinal), chat)
            subset.build_all_requests()
            for instance in subset.instances:
                by_key.setdefault(by_ordinal[instance.doc_id].key, []).append(instance)
        return {document.key: sorted(by_key[document.key], key=lambda request: request.idx) for document in documents}

    def evaluate(
        self,
        lm: Any,
        documents: Sequence[Document],
        chat: Chat | None = None,
        confirm_run_unsafe_code: bool = False,
    ) -> tuple[dict[str, DocumentScore], dict[str, float]]:
        """Have lm-eval's `evaluate()` run a model and score its answers.

        Args:
            lm: lm-eval's `LM`.
            documents: Documents from `load`; requests are in the order of lm-eval's data set, task by task.
            chat: A system message and a chat template; None for neither.
            confirm_run_unsafe_code: True if the task's scoring may run code that the model wrote.

        Returns:
            The score of each document, by its key; and lm-eval's own aggregated value of each metric, with
            proportions scaled to 0..100.

        Raises:
            UserError: The task runs code that the model wrote, and that was not confirmed.
        """
        self._require_confirmed(confirm_run_unsafe_code)
        return metrics.evaluate(lm, self._group_by_leaf(documents), tuple(self._metrics.values()), chat)

    def score_responses(
        self,
        documents: Sequence[Document],
        responses: Mapping[str, Sequence[Any]],
        confirm_run_unsafe_code: bool = False,
    ) -> dict[str, DocumentScore]:
        """Score existing responses with lm-eval's own filters and rules.

        Args:
            documents: Documents from `load`.
            responses: Per document, one response for each of its `instances`, in order: a text (generate_until), a pair
                of log-likelihood and whether the text is the greedy decode (multiple_choice, loglikelihood), or a
                log-likelihood (loglikelihood_rolling). For a task with repeats, a list with one response per
                repeat, or one response for all.
            confirm_run_unsafe_code: As in `evaluate`.
        """
        self._require_confirmed(confirm_run_unsafe_code)
        return metrics.score(self._group_by_leaf(documents), responses, tuple(self._metrics.values()))

    def stored_responses(
        self, samples: Iterable[Mapping[str, Any]], choices: Iterable[Mapping[str, Any]]
    ) -> dict[str, list[Any]]:
        """Convert stored rows to responses per document, by document key, as `score_responses` takes them.

        Args:
            samples: Rows of the spool's ``samples`` table.
            choices: Rows of its ``choices`` table; empty for a generation task.
        """
        if self.output_type == "generate_until":
            return {row["doc_key"]: [row["output_text"]] for row in samples}
        is_rolling = self.output_type == "loglikelihood_rolling"
        responses: dict[str, list[Any]] = {}
        for row in sorted(choices, key=lambda row: int(row["choice"])):
            response = row["logprob"] if is_rolling else (row["logprob"], row["is_greedy"])
            responses.setdefault(row["doc_key"], []).append(response)
        return responses

    def score(self, doc: Document, output: str) -> DocumentScore:
        """Return the scores of a generated text (`output`).

        If the document's reference is another output (`with_reference`), the scores say only whether both agree. Each
        metric has its best value if the task's filters extract the same from both texts, else its worst value.
        """
        if "reference" in doc.fields:
            return self._same(doc, output)
        return self.score_responses([doc], {doc.key: [output]})[doc.key]

    def choices(self, doc: Document) -> list[str]:
        """Return the texts of the choices of a multiple-choice document."""
        leaf, record = self._leaf(doc)
        return [str(choice) for choice in leaf.task.doc_to_choice(record)]

    def right_choices(self, doc: Document) -> frozenset[int]:
        """Return the indices of the correct choices of a multiple-choice document; more than one is rare."""
        leaf, record = self._leaf(doc)
        task, choices = leaf.task, self.choices(doc)
        gold = task.doc_to_text(record) if getattr(task, "multiple_input", 0) else task.doc_to_target(record)
        indices = {_index(answer, choices) for answer in (gold if isinstance(gold, list | tuple) else [gold])}
        return frozenset(index for index in indices if 0 <= index < len(choices))

    def prompts(self, documents: Sequence[Document], kind: ModelKind) -> list[str]:
        """Return one text per document that identifies all its requests, for digests; it does not depend on `kind`."""
        requests = self.instances(documents)
        return [canonical_json([plain(request.args) for request in requests[document.key]]) for document in documents]

    def likeness(self, doc: Document) -> str:
        """Return the document's record as JSON.

        Prompts of equal records may differ in their few-shot examples, so records are compared instead.
        """
        return canonical_json(doc.fields["doc"])

    def prompt(self, doc: Document) -> str:
        """Return the context of a document's first request or, for a rolling log-likelihood, the whole text."""
        return str(self.instances([doc])[doc.key][0].args[0])

    def target(self, doc: Document) -> str:
        """Return the document's first reference as text; for multiple choice, the correct choices."""
        if self.output_type == "multiple_choice":
            return " / ".join(self.choices(doc)[index] for index in sorted(self.right_choices(doc)))
        leaf, record = self._leaf(doc)
        reference = leaf.task.doc_to_target(record)
        return str(reference[0] if isinstance(reference, list) and reference else reference)

    def with_reference(self, doc: Document, text: str) -> Document:
        """Return a copy of the document with `text` as its only reference."""
        return LmEvalDocument(doc.key, {**doc.fields, "reference": text}, source=_source(doc))

    def _read(self, source: Source, split: str, seed: int) -> list[Document]:
        documents: list[Document] = []
        for leaf in leaves(self._own_name, self.settings, source):
            # local files stand for the split they are given for; only a slice of it can be requested
            part, resolved = _part(leaf, "test" if source.files and "[" not in split else split)
            docs = leaf.docs(resolved)
            for ordinal in part:
                fields = _fields(leaf.name, resolved, ordinal, docs[ordinal])
                documents.append(LmEvalDocument(Document.from_fields(fields).key, fields, source=source))
        return documents

    def _read_local(self, files: Mapping[str, Path]) -> list[dict[str, Any]]:
        raise NotImplementedError("`_read` reads")

    def _read_hub(self, split: str) -> list[dict[str, Any]]:
        raise NotImplementedError("`_read` reads")

    def lm_eval_config(self, documents: Sequence[Document], kind: ModelKind) -> dict[str, Any]:
        """Raise NotImplementedError: lm-eval has its own configuration of the task; see `evaluate`."""
        raise NotImplementedError("tasks of lm-eval are evaluated by `evaluate`")

    def _group_by_leaf(self, documents: Sequence[Document]) -> list[tuple[Leaf, str, dict[int, Document]]]:
        """Group documents by lm-eval's task (never a group) and split.

        Returns:
            Per group: the task with its data, the split, and the documents by lm-eval's index in the split.
        """
        grouped: dict[tuple[Source, str, str], dict[int, Document]] = {}
        for document in documents:
            fields = document.fields
            place = (_source(document), str(fields["task"]), str(fields["split"]))
            grouped.setdefault(place, {})[int(fields["doc_id"])] = document
        groups = []
        for (source, name, split), by_ordinal in grouped.items():
            leaf = self._leaf_named(source, name)
            docs = leaf.docs(split)
            for ordinal, document in by_ordinal.items():
                if ordinal >= len(docs) or plain(docs[ordinal]) != document.fields["doc"]:
                    raise UserError(f"lm-eval: task {name!r}, document {ordinal}: not what was planned.")
            groups.append((leaf, split, by_ordinal))
        return groups

    def _leaf(self, doc: Document) -> tuple[Leaf, Any]:
        leaf = self._leaf_named(_source(doc), str(doc.fields["task"]))
        return leaf, leaf.docs(str(doc.fields["split"]))[int(doc.fields["doc_id"])]

    def _leaf_named(self, source: Source, name: str) -> Leaf:
        for leaf in leaves(self._own_name, self.settings, source):
            if leaf.name == name:
                return leaf
        raise UserError(f"lm-eval: {self._own_name!r} has no task {name!r}.")

    def _require_confirmed(self, confirmed: bool) -> None:
        if self.is_unsafe and not confirmed:
            raise UserError(
                f"{self.name}: scoring it runs what the model wrote. Allowed with --confirm-run-unsafe-code, which "
                "runs it in a process with limits and without a network (docs/tasks.md)."
            )

    def _same(self, doc: Document, output: str) -> DocumentScore:
        leaf, _ = self._leaf(doc)
        split, ordinal = str(doc.fields["split"]), int(doc.fields["doc_id"])
        filtered = [
            metrics.filter_output(leaf, split, ordinal, text) for text in (str(doc.fields["reference"]), output)
        ]
        same = {
            metric.name: _worst_and_best(metric)[filtered[0][metric.filter] == filtered[1][metric.filter]]
            for metric in self._metrics.values()
        }
        return DocumentScore({name: float(value) for name, value in same.items()})


def _worst_and_best(metric: LmEvalMetric) -> tuple[float, float]:
    """Return the worst and the best possible value of a metric; 0 and 100 if it is unbounded."""
    low, high = metric.bounds or (0.0, 100.0)
    return (low, high) if metric.higher_is_better else (high, low)


def document_key(task: str, split: str, doc_id: int, doc: Any) -> str:
    """Return the key of a document of an lm-eval task.

    Args:
        task: lm-eval's name of the single task.
        split: test, validation or train.
        doc_id: lm-eval's index of the document in the split.
        doc: lm-eval's record.
    """
    return Document.from_fields(_fields(task, split, doc_id, doc)).key


def _fields(task: str, split: str, doc_id: int, doc: Any) -> dict[str, Any]:
    return {"task": task, "split": split, "doc_id": doc_id, "doc": plain(doc)}


def _source(doc: Document) -> Source:
    if not isinstance(doc, LmEvalDocument):
        raise TypeError("documents of a task of lm-eval are those that its load() returned")
    return doc.source


def _index(gold: Any, choices: list[str]) -> int:
    if isinstance(gold, str):
        return choices.index(gold) if gold in choices else -1
    return int(gold)


def _version(configs: Sequence[LeafConfig]) -> str:
    import hashlib

    versions = sorted({config.task_version for config in configs})
    digest = hashlib.sha256("".join(f"{config.task_name} {config.sha256}\n" for config in configs).encode())
    return f"lm-eval:{lm_eval_version()}|version:{','.join(versions)}|yaml:{digest.hexdigest()[:16]}"


def _part(leaf: Leaf, split: str) -> tuple[range, str]:
    """Return the indices of the documents of a split, or of a slice such as `train[50%:]`, and lm-eval's split name."""
    name, bracket, _ = split.partition("[")
    resolved = leaf.resolve_split(name)
    n = len(leaf.docs(resolved))
    if not bracket:
        return range(n), resolved
    from datasets import ReadInstruction

    try:
        (part,) = ReadInstruction.from_spec(split).to_absolute({name: n})
    except (ValueError, AssertionError) as error:
        raise UserError(
            f"lm-eval: split {split!r}: {error}. Allowed: a split, or a part such as 'train[50%:]'."
        ) from None
    return range(n)[part.from_ : part.to], resolved


def plain(value: Any) -> Any:
    """Return a record as plain JSON data: NaN and infinity become null, unknown types become text."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if hasattr(value, "tolist"):  # numpy scalars and arrays
        return plain(value.tolist())
    return str(value)
