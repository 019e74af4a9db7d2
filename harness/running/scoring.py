"""Aggregate metrics from per-document scores, the same whether a model has just answered or stored outputs are read."""

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from exitbench.results.spool.schema import TABLES
from exitbench.results.statistics.intervals import Interval, aggregate_interval, as_sums
from exitbench.tasks.base import Task
from exitbench.tasks.document import DocumentScore


class Metric(NamedTuple):
    """A metric's version, what it is about (`results.schema.ROLES`), and its value.

    Attributes:
        lower_is_better: None for what is no score, such as depth and cost.
        scale: Least and greatest value that a score can have; None without such.
    """

    version: str
    role: str
    interval: Interval
    lower_is_better: bool | None = None
    scale: tuple[float, float] | None = None


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
        scale = task.bounds(metric)
        interval = aggregate_interval(*as_sums(statistics, task.aggregator(metric)), scale)
        role = "headline" if metric == task.headline else "task"
        metrics[metric] = Metric(task.metric_version, role, interval, metric in task.lower_is_better, scale)
    return metrics


def score_columns(score: DocumentScore) -> dict[str, str]:
    """Return a document's scores as the spool's samples have them."""
    return {"scores": json.dumps(score.values), "statistics": json.dumps(score.statistics)}


def metric_table(metrics: Mapping[str, Metric]) -> pa.Table:
    """Return metrics, by name, as rows of the spool's metrics."""
    rows = [
        {
            "metric": name,
            "metric_version": metric.version,
            "role": metric.role,
            "lower_is_better": metric.lower_is_better,
            "scale_low": metric.scale and metric.scale[0],
            "scale_high": metric.scale and metric.scale[1],
            "value": metric.interval.value,
            "ci_low": metric.interval.low,
            "ci_high": metric.interval.high,
            "ci_method": metric.interval.method,
            "n": metric.interval.n,
        }
        for name, metric in metrics.items()
    ]
    return pa.Table.from_pylist(rows, schema=TABLES["metrics"])
