"""A task, group or tag of lm-eval as one of our tasks."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from exitbench.errors import UserError
from exitbench.tasks.base import ModelKind, OutputType, Source, Task
from exitbench.tasks.document import Document, DocumentScore, canonical_json
from exitbench.tasks.lm_eval import scoring
from exitbench.tasks.lm_eval.aggregation import FloatArray
from exitbench.tasks.lm_eval.configs import LeafConfig, generation_of, leaf_configs, lm_eval_version
from exitbench.tasks.lm_eval.leaves import Chat, Leaf, leaves
from exitbench.tasks.lm_eval.metrics import LmEvalMetric, metrics_of
from exitbench.tasks.lm_eval.records import plain
from exitbench.tasks.lm_eval.settings import PREFIX, LmEvalSettings

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

_DEFAULT_MAX_NEW_TOKENS = 256
"""lm-eval's, of tasks that say nothing."""


@dataclass(frozen=True)
class LmEvalDocument(Document):
    """A document of a task of lm-eval.

    `fields` are task (lm-eval's name of the single task), split (test, validation or train), doc_id (lm-eval's number
    of the document in it) and doc (the record). Documents given another reference have that too.

    Attributes:
        source: Where the record is from; examples in prompts come from the same place. Not part of the key.
    """

    source: Source = field(default_factory=Source)


class LmEvalTask(Task):
    """A task, group or tag of lm-eval: its documents, requests, filters, scores and aggregation are lm-eval's.

    Metrics that are shares are on 0..100; all others are as lm-eval has them.

    Args:
        name: As in suites, with its prefix.
        settings: What the suite says beside.

    Raises:
        UserError: There is no such task; it is several; or it has no metric whose interval can be found.
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
        self.lower_is_better = frozenset(name for name, one in self._metrics.items() if not one.higher_is_better)
        self.consistency_metric = self.metrics[0]
        self.output_type = cast(OutputType, first.output_type)
        self.metric_version = _version(configs)
        self.generation_kwargs: dict[str, Any] = generation_of(first) if self.output_type == "generate_until" else {}
        """Of a task that generates, with what the settings put in their place: until, max_gen_toks, do_sample, ..."""
        asked = self.generation_kwargs.get("max_gen_toks")
        self.default_max_new_tokens = int(asked) if asked else _DEFAULT_MAX_NEW_TOKENS

    @property
    def tasks(self) -> tuple[str, ...]:
        """lm-eval's names of the single tasks."""
        return tuple(self._configs)

    @property
    def num_fewshot(self) -> int:
        """Examples before each question, of its first single task."""
        return next(iter(self._configs.values())).num_fewshot

    @cached_property
    def is_unsafe(self) -> bool:
        """Whether scoring runs what the model wrote."""
        return any(bool(config.config.get("unsafe_code")) for config in self._configs.values())

    def bounds(self, metric: str) -> tuple[float, float] | None:
        """Return the least and the greatest value that a metric can have; None where there is no such."""
        return self._metrics[metric].bounds

    def aggregate(self, metric: str, total: FloatArray, n: FloatArray) -> FloatArray:
        """Return what lm-eval aggregates a metric to; see `Task.aggregate`."""
        return self._metrics[metric].aggregate(total, n)

    def instances(self, documents: Sequence[Document], chat: Chat | None = None) -> "dict[str, list[Instance]]":
        """Return lm-eval's requests of each document, by its key, in the order of their `idx`.

        Args:
            documents: Of `load`.
            chat: A system message and a chat template; None for neither.
        """
        found: dict[str, list[Instance]] = {}
        for leaf, kind, by_ordinal in self._asked(documents):
            asked = leaf.asking(kind, sorted(by_ordinal), chat)
            asked.build_all_requests()
            for instance in asked.instances:
                found.setdefault(by_ordinal[instance.doc_id].key, []).append(instance)
        return {document.key: sorted(found[document.key], key=lambda one: one.idx) for document in documents}

    def evaluate(
        self,
        lm: Any,
        documents: Sequence[Document],
        chat: Chat | None = None,
        confirm_run_unsafe_code: bool = False,
    ) -> tuple[dict[str, DocumentScore], dict[str, float]]:
        """Have lm-eval's `evaluate()` ask a model and score its answers.

        Args:
            lm: lm-eval's `LM`.
            documents: Of `load`; requests are made in their order in lm-eval's data set, task by task.
            chat: A system message and a chat template; None for neither.
            confirm_run_unsafe_code: What the model wrote may be run, where the task scores it so.

        Returns:
            The scores of each document, by its key; and lm-eval's own aggregated value of each metric, on our scale.

        Raises:
            UserError: The task runs what the model wrote and that was not confirmed.
        """
        self._require_confirmed(confirm_run_unsafe_code)
        return scoring.evaluate(lm, self._asked(documents), tuple(self._metrics.values()), chat)

    def score_responses(
        self,
        documents: Sequence[Document],
        responses: Mapping[str, Sequence[Any]],
        confirm_run_unsafe_code: bool = False,
    ) -> dict[str, DocumentScore]:
        """Score responses that are there already, by lm-eval's own filters and rules.

        Args:
            documents: Of `load`.
            responses: By document, one for each of its `instances`, in their order: a text (generate_until), a pair of
                log-likelihood and whether the text is what greedy decoding gives (multiple_choice, loglikelihood), or
                a log-likelihood (loglikelihood_rolling). For a task with repeats, a list of these, or one for all.
            confirm_run_unsafe_code: As in `evaluate`.
        """
        self._require_confirmed(confirm_run_unsafe_code)
        return scoring.score(self._asked(documents), responses, tuple(self._metrics.values()))

    def stored_responses(
        self, samples: Iterable[Mapping[str, Any]], choices: Iterable[Mapping[str, Any]]
    ) -> dict[str, list[Any]]:
        """Return what was answered about each document, as `score_responses` takes it.

        Args:
            samples: Rows of the spool's ``samples``.
            choices: Rows of its ``choices``; none of a task that generates.
        """
        if self.output_type == "generate_until":
            return {row["doc_key"]: [row["output_text"]] for row in samples}
        is_rolling = self.output_type == "loglikelihood_rolling"
        found: dict[str, list[Any]] = {}
        for row in sorted(choices, key=lambda row: int(row["choice"])):
            response = row["logprob"] if is_rolling else (row["logprob"], row["is_greedy"])
            found.setdefault(row["doc_key"], []).append(response)
        return found

    def score(self, doc: Document, output: str) -> DocumentScore:
        """Score one text, of a task that generates.

        A document with another reference (`with_reference`) is scored by whether the task's own filters make the same
        of both texts.
        """
        if "reference" in doc.fields:
            return self._same(doc, output)
        return self.score_responses([doc], {doc.key: [output]})[doc.key]

    def choices(self, doc: Document) -> list[str]:
        """Return the texts of the choices of a multiple-choice document."""
        leaf, record = self._leaf(doc)
        return [str(choice) for choice in leaf.task.doc_to_choice(record)]

    def right_choices(self, doc: Document) -> frozenset[int]:
        """Return which choices of a multiple-choice document are right, counted from 0; more than one is rare."""
        leaf, record = self._leaf(doc)
        task, choices = leaf.task, self.choices(doc)
        gold = task.doc_to_text(record) if getattr(task, "multiple_input", 0) else task.doc_to_target(record)
        found = {_index(one, choices) for one in (gold if isinstance(gold, list | tuple) else [gold])}
        return frozenset(index for index in found if 0 <= index < len(choices))

    def prompts(self, documents: Sequence[Document], kind: ModelKind) -> list[str]:
        """Return all that is asked about each document as one text, for digests: the same for models of any kind."""
        asked = self.instances(documents)
        return [canonical_json([plain(one.args) for one in asked[document.key]]) for document in documents]

    def likeness(self, doc: Document) -> str:
        """Return the record: prompts of the same one differ in their examples."""
        return canonical_json(doc.fields["doc"])

    def prompt(self, doc: Document) -> str:
        """Return the context of a document's first request; of a rolling one, the text itself."""
        return str(self.instances([doc])[doc.key][0].args[0])

    def target(self, doc: Document) -> str:
        """Return the reference as text: the right choice where there are choices."""
        if self.output_type == "multiple_choice":
            return " / ".join(self.choices(doc)[index] for index in sorted(self.right_choices(doc)))
        leaf, record = self._leaf(doc)
        given = leaf.task.doc_to_target(record)
        return str(given[0] if isinstance(given, list) and given else given)

    def with_reference(self, doc: Document, text: str) -> Document:
        """Return the document with another text as its only reference."""
        return LmEvalDocument(doc.key, {**doc.fields, "reference": text}, source=_source(doc))

    def _read(self, source: Source, split: str, seed: int) -> list[Document]:
        found: list[Document] = []
        for leaf in leaves(self._own_name, self.settings, source):
            # Files are the split that they are given for; a part of it may be asked for.
            part, kind = _part(leaf, "test" if source.files and "[" not in split else split)
            docs = leaf.docs(kind)
            for ordinal in part:
                fields = _fields(leaf.name, kind, ordinal, docs[ordinal])
                found.append(LmEvalDocument(Document.from_fields(fields).key, fields, source=source))
        return found

    def _read_local(self, files: Mapping[str, Path]) -> list[dict[str, Any]]:
        raise NotImplementedError("`_read` reads")

    def _read_hub(self, split: str) -> list[dict[str, Any]]:
        raise NotImplementedError("`_read` reads")

    def lm_eval_config(self, documents: Sequence[Document], kind: ModelKind) -> dict[str, Any]:
        """Refuse: lm-eval has a configuration of its own; see `evaluate`."""
        raise NotImplementedError("tasks of lm-eval are evaluated by `evaluate`")

    def _asked(self, documents: Sequence[Document]) -> list[tuple[Leaf, str, dict[int, Document]]]:
        """Documents by number, of each single task and split."""
        grouped: dict[tuple[Source, str, str], dict[int, Document]] = {}
        for document in documents:
            fields = document.fields
            place = (_source(document), str(fields["task"]), str(fields["split"]))
            grouped.setdefault(place, {})[int(fields["doc_id"])] = document
        asked = []
        for (source, name, kind), by_ordinal in grouped.items():
            leaf = self._leaf_named(source, name)
            docs = leaf.docs(kind)
            for ordinal, document in by_ordinal.items():
                if ordinal >= len(docs) or plain(docs[ordinal]) != document.fields["doc"]:
                    raise UserError(f"lm-eval: task {name!r}, document {ordinal}: not what was planned.")
            asked.append((leaf, kind, by_ordinal))
        return asked

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
        kind, ordinal = str(doc.fields["split"]), int(doc.fields["doc_id"])
        made = [scoring.filtered(leaf, kind, ordinal, text) for text in (str(doc.fields["reference"]), output)]
        same = {
            metric.name: _ends(metric)[made[0][metric.filter] == made[1][metric.filter]]
            for metric in self._metrics.values()
        }
        return DocumentScore({name: float(value) for name, value in same.items()})


def _ends(metric: LmEvalMetric) -> tuple[float, float]:
    """The worst and the best value of a metric; of one without a scale, 0 and 100."""
    low, high = metric.bounds or (0.0, 100.0)
    return (low, high) if metric.higher_is_better else (high, low)


def document_key(task: str, split: str, doc_id: int, doc: Any) -> str:
    """Return the key of a document of lm-eval's.

    Args:
        task: lm-eval's name of the single task.
        split: test, validation or train.
        doc_id: lm-eval's number of the document in it.
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

    own = sorted({config.task_version for config in configs})
    digest = hashlib.sha256("".join(f"{config.task_name} {config.sha256}\n" for config in configs).encode())
    return f"lm-eval:{lm_eval_version()}|version:{','.join(own)}|yaml:{digest.hexdigest()[:16]}"


def _part(leaf: Leaf, split: str) -> tuple[range, str]:
    """The documents that a split, or a part of one such as `train[50%:]`, stands for."""
    name, bracket, _ = split.partition("[")
    kind = leaf.kind_of(name)
    n = len(leaf.docs(kind))
    if not bracket:
        return range(n), kind
    from datasets import ReadInstruction

    try:
        (part,) = ReadInstruction.from_spec(split).to_absolute({name: n})
    except (ValueError, AssertionError) as error:
        raise UserError(
            f"lm-eval: split {split!r}: {error}. Allowed: a split, or a part such as 'train[50%:]'."
        ) from None
    return range(n)[part.from_ : part.to], kind


__all__ = ["Chat", "LmEvalDocument", "LmEvalMetric", "LmEvalTask"]
