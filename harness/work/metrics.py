"""Metrics of a cell: the task's metrics from per-document scores, and this project's metrics of depth, cost, speed etc.

Metrics in addition to the task's, by kind of cell (``full_X`` is the value of X at full depth):

  quality: mean_exit_layer, mean_blocks_run, token_match, ideal_speedup_bytes, ideal_speedup_flops.
    acceptance_rate: Share of drafts that were accepted.
    cost_X_bytes: Bytes per token as a share of full depth's; X is blocks, heads, gates, kv, verification or total.
    Tasks that score given texts also have choice_match and logprob_gap.
  timing: speedup, speedup_decode, cpu_speedup, speedup_choosing, speedup_confirming, aa_speedup, ideal_speedup_decode,
    realised_fraction, ms_per_token, ms_per_request, tokens_per_request, timed_documents, timed_rounds.
    With energy counters: joules_per_token, net_joules_per_token, energy_ratio, aa_energy_ratio, idle_power_w,
    energy_counters, energy_updates.
  fit: held_out_loss, held_out_accuracy.
  calibration: threshold if one was chosen, held_out_loss, held_out_mean_exit_layer.
  any, if the number is not 0: documents_dropped, documents_unscorable, prompts_truncated.
    Fits and calibrations also have documents_shared.

Metrics with role ``format`` compare the cell's number format with the same checkpoint in float32:

  format_logprob_gap: Mean absolute difference of log-probabilities, in nats: of choices, labels, or tokens.
  format_choice_gap: Mean absolute difference of the gap between two choices (or labels), over all pairs of a document.
  format_choice_match: Share of documents with the same choice or label.
  format_token_match: Share of tokens that are the most probable token in both formats or in neither. For generated
    answers, these are full depth's tokens, teacher-forced.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike

from exitbench.results.spool.attempts import AttemptWriter
from exitbench.results.spool.schema import TABLES
from exitbench.results.statistics.intervals import (
    NONE_DIFFERS,
    Interval,
    aggregate_interval,
    as_sums,
    bounded_ratio_interval,
    point,
    ratio_interval,
)
from exitbench.tasks.base import Task, take_by_hash
from exitbench.tasks.document import Document, DocumentScore

if TYPE_CHECKING:
    from exitbench.harness.engine.decoding.likelihood import Scored
    from exitbench.methods.base import Cost, Parts

METRIC_VERSION = "2"
"""Version of the metrics defined here (depth, agreement, cost, speed); tasks have a separate version for theirs."""


class Metric(NamedTuple):
    """One metric of a cell: its version, its role, and its value with an interval.

    Attributes:
        role: Topic of the metric, such as ``depth`` or ``cost`` (`results.spool.schema.ROLES`).
        lower_is_better: Whether lower scores are better; None for metrics that are not scores, such as depth and cost.
        scale: Smallest and largest possible score; None if unbounded.
    """

    version: str
    role: str
    interval: Interval
    lower_is_better: bool | None = None
    scale: tuple[float, float] | None = None


def task_metrics(task: Task, scores: Sequence[DocumentScore]) -> dict[str, Metric]:
    """Return the metrics of a task, aggregated over documents, headline first.

    A metric that any document lacks is left out.

    Args:
        task: The task.
        scores: Scores of the answers, one entry per document.
    """
    metrics = {}
    for metric in task.metrics:
        if any(
            metric not in score.values for score in scores
        ):  # lm-eval computes some metrics only if a package is installed
            continue
        statistics = np.array([score.summands(metric) for score in scores])
        scale = task.bounds(metric)
        interval = aggregate_interval(*as_sums(statistics, task.aggregator(metric)), scale)
        role = "headline" if metric == task.headline else "task"
        metrics[metric] = Metric(task.metric_version, role, interval, metric in task.lower_is_better, scale)
    return metrics


def score_columns(score: DocumentScore) -> dict[str, str]:
    """Return a document's scores and summed statistics as JSON, by column of the spool's table ``samples``."""
    return {"scores": json.dumps(score.values), "statistics": json.dumps(score.statistics)}


def metric_table(metrics: Mapping[str, Metric]) -> pa.Table:
    """Return metrics, given by name, as the spool's table ``metrics`` with one row per metric."""
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


def depth_interval(blocks: ArrayLike, tokens: ArrayLike, n_blocks: int, *, is_fixed: bool) -> Interval:
    """Return the mean number of blocks per token (exit layer or blocks run), with its interval over documents.

    Args:
        blocks: Number of blocks summed over the tokens of each document, [n documents].
        tokens: Number of tokens of each document, [n documents].
        n_blocks: Number of decoder blocks, L.
        is_fixed: Whether the method gives every token of any document the same depth. If the data confirm it, the mean
            is exact and has no interval.
    """
    interval = bounded_ratio_interval(blocks, tokens, (1, n_blocks))
    return point(interval.value, interval.n) if is_fixed and interval.method == NONE_DIFFERS else interval


def depth_metrics(
    exits: ArrayLike, runs: ArrayLike, tokens: ArrayLike, n_blocks: int, parts: Parts
) -> dict[str, Interval]:
    """Return mean exit layer and mean blocks run per token, with intervals over documents.

    Args:
        exits: Sum of the exit layers of each document's tokens, [n documents].
        runs: Number of blocks run for each document's tokens, [n documents].
        tokens: Number of tokens of each document, [n documents].
        n_blocks: Number of decoder blocks, L.
        parts: The method's parts.
    """
    return {
        "mean_exit_layer": depth_interval(exits, tokens, n_blocks, is_fixed=not parts.gate.decides),
        "mean_blocks_run": depth_interval(runs, tokens, n_blocks, is_fixed=parts.runs_fixed_blocks),
    }


def ideal_speedups(full: Sequence[Cost], own: Sequence[Cost], seed: int) -> dict[str, Interval]:
    """Return full depth's cost divided by the method's, in bytes read and in FLOPs, from the costs of each document."""
    return {
        "ideal_speedup_bytes": ratio_interval(
            [cost.read_numel for cost in full], [cost.read_numel for cost in own], seed=seed
        ),
        "ideal_speedup_flops": ratio_interval([cost.flops for cost in full], [cost.flops for cost in own], seed=seed),
    }


def with_role(role: str, metrics: Mapping[str, Interval], lower_is_better: bool | None = None) -> dict[str, Metric]:
    """Return values with intervals as metrics of one role, such as ``depth`` or ``cost``, by name.

    Their version is the version of this module's metrics.
    """
    return {name: Metric(METRIC_VERSION, role, interval, lower_is_better) for name, interval in metrics.items()}


def agreement_metrics(metrics: Mapping[str, Interval], *, lower_is_better: bool = False) -> dict[str, Metric]:
    """Return values with intervals as metrics of agreement with full depth, by name."""
    return with_role("agreement", metrics, lower_is_better)


def write_metrics(writer: AttemptWriter, metrics: Mapping[str, Metric]) -> None:
    """Write metrics to the spool's table ``metrics``, one row per metric."""
    writer.write("metrics", metric_table(metrics))


# --- Effect of a number format

FORMAT_DOCUMENTS: Final = 50
"""Maximum number of documents read in both formats."""


def format_sample(documents: Sequence[Document]) -> list[Document]:
    """Return the documents used to compare number formats: the first ones in the hash order of their keys."""
    return take_by_hash(documents, FORMAT_DOCUMENTS)


def token_gaps(pairs: Iterable[tuple[Sequence[Scored], Sequence[Scored]]], seed: int) -> dict[str, Interval]:
    """Return metrics that compare two number formats by token: log-probability gap and token match.

    These are ``format_logprob_gap`` (mean absolute difference, in nats) and ``format_token_match`` (share of tokens
    that are the most probable in both formats or in neither). Without tokens, the result is empty.

    Args:
        pairs: For each document, its scores in the cell's number format and in float32.
        seed: Seed of the bootstrap intervals.
    """
    gaps: list[float] = []
    same: list[int] = []
    counts: list[int] = []
    for scored, reference_scored in pairs:
        tokens = [
            (abs(a - b), is_greedy == is_other_greedy)
            for part, reference_part in zip(scored, reference_scored, strict=True)
            for a, b, is_greedy, is_other_greedy in zip(
                part.logprobs, reference_part.logprobs, part.greedy, reference_part.greedy, strict=True
            )
        ]
        gaps.append(sum(gap for gap, _ in tokens))
        same.append(sum(is_same for _, is_same in tokens))
        counts.append(len(tokens))
    if not sum(counts):
        return {}
    return {
        "format_logprob_gap": ratio_interval(gaps, counts, seed=seed),
        "format_token_match": bounded_ratio_interval(same, counts),
    }


@dataclass(frozen=True)
class Choices:
    """Log-probabilities of a document's choices in the cell's number format and in float32.

    Attributes:
        logprobs: Log-probability of each choice in the cell's format.
        reference_logprobs: Log-probability of each choice in float32.
        is_same: Whether both formats select the same choice.
    """

    logprobs: Sequence[float]
    reference_logprobs: Sequence[float]
    is_same: bool


def choice_gaps(documents: Sequence[Choices], seed: int) -> dict[str, Interval]:
    """Return metrics of how log-probabilities of choices or labels differ between a number format and float32.

    The keys are:
        format_logprob_gap: Mean absolute difference of a choice's log-probability, in nats.
        format_choice_match: Share of documents for which both formats select the same choice.
        format_choice_gap: Mean absolute difference of the gap between two choices, over all pairs of a document, in
            nats; absent if no document has two choices.

    Args:
        documents: Log-probabilities of each document's choices in both formats.
        seed: Seed of the bootstrap intervals.
    """
    moved = [
        [a - b for a, b in zip(document.logprobs, document.reference_logprobs, strict=True)] for document in documents
    ]
    pair_gaps = [[abs(a - b) for a, b in combinations(each, 2)] for each in moved]
    intervals = {
        "format_logprob_gap": ratio_interval([sum(map(abs, each)) for each in moved], list(map(len, moved)), seed=seed),
        "format_choice_match": bounded_ratio_interval(
            [document.is_same for document in documents], [1] * len(documents)
        ),
    }
    if any(pair_gaps):
        intervals["format_choice_gap"] = ratio_interval(list(map(sum, pair_gaps)), list(map(len, pair_gaps)), seed=seed)
    return intervals
