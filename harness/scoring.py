"""Metrics of a task from per-document scores, the same whether a model has just answered or stored outputs are read."""

import json
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from exitbench.results.schema import TABLES
from exitbench.results.statistics import Interval, aggregate_interval
from exitbench.tasks.base import DocumentScore, Task


def task_metrics(task: Task, scores: Sequence[DocumentScore]) -> dict[str, tuple[str, Interval]]:
    """Return version and value of each metric of a task, headline first.

    Args:
        task: The task.
        scores: One a document.
    """
    metrics = {}
    for metric in task.metrics:
        statistics = np.array([score.summands(metric) for score in scores])
        interval = aggregate_interval(statistics, partial(task.aggregate, metric))
        metrics[metric] = (task.metric_version, interval)
    return metrics


def score_columns(score: DocumentScore) -> dict[str, str]:
    """Return a document's scores as the spool's samples have them."""
    return {"scores": json.dumps(score.values), "statistics": json.dumps(score.statistics)}


def metric_table(metrics: Mapping[str, tuple[str, Interval]]) -> pa.Table:
    """Return metrics, by name with their version, as rows of the spool's metrics."""
    rows = [
        {
            "metric": name,
            "metric_version": version,
            "value": interval.value,
            "ci_low": interval.low,
            "ci_high": interval.high,
            "ci_method": interval.method,
            "n": interval.n,
        }
        for name, (version, interval) in metrics.items()
    ]
    return pa.Table.from_pylist(rows, schema=TABLES["metrics"])
