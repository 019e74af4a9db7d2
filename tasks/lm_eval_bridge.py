"""Bridge to lm-eval: presents a task as an lm-eval task with this project's records, scores and aggregation.

lm-eval deep-copies task configurations, so everything here is a module-level function with small, immutable arguments
bound to it (a bound method would copy its whole object).
"""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from exitbench.tasks.document import Document, DocumentScore

if TYPE_CHECKING:
    from datasets import Dataset

    from exitbench.tasks.base import ModelKind, Task

Record = tuple[str, str, str, str]
COLUMNS = ("doc_key", "prompt", "target", "fields")


class MetricValue(float):
    """Per-document value of one metric: a float that also carries the document's whole `DocumentScore`.

    lm-eval passes the result of `process_results` to the aggregation and logs the same object with the sample. The log
    shows the per-document value, while corpus metrics still aggregate exactly. The function `scores` reads the
    `DocumentScore` from the log, so no document is scored twice.
    """

    score: DocumentScore

    def __new__(cls, metric: str, score: DocumentScore) -> "MetricValue":
        """Create the value of one metric from a document's score."""
        self = super().__new__(cls, score.values[metric])
        self.score = score
        return self


class NamedPartial(partial[Any]):
    """A `functools.partial` whose repr is only the function's name.

    lm-eval writes the repr of every callable into its results. The repr of a plain partial would contain the texts of
    the whole data set, and memory addresses.
    """

    def __repr__(self) -> str:
        return f"{self.func.__module__}.{self.func.__qualname__}"


def config(task: "Task", documents: "Sequence[Document]", kind: "ModelKind") -> dict[str, Any]:
    """Return a task configuration with which lm-eval evaluates these documents, with prompts for this kind of model."""
    records = tuple(
        (document.key, task.prompt_for(document, kind), task.target(document), json.dumps(dict(document.fields)))
        for document in documents
    )
    return {
        "task": task.name,
        "custom_dataset": NamedPartial(_dataset, records),
        "test_split": "test",
        "output_type": "generate_until",
        # column names, which lm-eval uses verbatim; it would evaluate a rendered target that looks like a list
        "doc_to_text": "prompt",
        "doc_to_target": "target",
        "process_results": NamedPartial(_process_results, task),
        "metric_list": [
            {
                "metric": metric,
                "aggregation": NamedPartial(_aggregate, task, metric),
                "higher_is_better": metric not in task.lower_is_better,
            }
            for metric in task.metrics
        ],
        "generation_kwargs": {"until": [], "max_gen_toks": task.default_max_new_tokens, "do_sample": False},
        "metadata": {"version": task.metric_version},
    }


def _dataset(records: Sequence[Record], /, **_settings: Any) -> "dict[str, Dataset]":
    from datasets import Dataset

    return {"test": Dataset.from_dict({name: [record[i] for record in records] for i, name in enumerate(COLUMNS)})}


def _process_results(task: "Task", doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
    document = Document(key=doc["doc_key"], fields=json.loads(doc["fields"]))
    score = task.score(document, results[0])
    return {metric: MetricValue(metric, score) for metric in task.metrics}


def scores(task: "Task", results: Mapping[str, Any]) -> dict[str, DocumentScore]:
    """Return each document's `DocumentScore`, by document key, from lm-eval's `evaluate()` results with samples."""
    return {sample["doc"]["doc_key"]: sample[task.headline].score for sample in results["samples"][task.name]}


def _aggregate(task: "Task", metric: str, items: Sequence[MetricValue]) -> float:
    total = np.array([item.score.summands(metric) for item in items], dtype=np.float64).sum(axis=0)
    return float(task.aggregate(metric, total, np.asarray(len(items), dtype=np.float64)))
