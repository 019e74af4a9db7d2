"""GLUE: classification of sentences and sentence pairs, and one data set (STS-B) of rated pairs."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from exitbench.errors import UserError
from exitbench.tasks.base import FloatArray
from exitbench.tasks.classification import ClassificationTask
from exitbench.tasks.document import Document, DocumentScore
from exitbench.tasks.sources import read_hub, read_lines

HUB: Final = "nyu-mll/glue"


@dataclass(frozen=True)
class DataSet:
    """One data set of GLUE: its fields, labels and metrics, on the hub and in the original files.

    Attributes:
        texts: Names on the hub of the fields with its one or two texts.
        columns: Column names of these texts in the original files.
        label_column: Column of the label in the original files.
        labels: Names of the classes, in the order of the hub's class numbers; None if the label is a rating of the
            pair.
        original_labels: Spellings of these classes in the original files.
        metrics: Names of the metrics; the first is the headline metric.
        hub: Name of its configuration on the hub.
        validation: Suffix of the hub's `validation` and `test` splits, such as `_matched`.
        header: Columns of an original file without a header line; None: the first line is the header.
        cut_rows: True if some rows of the original file are cut by line breaks within a text. The hub's copy omits
            these rows.
    """

    texts: tuple[str, ...]
    columns: tuple[str, ...]
    label_column: str
    labels: tuple[str, ...] | None
    original_labels: tuple[str, ...]
    metrics: tuple[str, ...]
    hub: str
    validation: str = ""
    header: tuple[str, ...] | None = None
    cut_rows: bool = False


_NUMBERS: Final = ("0", "1")
_ENTAILED: Final = ("entailment", "not_entailment")
_SENTENCES: Final = ("sentence1", "sentence2")
_RATING: Final = ("pearson", "spearman")


def _mnli(validation: str) -> DataSet:
    labels = ("entailment", "neutral", "contradiction")
    return DataSet(("premise", "hypothesis"), _SENTENCES, "gold_label", labels, labels, ("acc",), "mnli", validation)


DATA_SETS: Final[Mapping[str, DataSet]] = {
    "cola": DataSet(
        ("sentence",),
        ("sentence",),
        "label",
        ("unacceptable", "acceptable"),
        _NUMBERS,
        ("mcc",),
        "cola",
        header=("source", "label", "mark", "sentence"),
    ),
    "sst2": DataSet(("sentence",), ("sentence",), "label", ("negative", "positive"), _NUMBERS, ("acc",), "sst2"),
    "mrpc": DataSet(
        _SENTENCES,
        ("#1 String", "#2 String"),
        "Quality",
        ("not_equivalent", "equivalent"),
        _NUMBERS,
        ("f1", "acc"),
        "mrpc",
    ),
    "stsb": DataSet(_SENTENCES, _SENTENCES, "score", None, (), _RATING, "stsb"),
    "qqp": DataSet(
        ("question1", "question2"),
        ("question1", "question2"),
        "is_duplicate",
        ("not_duplicate", "duplicate"),
        _NUMBERS,
        ("f1", "acc"),
        "qqp",
        cut_rows=True,
    ),
    "mnli": _mnli("_matched"),
    "mnli-mismatched": _mnli("_mismatched"),
    "qnli": DataSet(
        ("question", "sentence"), ("question", "sentence"), "label", _ENTAILED, _ENTAILED, ("acc",), "qnli"
    ),
    "rte": DataSet(_SENTENCES, _SENTENCES, "label", _ENTAILED, _ENTAILED, ("acc",), "rte"),
    "wnli": DataSet(_SENTENCES, _SENTENCES, "label", ("not_entailment", "entailment"), _NUMBERS, ("acc",), "wnli"),
}
"""Data sets by task name."""


RATINGS: Final = (0.0, 5.0)
"""Smallest and largest rating of a pair."""


def read_glue(path: Path, data_set: DataSet) -> list[dict[str, Any]]:
    """Read an original GLUE file (TSV) into records with the hub's field names and an id counted from 1.

    Raises:
        UserError: A column is missing (including the labels of a test split), a row has another number of columns than
            the header, or a label is invalid. The message names the line.
    """
    lines = read_lines(path)
    header = data_set.header or _header(path, lines, data_set)
    if data_set.header is not None and lines and lines[0].split("\t") == ["index", *data_set.columns]:
        raise unlabelled(f"{path}, line 1")  # in the test split, whose file does have a header
    records: list[dict[str, Any]] = []
    for location, row in _rows(path, lines, header, data_set):
        texts = {name: row[column] for name, column in zip(data_set.texts, data_set.columns, strict=True)}
        label = _label(row[data_set.label_column], data_set, f"{location}, column {data_set.label_column!r}")
        records.append({"id": str(len(records) + 1), **texts, "label": label})
    return records


def unlabelled(location: str) -> UserError:
    """Return the error to raise for records without labels; `location` names their file or split."""
    return UserError(
        f"{location}: has no labels, as GLUE's test splits, so no answer could be judged. Allowed: a file of the train "
        'or dev split, or on the hub split = "train" or "validation".'
    )


def _header(path: Path, lines: Sequence[str], data_set: DataSet) -> tuple[str, ...]:
    header = tuple(lines[0].split("\t")) if lines else ()
    missing = [column for column in data_set.columns if column not in header]
    if missing:
        needed = ", ".join((*data_set.columns, data_set.label_column))
        raise UserError(
            f"{path}, line 1: has no column {missing[0]!r}, only {', '.join(header)[:200] or 'nothing'}. "
            f"Needed: {needed}, separated by TABs."
        )
    if data_set.label_column not in header:
        raise unlabelled(f"{path}, line 1")
    return header


def _rows(
    path: Path, lines: Sequence[str], header: Sequence[str], data_set: DataSet
) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield the location (file and line, for messages) and the values by column of each table row."""
    first = 0 if data_set.header is not None else 1
    for number, line in enumerate(lines[first:], start=first + 1):
        values = line.split("\t")
        if len(values) == len(header):
            yield f"{path}, line {number}", dict(zip(header, values, strict=True))
        elif not data_set.cut_rows:
            raise UserError(
                f"{path}, line {number}: {len(values)} TAB-separated columns. Needed: {len(header)} "
                f"({', '.join(header)})."
            )


def _label(value: str, data_set: DataSet, location: str) -> int | float:
    if data_set.labels is not None:
        if value not in data_set.original_labels:
            raise UserError(f"{location}: is {value[:80]!r}. Allowed: {', '.join(data_set.original_labels)}.")
        return data_set.original_labels.index(value)
    try:
        rating = float(value)
    except ValueError:
        rating = float("nan")
    if not RATINGS[0] <= rating <= RATINGS[1]:
        raise UserError(f"{location}: is {value[:80]!r}. Allowed: a number from {RATINGS[0]:g} to {RATINGS[1]:g}.")
    return rating


_CONSTANT: Final = 1e-12
"""Variances up to this share of the sum of squares count as 0 (rounding)."""


def confusion(gold: int, predicted: int) -> list[float]:
    """Return the counts (0 or 1) of true and false positives, false and true negatives of a binary prediction, [4]."""
    return [
        float(gold == 1 == predicted),
        float(gold == 0 and predicted == 1),
        float(gold == 1 and predicted == 0),
        float(gold == 0 == predicted),
    ]


def f1(total: FloatArray) -> FloatArray:
    """Return F1 of class 1, 0..1, from sums [..., 4] of `confusion`; 0 if no label and no prediction is class 1."""
    hits, false, missed, _ = np.moveaxis(total, -1, 0)
    return _divided(2 * hits, 2 * hits + false + missed)


def matthews(total: FloatArray) -> FloatArray:
    """Return the Matthews correlation coefficient, -1..1, from sums [..., 4] of `confusion`; 0 if it is undefined."""
    tp, fp, fn, tn = np.moveaxis(total, -1, 0)
    return _divided(tp * tn - fp * fn, np.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)))


def moments(gold: float, predicted: float) -> list[float]:
    """Return x, y, x^2, y^2 and xy of one document, [5], where x is the correct and y the predicted rating."""
    return [gold, predicted, gold * gold, predicted * predicted, gold * predicted]


def pearson(total: FloatArray, n: FloatArray) -> FloatArray:
    """Return Pearson's correlation, -100..100, from sums [..., 5] of `moments` over `n` documents; 0 if undefined."""
    x, y, xx, yy, xy = np.moveaxis(total, -1, 0)
    spread_x, spread_y = (
        np.where(n * squares - total_ * total_ > _CONSTANT * n * squares, n * squares - total_ * total_, 0)
        for total_, squares in ((x, xx), (y, yy))
    )
    return 100 * np.clip(_divided(n * xy - x * y, np.sqrt(spread_x * spread_y)), -1, 1)


def spearman(rows: FloatArray, counts: FloatArray) -> FloatArray:
    """Return Spearman's correlation, -100..100: Pearson's of the ranks, where tied values share their mean rank.

    Args:
        rows: Correct and predicted value of each document, [n, 2].
        counts: How often each document counts, [..., n], for example in a bootstrap resample.
    """
    gold, predicted = (_ranks(column, counts) for column in rows.T)
    products = (gold, predicted, gold * gold, predicted * predicted, gold * predicted)
    total = np.stack([(counts * product).sum(-1) for product in products], axis=-1)
    return pearson(total, counts.sum(-1))


spearman.of_columns = True  # type: ignore[attr-defined]


def _ranks(values: FloatArray, counts: FloatArray) -> FloatArray:
    """Return the ranks [..., n], minus their mean, of values [n] that occur `counts` [..., n] times each.

    Tied values share their mean rank.
    """
    _, place = np.unique(values, return_inverse=True)
    order = np.argsort(place, kind="stable")
    starts = np.flatnonzero(np.diff(place[order], prepend=-1))
    group = np.add.reduceat(counts[..., order], starts, axis=-1)
    middle = np.cumsum(group, axis=-1) - (group + counts.sum(-1, keepdims=True)) / 2
    ranks: FloatArray = middle[..., place]
    return ranks


def _divided(numerator: FloatArray, denominator: FloatArray) -> FloatArray:
    ratio: FloatArray = np.zeros(np.broadcast(numerator, denominator).shape)
    np.divide(numerator, denominator, out=ratio, where=np.asarray(denominator) > 0)
    return ratio


_BY_SUMS: Final[Mapping[str, Callable[[FloatArray, FloatArray], FloatArray]]] = {
    "acc": lambda total, n: total[..., 0] / n,
    "f1": lambda total, n: 100 * f1(total),
    "mcc": lambda total, n: 100 * matthews(total),
    "pearson": pearson,
}
_CORRELATIONS: Final = frozenset({"mcc", "pearson", "spearman"})


class Glue(ClassificationTask):
    """GLUE task: classify a sentence or a pair of sentences, or rate a pair.

    Metrics: GLUE's own. F1 and correlations are undefined for one document. Instead, a document's value is 100 if its
    class is correct, else 0; for a rating, it is 100 minus the distance from the correct rating in percent of the
    scale.

    Args:
        name: Name of a data set in `DATA_SETS`.
    """

    metric_version = "glue|1"
    local_roles = (frozenset({"data"}),)

    def __init__(self, name: str) -> None:
        self.name, self.data_set = name, DATA_SETS[name]
        self.labels, self.metrics = self.data_set.labels, self.data_set.metrics
        self.consistency_metric = self.metrics[0]

    def texts(self, doc: Document) -> tuple[str, ...]:
        """Return the document's sentence, or both sentences of its pair."""
        return tuple(str(doc.fields[name]) for name in self.data_set.texts)

    def gold(self, doc: Document) -> int | float:
        """Return the index of the correct class, or the correct rating."""
        label: int | float = doc.fields["label"]
        return label

    def with_reference(self, doc: Document, text: str) -> Document:
        """Return a copy of the document with the class named `text` (or the rating `text`) as its reference."""
        return Document(doc.key, {**doc.fields, "label": self.parse_prediction(text)})

    def score_prediction(self, doc: Document, prediction: int | float) -> DocumentScore:
        """Return the scores of a predicted class index, or of a predicted rating."""
        gold = self.gold(doc)
        if self.labels is None:
            distance = min(1.0, abs(prediction - gold) / (RATINGS[1] - RATINGS[0]))
            statistics = {"pearson": moments(gold, prediction), "spearman": [gold, prediction]}
            return DocumentScore({metric: 100 * (1 - distance) for metric in self.metrics}, statistics)
        values = {metric: 100.0 * (prediction == gold) for metric in self.metrics}
        counts = confusion(int(gold), int(prediction))
        return DocumentScore(values, {metric: counts for metric in self.metrics if metric != "acc"})

    def aggregate(self, metric: str, total: FloatArray, n: FloatArray) -> FloatArray:
        """Compute a metric from statistics summed over documents, such as counts of outcomes (`Task.aggregate`)."""
        return _BY_SUMS[metric](total, n)

    def aggregator(self, metric: str) -> Callable[[FloatArray, FloatArray], FloatArray]:
        """Return the function that computes a metric for all documents together.

        For Spearman's correlation, its arguments are the statistics of all documents [n, 2], and how often each
        document counts [..., n]. For the others, they are sums of statistics [..., S] and numbers of documents [...].
        """
        return spearman if metric == "spearman" else super().aggregator(metric)

    def bounds(self, metric: str) -> tuple[float, float] | None:
        """Return the lowest and the highest possible value of the metric."""
        return (-100.0, 100.0) if metric in _CORRELATIONS else (0.0, 100.0)

    def _read_local(self, files: Mapping[str, Path]) -> list[dict[str, Any]]:
        return read_glue(files["data"], self.data_set)

    def _read_hub(self, split: str) -> list[dict[str, Any]]:
        hub_split = re.sub(r"^(validation|test)(?!_)", rf"\1{self.data_set.validation}", split)
        records = [
            {"id": str(number), **{name: row[name] for name in (*self.data_set.texts, "label")}}
            for number, row in enumerate(read_hub(HUB, self.data_set.hub, hub_split), start=1)
        ]
        if any(record["label"] == -1 for record in records):
            raise unlabelled(f"hub data set {HUB} ({self.data_set.hub}), split {hub_split!r}")
        return records
