"""Aggregate metrics from per-document scores, the same whether a model has just answered or stored outputs are read."""

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from exitbench.results.spool.schema import TABLES
from exitbench.results.statistics.columns import as_sums
from exitbench.results.statistics.intervals import Interval, aggregate_interval
from exitbench.tasks.base import Task
from exitbench.tasks.document import DocumentScore


class Metric(NamedTuple):
    """A metric's version, what it is about (`results.schema.ROLES`), and its value."""

    version: str
    role: str
    interval: Interval


def task_metrics(task: Task, scores: Sequence[DocumentScore]) -> dict[str, Metric]:
    """Return each metric of a task, headline first.

    Args:
        task: The task.
        scores: One a document.
    """
    metrics = {}
    for metric in task.metrics:
        if any(metric not in score.values for score in scores):  # lm-eval scores it where a package is installed only
            continue
        statistics = np.array([score.summands(metric) for score in scores])
        interval = aggregate_interval(*as_sums(statistics, task.aggregator(metric)), task.bounds(metric))
        role = "headline" if metric == task.headline else "task"
        metrics[metric] = Metric(task.metric_version, role, interval)
    return metrics


def score_columns(score: DocumentScore) -> dict[str, str]:
    """Return a document's scores as the spool's samples have them."""
    return {"scores": json.dumps(score.values), "statistics": json.dumps(score.statistics)}


def metric_table(metrics: Mapping[str, Metric]) -> pa.Table:
    """Return metrics, by name, as rows of the spool's metrics."""
    rows = [
        {
            "metric": name,
            "metric_version": version,
            "role": role,
            "value": interval.value,
            "ci_low": interval.low,
            "ci_high": interval.high,
            "ci_method": interval.method,
            "n": interval.n,
        }
        for name, (version, role, interval) in metrics.items()
    ]
    return pa.Table.from_pylist(rows, schema=TABLES["metrics"])
