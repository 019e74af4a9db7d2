"""The task that a declaration describes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from exitbench.errors import UserError, suggestion
from exitbench.tasks.base import FloatArray, Task
from exitbench.tasks.declared.declaration import METRICS, Declaration, bleu_rule, fields_of, render
from exitbench.tasks.document import Document, DocumentScore
from exitbench.tasks.tables import read_table

Record = Mapping[str, Any]


class DeclaredTask(Task):
    """A task of a TOML file: its fields, its prompt, metrics that there are."""

    local_roles = (frozenset({"data"}),)

    def __init__(self, declaration: Declaration) -> None:
        self.declaration = declaration
        self.name = declaration.task_name
        self.metrics = declaration.metrics
        # Of corpus metrics, chrF tells sentences apart where BLEU is 0 for many.
        self.consistency_metric = "chrf" if "chrf" in self.metrics else self.metrics[0]
        self.default_max_new_tokens = declaration.max_new_tokens
        self._rules = {name: METRICS[name] for name in self.metrics}
        if declaration.bleu_tokenize is not None:
            self._rules["bleu"] = bleu_rule(declaration.bleu_tokenize)
        versions = " ".join(f"{name}[{rule.version}]" for name, rule in self._rules.items())
        self.metric_version = f"{versions} target[{declaration.target}]"
        self._prompt, self._causal_prompt = declaration.seq2seq_pieces, declaration.causal_pieces

    def prompt(self, doc: Document) -> str:
        """Return the template with the document's fields."""
        return render(self._prompt, doc.fields)

    def causal_prompt(self, doc: Document) -> str:
        """Return the template of decoder-only models with the document's fields."""
        return render(self._causal_prompt, doc.fields)

    def target(self, doc: Document) -> str:
        """Return the first reference."""
        return self._references(doc)[0]

    def with_reference(self, doc: Document, text: str) -> Document:
        """Return the document with another reference."""
        return Document(doc.key, {**doc.fields, self.declaration.target: [text]})

    def score(self, doc: Document, output: str) -> DocumentScore:
        """Score an output."""
        references = self._references(doc)
        values = {name: rule.value(output, references) for name, rule in self._rules.items()}
        counted = {name: rule.statistics for name, rule in self._rules.items() if rule.statistics is not None}
        return DocumentScore(values, {name: count(output, references[0]) for name, count in counted.items()})

    def aggregate(self, metric: str, total: FloatArray, n: FloatArray) -> FloatArray:
        """Return the metric's value of summed statistics; see `Task.aggregate`."""
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
        fields: dict[str, Any] = {"id": str(number)}  # files repeat records; a field of that name takes its place
        where = f"{path}, record {number}"
        for name, column in self.declaration.fields:
            place = f"{where}, column {column!r}"
            value = value_at(record, column, where)
            fields[name] = self._reference(value, place) if name == self.declaration.target else text_of(value, place)
            if name in texts and not isinstance(fields[name], str):
                raise UserError(f"{place}: is a list, but stands in a prompt. Needed: a text.")
        return fields

    def _reference(self, value: object, where: str) -> str | list[str]:
        if not isinstance(value, list):
            return text_of(value, where)
        if not value:
            raise UserError(f"{where}: has no reference. Needed: a text, or a list of one or more.")
        single = [name for name in self.metrics if METRICS[name].statistics is not None]
        if single and len(value) > 1:
            raise UserError(f"{where}: has {len(value)} references, but {' and '.join(single)} take one.")
        return [text_of(one, where) for one in value]


def aggregate(metric: str, total: FloatArray, n: FloatArray) -> FloatArray:
    """Return a metric of summed statistics [..., S] over n documents [...]: 0..100.

    Raises:
        UserError: There is no such metric.
    """
    if metric not in METRICS:
        raise UserError(f"unknown metric {metric!r}.{suggestion(metric, METRICS)}")
    of_sums = METRICS[metric].aggregate
    return total[..., 0] / n if of_sums is None else of_sums(total)


def value_at(record: Record, column: str, where: str) -> Any:
    """Return the value of a column; a name with dots leads into objects, such as ``answers.text``.

    Raises:
        UserError: There is none; names what there is.
    """
    if column in record:
        return record[column]
    value: Any = record
    for key in column.split("."):
        if not isinstance(value, Mapping) or key not in value:
            raise UserError(f"{where}: no column {column!r}.{suggestion(column, map(str, record))}")
        value = value[key]
    return value


def text_of(value: object, where: str) -> str:
    """Return a text, or a number as one.

    Raises:
        UserError: It is neither, or holds half of a character.
    """
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        kind = "null" if value is None else type(value).__name__
        raise UserError(f"{where}: is {kind}. Needed: a text or a number.")
    text = str(value)
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise UserError(f"{where}: holds half of a surrogate pair, which is not a character.")
    return text
