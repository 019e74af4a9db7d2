"""Metrics of lm-eval tasks: their names, summed statistics, scales and directions.

A metric here is a function of sums over documents, so that its confidence interval, and its value over any subset of
the documents, are cheap to compute. lm-eval's metrics are functions of lists; those that can be written with sums are
supported. Documents are scored by lm-eval's own evaluate(), filters and process_results.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from exitbench.errors import UserError
from exitbench.tasks.base import FloatArray
from exitbench.tasks.document import Document, DocumentScore
from exitbench.tasks.glue import confusion, f1, matthews
from exitbench.tasks.lm_eval.configs import LeafConfig
from exitbench.tasks.lm_eval.leaves import Chat, Leaf, named_errors

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric as CorpusMetric

_LARGEST_LOG = 700.0
"""Largest exponent: exp of more overflows."""


@dataclass(frozen=True)
class Aggregation:
    """An aggregation function of lm-eval, such as the mean or BLEU, rewritten with sums over documents.

    Attributes:
        summands: Maps a document's result of lm-eval's `process_results` to the numbers that are summed, [S].
        value: Maps the sums [..., S] and the number of documents [...] to the metric [...].
        bounds: Lowest and highest possible value; None if unbounded.
    """

    summands: Callable[[Any], list[float]]
    value: Callable[[FloatArray, FloatArray], FloatArray]
    bounds: tuple[float, float] | None = None

    def document_value(self, item: Any) -> float:
        """Return the metric's value for a single document, given its result of lm-eval's `process_results`."""
        return float(self.value(np.asarray(self.summands(item), dtype=np.float64), np.asarray(1.0)))


def aggregation(function: Callable[..., Any] | None) -> Aggregation | None:
    """Return an aggregation function of lm-eval rewritten with sums over documents; None if that is impossible.

    Also None if `function` is None.
    """
    if function is None:
        return None
    try:
        return _by_function().get(function) or _detect_mean(function)
    except TypeError:  # a function that cannot be hashed
        return _detect_mean(function)


@cache
def _by_function() -> dict[Callable[..., Any], Aggregation]:
    from lm_eval.api import metrics
    from sacrebleu.metrics import BLEU, CHRF, TER

    percent = (0.0, 100.0)
    return {
        metrics.mean: MEAN,
        metrics.nanmean: Aggregation(_unless_nan, _ratio),
        metrics.perplexity: Aggregation(_number, lambda total, n: _exp(-total[..., 0] / n)),
        metrics.weighted_perplexity: Aggregation(_pair, lambda total, n: _exp(-_ratio(total, n))),
        metrics.bits_per_byte: Aggregation(_pair, lambda total, n: -_ratio(total, n) / np.log(2)),
        metrics.bleu: _corpus(BLEU(), percent),
        metrics.chrf: _corpus(CHRF(), percent),
        metrics.chrfpp: _corpus(CHRF(word_order=2), percent),
        metrics.ter: _corpus(TER(), None),
        metrics.f1_score: Aggregation(_confusion, lambda total, n: f1(total), (0.0, 1.0)),
        metrics.matthews_corrcoef: Aggregation(_confusion, lambda total, n: matthews(total), (-1.0, 1.0)),
        metrics.brier_score: Aggregation(_brier, lambda total, n: total[..., 0] / n, (0.0, 2.0)),
    }


def _detect_mean(function: Callable[..., Any]) -> Aggregation | None:
    """Return the equivalent of a task's own aggregation function if it computes a mean on test input, else None."""
    single, nested = [0.25, 0.5, 1.0], [[True, False, True], [False]]
    if _returns_value(function, single, sum(single) / len(single)):
        return MEAN
    if _returns_value(function, nested, 0.5):
        return Aggregation(_sum_and_count, _ratio)
    return None


def _returns_value(function: Callable[..., Any], items: Sequence[Any], expected: float) -> bool:
    try:
        return bool(abs(float(function(list(items))) - expected) < 1e-12)
    except Exception:  # any error of a task's code on unexpected input
        return False


def _number(item: Any) -> list[float]:
    return [float(item)]


def _pair(item: Any) -> list[float]:
    return [float(item[0]), float(item[1])]


def _unless_nan(item: Any) -> list[float]:
    return [0.0, 0.0] if np.isnan(item) else [float(item), 1.0]


def _sum_and_count(item: Any) -> list[float]:
    return [float(sum(item)), float(len(item))]


def _ratio(total: FloatArray, n: FloatArray) -> FloatArray:
    value: FloatArray = total[..., 0] / total[..., 1]
    return value


def _exp(exponent: FloatArray) -> FloatArray:
    value: FloatArray = np.exp(np.minimum(exponent, _LARGEST_LOG))
    return value


def _confusion(item: Any) -> list[float]:
    """Return the counts of true and false positives, and false and true negatives, for one pair (gold, predicted)."""
    gold, predicted = int(item[0]), int(item[1])
    if not {gold, predicted} <= {0, 1}:
        raise UserError(f"lm-eval: f1 and mcc are kept for two classes, 0 and 1, not for {gold} and {predicted}.")
    return confusion(gold, predicted)


def _brier(item: Any) -> list[float]:
    gold, predicted = item
    right = np.eye(len(predicted))[gold]
    return [float(np.sum((np.asarray(predicted) - right) ** 2))]


def _corpus(metric: "CorpusMetric", bounds: tuple[float, float] | None) -> Aggregation:
    """Return the aggregation of a sacrebleu metric, from the counts that sacrebleu uses for significance tests."""

    def summands(item: Any) -> list[float]:
        references, output = item
        texts = [references] if isinstance(references, str) else list(references)
        text = output if isinstance(output, str) else output[0]
        counts = metric._extract_corpus_statistics([text], [[reference] for reference in texts])[0]
        return [float(count) for count in counts]

    def value(total: FloatArray, n: FloatArray) -> FloatArray:
        return np.apply_along_axis(lambda row: metric._compute_score_from_stats(row.tolist()).score, -1, total)

    return Aggregation(summands, value, bounds)


MEAN = Aggregation(_number, lambda total, n: total[..., 0] / n)
PER_BYTE = Aggregation(_pair, _ratio)
"""Log-likelihood per byte, from the pairs that lm-eval aggregates to bits per byte."""


PER_BYTE_NAME = "loglikelihood_per_byte"
_BITS = "bits_per_byte"
_SHARES = frozenset(
    {
        *("acc", "acc_norm", "acc_bytes", "acc_mutual_info", "acc_all", "exact_match", "em", "f1", "contains"),
        *("pass@1", "pass_at_1", "mc1", "mc2"),
    }
)
"""Metrics that lm-eval reports in 0..1 and this project in 0..100."""


@dataclass(frozen=True)
class LmEvalMetric:
    """One metric of an lm-eval task, computed after one of the task's filters.

    Attributes:
        name: Name in results, such as `exact_match,strict-match`; without the filter if the filter has no name.
        metric: lm-eval's name of the metric, and of its result for a document.
        filter: lm-eval's name of the filter.
        aggregation: Computes the metric from sums over documents.
        scale: Factor from lm-eval's value to this project's: 100 for proportions, else 1.
    """

    name: str
    metric: str
    filter: str
    aggregation: Aggregation
    scale: float
    higher_is_better: bool

    def aggregate(self, total: FloatArray, n: FloatArray) -> FloatArray:
        """Return the metric's value [...] from sums [..., S] over `n` documents [...].

        The summed values of a mean are already scaled; other metrics are scaled here.
        """
        return self.aggregation.value(total, n) * (1.0 if self.is_mean else self.scale)

    @property
    def is_mean(self) -> bool:
        """True if the metric is the mean of the documents' values, so that no other statistics are stored."""
        return self.aggregation is MEAN

    @property
    def bounds(self) -> tuple[float, float] | None:
        """Lowest and highest possible value, on this project's scale (proportions: 0..100); None if unbounded."""
        bounds = (0.0, 1.0) if self.scale == 100 and self.aggregation.bounds is None else self.aggregation.bounds
        return bounds and (self.scale * bounds[0], self.scale * bounds[1])


def metrics_of(leaf: LeafConfig) -> tuple[LmEvalMetric, ...]:
    """Return the supported metrics of a task. The first, the headline, is one for which higher is better, if any.

    Raises:
        UserError: No metric is a function of sums over documents.
    """
    supported, unsupported = [], []
    for metric, function, higher in _listed(leaf):
        sums = aggregation(function)
        if sums is None:
            unsupported.append(metric)
            continue
        scale = _scale(metric, sums)
        supported += [LmEvalMetric(name_of(metric, kind), metric, kind, sums, scale, higher) for kind in _filters(leaf)]
        if metric == _BITS:
            supported.append(LmEvalMetric(PER_BYTE_NAME, metric, "none", PER_BYTE, 1.0, True))
    if not supported:
        raise UserError(
            f"lm-eval: task {leaf.task_name!r}: its metrics ({', '.join(unsupported) or 'none'}) are aggregated by "
            "functions of its own, of whose results no interval can be found. Allowed: means and corpus scores."
        )
    # The sort is stable, so metrics of the same direction keep their order.
    return tuple(sorted(supported, key=lambda entry: not entry.higher_is_better))


def aggregate_of(metric: str) -> Callable[[FloatArray, FloatArray], FloatArray]:
    """Return the function that computes a metric from (summed statistics, number of documents), by its name in results.

    Its value is on this project's scale: 0..100 for proportions, else lm-eval's.

    Raises:
        UserError: lm-eval has no such metric, or it cannot be written with sums.
    """
    from lm_eval.api import metrics as _  # noqa: F401 - fills the registries
    from lm_eval.api.registry import METRIC_REGISTRY, get_metric_aggregation

    name = metric.partition(",")[0]
    function = get_metric_aggregation(name) if name in METRIC_REGISTRY else None
    sums = PER_BYTE if metric == PER_BYTE_NAME else aggregation(function)
    if sums is None:
        raise UserError(f"metric {metric!r}: how its statistics add up is not known without the task's YAML.")
    scale = _scale(name, sums)
    return lambda total, n: sums.value(total, n) * scale


def document_score(metrics: Sequence[LmEvalMetric], by_filter: Mapping[str, Mapping[str, Any]]) -> DocumentScore:
    """Convert lm-eval's results for one document into its score: a value per metric, and statistics that are summed.

    Values that are proportions are scaled from 0..1 to 0..100; all others are lm-eval's.

    Args:
        metrics: Metrics of the document's task.
        by_filter: lm-eval's result of `process_results`, by filter and metric. A listed metric that is missing there
            (for example because its package is not installed) is left out.
    """
    values: dict[str, float] = {}
    statistics: dict[str, list[float]] = {}
    for metric in metrics:
        if metric.metric not in by_filter.get(metric.filter, ()):
            continue
        item = by_filter[metric.filter][metric.metric]
        values[metric.name] = metric.scale * metric.aggregation.document_value(item)
        if not metric.is_mean:
            statistics[metric.name] = metric.aggregation.summands(item)
    return DocumentScore(values, statistics)


def _scale(metric: str, sums: Aggregation) -> float:
    """Return the factor from lm-eval's value of a metric to this project's: 100 for proportions, else 1."""
    return 100.0 if metric in _SHARES and (sums is MEAN or sums.bounds == (0.0, 1.0)) else 1.0


def name_of(metric: str, filter_name: str) -> str:
    """Return this project's name of an lm-eval metric computed after a filter, such as `exact_match,strict-match`."""
    return metric if filter_name == "none" else f"{metric},{filter_name}"


def _filters(leaf: LeafConfig) -> list[str]:
    return [str(entry["name"]) for entry in leaf.config.get("filter_list") or ()] or ["none"]


def _listed(leaf: LeafConfig) -> list[tuple[str, Callable[..., Any] | None, bool]]:
    """Return name, aggregation function and `higher_is_better` of each metric of a task, as lm-eval resolves them."""
    from lm_eval.api import metrics as _  # noqa: F401 - fills the registries
    from lm_eval.api.registry import (
        DEFAULT_METRIC_REGISTRY,
        get_aggregation,
        get_metric_aggregation,
        is_higher_better,
    )

    listed = leaf.config.get("metric_list")
    if listed is None:
        if leaf.task_class is not None:
            return _class_metrics(leaf)
        listed = [{"metric": name} for name in DEFAULT_METRIC_REGISTRY[leaf.output_type]]
    metrics_read = []
    for entry in listed:
        metric = entry["metric"]
        name = str(getattr(metric, "__name__", metric))
        function = entry.get("aggregation")
        if isinstance(function, str):
            function = get_aggregation(function)
        elif function is None:
            function = get_metric_aggregation(name)
        higher = entry.get("higher_is_better")
        if higher is None:
            higher = is_higher_better(name)
        metrics_read.append((name, function, bool(higher)))
    return metrics_read


def _class_metrics(leaf: LeafConfig) -> list[tuple[str, Callable[..., Any] | None, bool]]:
    """Return name, aggregation function and `higher_is_better` of each metric of a task written in Python.

    They are read from methods that need no data.
    """
    assert leaf.task_class is not None
    empty: Any = object.__new__(leaf.task_class)
    try:
        functions, higher = empty.aggregation(), empty.higher_is_better()
    except Exception as error:  # any error of a task's class without its data
        raise UserError(f"lm-eval: task {leaf.task_name!r} does not say its metrics: {error!r}.") from error
    return [(str(name), function, bool(higher.get(name, True))) for name, function in functions.items()]


Selection = Sequence[tuple[Leaf, str, Mapping[int, Document]]]
"""Documents by lm-eval's number, by task (a group's tasks one by one) and split."""


def evaluate(
    lm: Any, selection: Selection, metrics: Sequence[LmEvalMetric], chat: Chat | None
) -> tuple[dict[str, DocumentScore], dict[str, float]]:
    """Have lm-eval evaluate a model; return the scores by document key, and lm-eval's aggregated values by metric.

    Args:
        lm: lm-eval's `LM`.
        selection: For each task (never a group) and split: the documents, by lm-eval's index.
        metrics: Metrics of the tasks.
        chat: A system message and a chat template; None for neither.
    """
    from lm_eval.evaluator import evaluate as evaluate_in_lm_eval

    by_name = {f"{leaf.name}/{split}": (leaf, split, documents) for leaf, split, documents in selection}
    if len(by_name) < len(selection):
        raise UserError("lm-eval: documents of one task and split are from several sources.")
    tasks = {
        name: leaf.subset_task(split, sorted(documents), chat) for name, (leaf, split, documents) in by_name.items()
    }
    results = evaluate_in_lm_eval(
        lm=lm, task_dict={"tasks": tasks}, bootstrap_iters=0, log_samples=True, confirm_run_unsafe_code=True
    )
    scores: dict[str, DocumentScore] = {}
    for name, (leaf, _, documents) in by_name.items():
        returned: dict[int, dict[str, dict[str, Any]]] = {}
        for sample in results["samples"][name]:
            items = {metric: sample[metric] for metric in sample["metrics"]}
            returned.setdefault(sample["doc_id"], {})[sample["filter"]] = items
        for ordinal, document in documents.items():
            scores[document.key] = _scored(leaf, metrics, returned[ordinal])
    return scores, _aggregated(results["results"], by_name, metrics)


def score(
    selection: Selection, responses: Mapping[str, Sequence[Any]], metrics: Sequence[LmEvalMetric]
) -> dict[str, DocumentScore]:
    """Score existing responses, given by document key; return the scores by document key.

    A document has one response per request of lm-eval, in the form that `LmEvalTask.score_responses` describes.
    `selection` has the documents of each task (never a group) and split, by lm-eval's index.
    """
    scores: dict[str, DocumentScore] = {}
    for leaf, split, documents in selection:
        with named_errors(leaf.name):
            task = leaf.subset_task(split, sorted(documents), None)
            task.build_all_requests()
            by_ordinal: dict[int, list[Any]] = {}
            for instance in task.instances:
                by_ordinal.setdefault(instance.doc_id, []).append(instance)
            for ordinal, instances in by_ordinal.items():
                instances.sort(key=lambda request: request.idx)
                for instance, response in zip(instances, responses[documents[ordinal].key], strict=True):
                    once = not isinstance(response, list)
                    instance.resps = [response] * (instance.repeats or 1) if once else list(response)
            task.apply_filters()
            for ordinal, instances in by_ordinal.items():
                doc = leaf.docs(split)[ordinal]
                returned = {
                    name: task.process_results(doc, [request.filtered_resps[name] for request in instances])
                    for name in instances[0].filtered_resps
                }
                scores[documents[ordinal].key] = _scored(leaf, metrics, returned)
    return scores


def filter_output(leaf: Leaf, split: str, ordinal: int, text: str) -> dict[str, Any]:
    """Return, by filter, what a task's filters extract from a text generated for document `ordinal` of a split."""
    task = leaf.subset_task(split, [ordinal], None)
    task.build_all_requests()
    (instance,) = task.instances
    instance.resps = [text] * (instance.repeats or 1)
    task.apply_filters()
    return dict(instance.filtered_resps)


def _scored(leaf: Leaf, metrics: Sequence[LmEvalMetric], returned: Mapping[str, Mapping[str, Any]]) -> DocumentScore:
    doc_score = document_score(metrics, returned)
    if metrics[0].name not in doc_score.values:
        raise UserError(
            f"lm-eval: task {leaf.name!r} returns no {metrics[0].name!r} for a document, only "
            f"{', '.join(sorted(doc_score.values)) or 'nothing'}. A package that it scores with may not be installed."
        )
    return doc_score


def _aggregated(results: Mapping[str, Any], names: Iterable[str], metrics: Sequence[LmEvalMetric]) -> dict[str, float]:
    """Return lm-eval's aggregated value of each metric, on this project's scale, from the results of its `evaluate()`.

    Several tasks are weighted by their numbers of documents, as in lm-eval.
    """
    from lm_eval.api.metrics import aggregate_subtask_metrics

    aggregated = {}
    for metric in metrics:
        key = f"{metric.metric},{metric.filter}"
        rows = [results[name] for name in names if key in results[name]]
        if not rows or metric.name != name_of(metric.metric, metric.filter):
            continue
        values, sizes = [row[key] for row in rows], [row["sample_len"] for row in rows]
        # The mean of a single value may differ from it in the last digit.
        value = values[0] if len(values) == 1 else aggregate_subtask_metrics(values, sizes)
        aggregated[metric.name] = metric.scale * float(value)
    return aggregated
