"""Tasks declared in a TOML file: fields of local records, a prompt template, metrics. No code."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from exitbench.errors import UserError, suggestion
from exitbench.tasks.base import FloatArray, Task
from exitbench.tasks.document import Document, DocumentScore
from exitbench.tasks.sources import read_table
from exitbench.tasks.squad import exact_match, token_f1
from exitbench.tasks.summarisation import ROUGE_VERSION, rouge_scorer
from exitbench.tasks.templates import Pieces, fields_of, parse, render
from exitbench.tasks.translation import bleu_by, chrf_statistics, corpus_bleu, corpus_chrf, sentence_chrf, signature


@dataclass(frozen=True)
class MetricRule:
    """Definition of a metric that declared tasks can use.

    Attributes:
        version: String that changes whenever a score could change.
        value: Maps an output and its references to the document's value, 0..100.
        statistics: Corpus metrics only: maps an output and its only reference to S statistics, which are summed.
        aggregate: Corpus metrics only: maps these sums over documents [..., S] to the metric [...].
    """

    version: str
    value: Callable[[str, Sequence[str]], float]
    statistics: Callable[[str, str], list[float]] | None = None
    aggregate: Callable[[FloatArray], FloatArray] | None = None


def _verbatim(output: str, references: Sequence[str]) -> float:
    return 100.0 * (output.strip() in {reference.strip() for reference in references})


def _f1(output: str, references: Sequence[str]) -> float:
    return 100 * token_f1(output, references)


def _em(output: str, references: Sequence[str]) -> float:
    return 100 * exact_match(output, references)


def _rouge(name: str, output: str, references: Sequence[str]) -> float:
    return 100 * max(float(rouge_scorer(name).score(reference, output)[name].fmeasure) for reference in references)


def _first_reference(value: Callable[[str, str], float]) -> Callable[[str, Sequence[str]], float]:
    return lambda output, references: value(output, references[0])


BLEU_TOKENIZERS: Final = ("13a", "intl", "zh", "char", "none", "ja-mecab", "ko-mecab")
"""sacrebleu's tokenizers, the default first, without those whose SentencePiece models sacrebleu downloads."""


def bleu_rule(tokenizer: str) -> MetricRule:
    """Return the definition of BLEU with one of sacrebleu's tokenizers.

    Raises:
        UserError: sacrebleu needs another package for this tokenizer.
    """
    try:
        bleu = bleu_by(tokenizer)
    except (RuntimeError, ImportError) as error:
        raise UserError(f"{tokenizer!r} cannot be used: {' '.join(str(error).split())}") from None
    return MetricRule(signature(bleu), _first_reference(bleu.sentence_score), bleu.statistics, corpus_bleu)


_BLEU: Final = bleu_rule(BLEU_TOKENIZERS[0])

METRICS: Final[Mapping[str, MetricRule]] = {
    "exact_match": MetricRule("verbatim|1", _verbatim),
    "em": MetricRule("squad-v1.1-rules|1", _em),
    "f1": MetricRule("squad-v1.1-rules|1", _f1),
    **{name: MetricRule(ROUGE_VERSION, functools.partial(_rouge, name)) for name in ("rouge1", "rouge2", "rougeL")},
    "bleu": _BLEU,
    "chrf": MetricRule(_BLEU.version, _first_reference(sentence_chrf), chrf_statistics, corpus_chrf),
}
"""Metrics by name. A value is the best over the references; corpus metrics take a single reference."""


PREFIX: Final = "toml:"
"""Prefix of the name that a task's file gives it."""
DEFAULT_MAX_NEW_TOKENS: Final = 64
CHOICE_METRICS: Final = ("acc", "acc_norm")
"""Metrics of tasks with choices: accuracy of the most probable choice, plain and normalised by length."""


@dataclass(frozen=True)
class Declaration:
    """Content of a TOML file that declares a task.

    Attributes:
        name: Name of the task, without the prefix `toml:`.
        fields: Pairs (name, column of the file); a column with dots leads into nested JSON objects.
        prompt: Template of the prompt for encoder-decoder models.
        causal_prompt: Template for decoder-only models; None: `prompt`.
        target: Name of the field with the reference or (JSON) a list of references; for tasks with choices, the correct
            choice.
        metrics: Metrics of `METRICS` or, for tasks with choices, of `CHOICE_METRICS`, headline first.
        max_new_tokens: Maximum number of generated tokens of an answer if the suite sets none.
        choices: Name of the field with a list of choices, or one template per choice; None if the answer is generated.
        bleu_tokenize: BLEU's tokenizer, one of `BLEU_TOKENIZERS`; None: sacrebleu's default, 13a.
    """

    name: str
    fields: tuple[tuple[str, str], ...]
    prompt: str
    target: str
    metrics: tuple[str, ...]
    causal_prompt: str | None = None
    max_new_tokens: int = DEFAULT_MAX_NEW_TOKENS
    choices: str | tuple[str, ...] | None = None
    bleu_tokenize: str | None = None

    def __post_init__(self) -> None:
        """Check that the attributes are consistent. The caller adds the location in the file to the message.

        Raises:
            UserError: A field, a metric or a template is invalid.
        """
        allowed = tuple(METRICS) if self.choices is None else CHOICE_METRICS
        names = frozenset(name for name, _ in self.fields)
        for name in names:
            if not name.isidentifier():
                raise UserError(f"fields: {name!r} is no name. Allowed: letters, digits and _, no digit first.")
        if self.target not in names:
            raise UserError(f"target: unknown field {self.target!r}.{suggestion(self.target, names)}")
        if not self.metrics or len(set(self.metrics)) < len(self.metrics):
            raise UserError(f"metrics: {list(self.metrics)} are not one or more, each once.{suggestion('', allowed)}")
        for metric in self.metrics:
            if metric not in allowed:
                raise UserError(f"metrics: unknown metric {metric!r}.{suggestion(metric, allowed)}")
        _ = self.seq2seq_pieces, self.causal_pieces
        if self.choices is not None:
            self._check_choices(names)
        if self.bleu_tokenize is not None:
            self._check_tokenizer(self.bleu_tokenize)

    def _check_choices(self, names: frozenset[str]) -> None:
        if self.causal_prompt is not None:
            raise UserError("causal_prompt: does not go with choices, whose prompt is one for all models.")
        if isinstance(self.choices, str) and self.choices not in names:
            raise UserError(f"choices: unknown field {self.choices!r}.{suggestion(self.choices, names)}")
        if not isinstance(self.choices, str) and len(self.choice_pieces) < 2:
            raise UserError("choices: needed: the name of a field with a list, or two templates or more.")

    def _check_tokenizer(self, name: str) -> None:
        if "bleu" not in self.metrics:
            raise UserError('bleu_tokenize: goes with the metric "bleu".')
        if name not in BLEU_TOKENIZERS:
            raise UserError(f"bleu_tokenize: unknown tokenizer {name!r}.{suggestion(name, BLEU_TOKENIZERS)}")
        try:
            bleu_rule(name)
        except UserError as error:
            raise UserError(f"bleu_tokenize: {error}") from None

    @property
    def task_name(self) -> str:
        """Name of the task in results: `toml:` and its name."""
        return f"{PREFIX}{self.name}"

    @property
    def seq2seq_pieces(self) -> Pieces:
        """Parsed prompt template for encoder-decoder models."""
        return parse(self.prompt, frozenset(name for name, _ in self.fields), "prompt")

    @property
    def causal_pieces(self) -> Pieces:
        """Parsed prompt template for decoder-only models."""
        if self.causal_prompt is None:
            return self.seq2seq_pieces
        return parse(self.causal_prompt, frozenset(name for name, _ in self.fields), "causal_prompt")

    @property
    def choice_pieces(self) -> tuple[Pieces, ...]:
        """Parsed templates of the choices; empty if the task has no choices, or has them in a field."""
        if self.choices is None or isinstance(self.choices, str):
            return ()
        names = frozenset(name for name, _ in self.fields)
        return tuple(parse(template, names, "choices") for template in self.choices)

    def to_json(self) -> dict[str, Any]:
        """Return the declaration as plain JSON data."""
        return {key: value for key, value in asdict(self).items() if key != "bleu_tokenize" or value is not None}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "Declaration":
        """Rebuild a declaration from its JSON data (`to_json`)."""
        fields = tuple((name, column) for name, column in record["fields"])
        choices = record.get("choices")
        converted = {"fields": fields, "metrics": tuple(record["metrics"])}
        return cls(**{**record, **converted, "choices": tuple(choices) if isinstance(choices, list) else choices})


Record = Mapping[str, Any]


class DeclaredTask(Task):
    """Task declared in a TOML file by its fields, its prompt template, and names of existing metrics."""

    local_roles = (frozenset({"data"}),)

    def __init__(self, declaration: Declaration) -> None:
        self.declaration = declaration
        self.name = declaration.task_name
        self.metrics = declaration.metrics
        # Of corpus metrics, chrF distinguishes sentences better than BLEU, which is 0 for many.
        self.consistency_metric = "chrf" if "chrf" in self.metrics else self.metrics[0]
        self.default_max_new_tokens = declaration.max_new_tokens
        self._rules = {name: METRICS[name] for name in self.metrics}
        if declaration.bleu_tokenize is not None:
            self._rules["bleu"] = bleu_rule(declaration.bleu_tokenize)
        versions = " ".join(f"{name}[{rule.version}]" for name, rule in self._rules.items())
        self.metric_version = f"{versions} target[{declaration.target}]"
        self._prompt, self._causal_prompt = declaration.seq2seq_pieces, declaration.causal_pieces

    def prompt(self, doc: Document) -> str:
        """Return the prompt template for encoder-decoder models, filled with the document's fields."""
        return render(self._prompt, doc.fields)

    def causal_prompt(self, doc: Document) -> str:
        """Return the prompt template for decoder-only models, filled with the document's fields."""
        return render(self._causal_prompt, doc.fields)

    def target(self, doc: Document) -> str:
        """Return the document's first reference."""
        return self._references(doc)[0]

    def with_reference(self, doc: Document, text: str) -> Document:
        """Return a copy of the document with `text` as its only reference."""
        return Document(doc.key, {**doc.fields, self.declaration.target: [text]})

    def score(self, doc: Document, output: str) -> DocumentScore:
        """Return the scores of an output against the document's references."""
        references = self._references(doc)
        values = {name: rule.value(output, references) for name, rule in self._rules.items()}
        statistics = {name: rule.statistics for name, rule in self._rules.items() if rule.statistics is not None}
        return DocumentScore(values, {name: count(output, references[0]) for name, count in statistics.items()})

    def aggregate(self, metric: str, total: FloatArray, n: FloatArray) -> FloatArray:
        """Return a metric's value [...] from sums `total` [..., S] of its S statistics over `n` documents [...]."""
        return aggregate(metric, total, n)

    def _references(self, doc: Document) -> list[str]:
        value = doc.fields[self.declaration.target]
        return [value] if isinstance(value, str) else list(value)

    def _read(self, source: Any, split: str, seed: int) -> list[Document]:
        if source.kind != "local":
            raise UserError(f'{self.name}: source is "{source.kind}". Allowed: "local", with files = {{ data = ... }}.')
        return super()._read(source, split, seed)

    def _read_hub(self, split: str) -> list[dict[str, Any]]:
        raise NotImplementedError("refused before")

    def _read_local(self, files: Mapping[str, Path]) -> list[dict[str, Any]]:
        path = files["data"]
        return [self._fields(record, number, path) for number, record in enumerate(read_table(path), start=1)]

    def _fields(self, record: Record, number: int, path: Path) -> dict[str, Any]:
        texts = fields_of(self._prompt) | fields_of(self._causal_prompt)
        fields: dict[str, Any] = {"id": str(number)}  # files repeat records; a field named `id` replaces it
        location = f"{path}, record {number}"
        for name, column in self.declaration.fields:
            place = f"{location}, column {column!r}"
            value = value_at(record, column, location)
            fields[name] = self._reference(value, place) if name == self.declaration.target else text_of(value, place)
            if name in texts and not isinstance(fields[name], str):
                raise UserError(f"{place}: is a list, but stands in a prompt. Needed: a text.")
        return fields

    def _reference(self, value: object, location: str) -> str | list[str]:
        if not isinstance(value, list):
            return text_of(value, location)
        if not value:
            raise UserError(f"{location}: has no reference. Needed: a text, or a list of one or more.")
        single = [name for name in self.metrics if METRICS[name].statistics is not None]
        if single and len(value) > 1:
            raise UserError(f"{location}: has {len(value)} references, but {' and '.join(single)} take one.")
        return [text_of(reference, location) for reference in value]


def aggregate(metric: str, total: FloatArray, n: FloatArray) -> FloatArray:
    """Return a metric's value [...], 0..100, from sums [..., S] of statistics over `n` documents [...].

    Raises:
        UserError: The metric does not exist.
    """
    if metric not in METRICS:
        raise UserError(f"unknown metric {metric!r}.{suggestion(metric, METRICS)}")
    from_sums = METRICS[metric].aggregate
    return total[..., 0] / n if from_sums is None else from_sums(total)


def value_at(record: Record, column: str, location: str) -> Any:
    """Return a record's value in a column; a name with dots leads into nested objects, such as ``answers.text``.

    `location` names file and record in messages.

    Raises:
        UserError: The column does not exist; the message lists the existing ones.
    """
    if column in record:
        return record[column]
    value: Any = record
    for key in column.split("."):
        if not isinstance(value, Mapping) or key not in value:
            raise UserError(f"{location}: no column {column!r}.{suggestion(column, map(str, record))}")
        value = value[key]
    return value


def text_of(value: object, location: str) -> str:
    """Return the value of a field as text; only texts and numbers are allowed. `location` is for messages.

    Raises:
        UserError: The value is neither a text nor a number, or contains half of a surrogate pair.
    """
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        kind = "null" if value is None else type(value).__name__
        raise UserError(f"{location}: is {kind}. Needed: a text or a number.")
    text = str(value)
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise UserError(f"{location}: holds half of a surrogate pair, which is not a character.")
    return text
