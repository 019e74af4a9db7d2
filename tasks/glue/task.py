"""The GLUE tasks: one rule, nine data sets."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from exitbench.tasks.base import FloatArray
from exitbench.tasks.classification import ClassificationTask
from exitbench.tasks.document import Document, DocumentScore
from exitbench.tasks.glue import scoring
from exitbench.tasks.glue.data_sets import DATA_SETS, HUB
from exitbench.tasks.glue.readers import RATINGS, read_glue, unlabelled
from exitbench.tasks.sources import read_hub

_BY_SUMS: Final[Mapping[str, Callable[[FloatArray, FloatArray], FloatArray]]] = {
    "acc": lambda total, n: total[..., 0] / n,
    "f1": lambda total, n: scoring.f1(total),
    "mcc": lambda total, n: scoring.matthews(total),
    "pearson": scoring.pearson,
}
_CORRELATIONS: Final = frozenset({"mcc", "pearson", "spearman"})


class Glue(ClassificationTask):
    """Classification of a sentence or a pair of sentences, or a pair's rating.

    Metrics: GLUE's own. Of one document alone F1 and correlations tell nothing: its value is 100 where its class is
    right, else 0; of a rating, 100 less its distance as a share of the scale.

    Args:
        name: Of a data set, of `DATA_SETS`.
    """

    metric_version = "glue|1"
    local_roles = (frozenset({"data"}),)

    def __init__(self, name: str) -> None:
        self.name, self.data_set = name, DATA_SETS[name]
        self.labels, self.metrics = self.data_set.labels, self.data_set.metrics
        self.consistency_metric = self.metrics[0]

    def texts(self, doc: Document) -> tuple[str, ...]:
        """Return the sentence, or the two sentences."""
        return tuple(str(doc.fields[name]) for name in self.data_set.texts)

    def gold(self, doc: Document) -> int | float:
        """Return the class's number, or the rating."""
        label: int | float = doc.fields["label"]
        return label

    def with_reference(self, doc: Document, text: str) -> Document:
        """Return the document with another label."""
        return Document(doc.key, {**doc.fields, "label": self.parsed(text)})

    def score_prediction(self, doc: Document, prediction: int | float) -> DocumentScore:
        """Score a class's number or a rating."""
        gold = self.gold(doc)
        if self.labels is None:
            apart = min(1.0, abs(prediction - gold) / (RATINGS[1] - RATINGS[0]))
            statistics = {"pearson": scoring.moments(gold, prediction), "spearman": [gold, prediction]}
            return DocumentScore({metric: 100 * (1 - apart) for metric in self.metrics}, statistics)
        values = {metric: 100.0 * (prediction == gold) for metric in self.metrics}
        counted = scoring.confusion(int(gold), int(prediction))
        return DocumentScore(values, {metric: counted for metric in self.metrics if metric != "acc"})

    def aggregate(self, metric: str, total: FloatArray, n: FloatArray) -> FloatArray:
        """Return the metric of summed statistics; see `Task.aggregate`."""
        return _BY_SUMS[metric](total, n)

    def aggregator(self, metric: str) -> Callable[[FloatArray, FloatArray], FloatArray]:
        """Return what has the metric of all documents; see `Task.aggregator`."""
        return scoring.spearman if metric == "spearman" else super().aggregator(metric)

    def bounds(self, metric: str) -> tuple[float, float] | None:
        """Return the ends of the metric's scale."""
        return (-100.0, 100.0) if metric in _CORRELATIONS else (0.0, 100.0)

    def _read_local(self, files: Mapping[str, Path]) -> list[dict[str, Any]]:
        return read_glue(files["data"], self.data_set)

    def _read_hub(self, split: str) -> list[dict[str, Any]]:
        own = re.sub(r"^(validation|test)(?!_)", rf"\1{self.data_set.validation}", split)
        records = [
            {"id": str(number), **{name: row[name] for name in (*self.data_set.texts, "label")}}
            for number, row in enumerate(read_hub(HUB, self.data_set.hub, own), start=1)
        ]
        if any(record["label"] == -1 for record in records):
            raise unlabelled(f"hub data set {HUB} ({self.data_set.hub}), split {own!r}")
        return records
