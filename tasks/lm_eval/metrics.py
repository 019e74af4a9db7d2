"""The metrics of a task of lm-eval: their names, what they add up to, on which scale, and which way is better.

A metric here is a function of sums over documents, so that its interval, or its value without a document, is a sum
away. lm-eval's are functions of lists; taken over are those that are both. Documents are scored by lm-eval's own
evaluate(), filters and process_results.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from exitbench.errors import UserError
from exitbench.tasks.document import Document, DocumentScore
from exitbench.tasks.glue import confusion, f1, matthews
from exitbench.tasks.lm_eval.configs import LeafConfig
from exitbench.tasks.lm_eval.leaves import Chat, Leaf, named_errors

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric as CorpusMetric

FloatArray = npt.NDArray[np.float64]
_LARGEST_LOG = 700.0
"""exp of more is no number."""


@dataclass(frozen=True)
class Aggregation:
    """An aggregation of lm-eval.

    Attributes:
        summands: Of what `process_results` returned for a document: the numbers that are summed, [S].
        value: Of the sums [..., S] and the number of documents [...]: the metric [...].
        bounds: Least and greatest value; None where there is no such.
    """

    summands: Callable[[Any], list[float]]
    value: Callable[[FloatArray, FloatArray], FloatArray]
    bounds: tuple[float, float] | None = None

    def of_one(self, item: Any) -> float:
        """Return the metric of a single document."""
        return float(self.value(np.asarray(self.summands(item), dtype=np.float64), np.asarray(1.0)))


def aggregation(function: Callable[..., Any] | None) -> Aggregation | None:
    """Return the sums of an aggregation of lm-eval; None where it is none."""
    if function is None:
        return None
    try:
        return _known().get(function) or _found_out(function)
    except TypeError:  # one that cannot be hashed
        return _found_out(function)


@cache
def _known() -> dict[Callable[..., Any], Aggregation]:
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


def _found_out(function: Callable[..., Any]) -> Aggregation | None:
    """A task's own function that is a mean under another name."""
    single, nested = [0.25, 0.5, 1.0], [[True, False, True], [False]]
    if _gives(function, single, sum(single) / len(single)):
        return MEAN
    if _gives(function, nested, 0.5):
        return Aggregation(_sum_and_count, _ratio)
    return None


def _gives(function: Callable[..., Any], items: Sequence[Any], expected: float) -> bool:
    try:
        return bool(abs(float(function(list(items))) - expected) < 1e-12)
    except Exception:  # whatever a task's code raises where it is given other things than it makes
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
    """True positives, false positives, false negatives, true negatives."""
    gold, predicted = int(item[0]), int(item[1])
    if not {gold, predicted} <= {0, 1}:
        raise UserError(f"lm-eval: f1 and mcc are kept for two classes, 0 and 1, not for {gold} and {predicted}.")
    return confusion(gold, predicted)


def _brier(item: Any) -> list[float]:
    gold, predicted = item
    right = np.eye(len(predicted))[gold]
    return [float(np.sum((np.asarray(predicted) - right) ** 2))]


def _corpus(metric: "CorpusMetric", bounds: tuple[float, float] | None) -> Aggregation:
    """A corpus metric of sacrebleu, by the counts that its own significance tests add up."""

    def summands(item: Any) -> list[float]:
        references, output = item
        given = [references] if isinstance(references, str) else list(references)
        text = output if isinstance(output, str) else output[0]
        counts = metric._extract_corpus_statistics([text], [[reference] for reference in given])[0]
        return [float(count) for count in counts]

    def value(total: FloatArray, n: FloatArray) -> FloatArray:
        return np.apply_along_axis(lambda row: metric._compute_score_from_stats(row.tolist()).score, -1, total)

    return Aggregation(summands, value, bounds)


MEAN = Aggregation(_number, lambda total, n: total[..., 0] / n)
PER_BYTE = Aggregation(_pair, _ratio)
"""Log-likelihood over bytes, from what lm-eval aggregates to bits per byte."""


PER_BYTE_NAME = "loglikelihood_per_byte"
_BITS = "bits_per_byte"
_SHARES = frozenset(
    {
        *("acc", "acc_norm", "acc_bytes", "acc_mutual_info", "acc_all", "exact_match", "em", "f1", "contains"),
        *("pass@1", "pass_at_1", "mc1", "mc2"),
    }
)
"""Shares of something, which lm-eval has in 0..1 and we in 0..100."""


@dataclass(frozen=True)
class LmEvalMetric:
    """One metric under one filter.

    Attributes:
        name: `exact_match,strict-match`, or `acc` where there is one filter without a name.
        metric: lm-eval's name.
        filter: lm-eval's name of the filter.
        scale: Factor from lm-eval's value to ours.
        item: lm-eval's metric whose value of a document this one adds up.
    """

    name: str
    metric: str
    filter: str
    aggregation: Aggregation
    scale: float
    higher_is_better: bool
    item: str

    def aggregate(self, total: FloatArray, n: FloatArray) -> FloatArray:
        """Return the metric [...] of sums [..., S] over [...] documents, of a mean of the documents' own values."""
        return self.aggregation.value(total, n) * (1.0 if self.is_mean else self.scale)

    @property
    def is_mean(self) -> bool:
        """Whether it is the mean of its values, which need no other statistics."""
        return self.aggregation is MEAN

    @property
    def bounds(self) -> tuple[float, float] | None:
        """Least and greatest value; None where there is no such."""
        known = (0.0, 1.0) if self.scale == 100 and self.aggregation.bounds is None else self.aggregation.bounds
        return known and (self.scale * known[0], self.scale * known[1])


def metrics_of(leaf: LeafConfig) -> tuple[LmEvalMetric, ...]:
    """Return the metrics of a task, headline first: the first that is better when higher, if any is.

    Raises:
        UserError: None of them is a function of sums over documents.
    """
    found, left_out = [], []
    for metric, function, higher in _listed(leaf):
        sums = aggregation(function)
        if sums is None:
            left_out.append(metric)
            continue
        scale = _scale(metric, sums)
        found += [
            LmEvalMetric(name_of(metric, kind), metric, kind, sums, scale, higher, metric) for kind in _filters(leaf)
        ]
        if metric == _BITS:
            found.append(LmEvalMetric(PER_BYTE_NAME, metric, "none", PER_BYTE, 1.0, True, metric))
    if not found:
        raise UserError(
            f"lm-eval: task {leaf.task_name!r}: its metrics ({', '.join(left_out) or 'none'}) are aggregated by "
            "functions of its own, of whose results no interval can be found. Allowed: means and corpus scores."
        )
    # Sorting keeps the order of those that are alike.
    return tuple(sorted(found, key=lambda one: not one.higher_is_better))


def aggregate_of(metric: str) -> Callable[[FloatArray, FloatArray], FloatArray]:
    """Return what turns summed statistics of a metric into its value, where only its name in results is known.

    Raises:
        UserError: lm-eval has no such metric, or one of another form.
    """
    from lm_eval.api import metrics as _  # noqa: F401 - fills the registries
    from lm_eval.api.registry import METRIC_REGISTRY, get_metric_aggregation

    name = metric.partition(",")[0]
    known = get_metric_aggregation(name) if name in METRIC_REGISTRY else None
    sums = PER_BYTE if metric == PER_BYTE_NAME else aggregation(known)
    if sums is None:
        raise UserError(f"metric {metric!r}: how its statistics add up is not known without the task's YAML.")
    scale = _scale(name, sums)
    return lambda total, n: sums.value(total, n) * scale


def document_score(metrics: Sequence[LmEvalMetric], by_filter: Mapping[str, Mapping[str, Any]]) -> DocumentScore:
    """Return our score of a document.

    Args:
        metrics: Those of its task.
        by_filter: What lm-eval's `process_results` returned, by filter and metric. A metric that a task lists and does
            not return (its package is not installed, say) is left out.
    """
    values: dict[str, float] = {}
    statistics: dict[str, list[float]] = {}
    for metric in metrics:
        if metric.item not in by_filter.get(metric.filter, ()):
            continue
        item = by_filter[metric.filter][metric.item]
        values[metric.name] = metric.scale * metric.aggregation.of_one(item)
        if not metric.is_mean:
            statistics[metric.name] = metric.aggregation.summands(item)
    return DocumentScore(values, statistics)


def _scale(metric: str, sums: Aggregation) -> float:
    """Factor from lm-eval's value to ours."""
    return 100.0 if metric in _SHARES and (sums is MEAN or sums.bounds == (0.0, 1.0)) else 1.0


def name_of(metric: str, filter_name: str) -> str:
    """Return what a metric of lm-eval's is called under a filter."""
    return metric if filter_name == "none" else f"{metric},{filter_name}"


def _filters(leaf: LeafConfig) -> list[str]:
    return [str(one["name"]) for one in leaf.config.get("filter_list") or ()] or ["none"]


def _listed(leaf: LeafConfig) -> list[tuple[str, Callable[..., Any] | None, bool]]:
    """Name, aggregation and direction of each metric, as lm-eval's ConfigurableTask reads them."""
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
            return _of_class(leaf)
        listed = [{"metric": name} for name in DEFAULT_METRIC_REGISTRY[leaf.output_type]]
    found = []
    for entry in listed:
        given = entry["metric"]
        name = str(getattr(given, "__name__", given))
        function = entry.get("aggregation")
        if isinstance(function, str):
            function = get_aggregation(function)
        elif function is None:
            function = get_metric_aggregation(name)
        higher = entry.get("higher_is_better")
        if higher is None:
            higher = is_higher_better(name)
        found.append((name, function, bool(higher)))
    return found


def _of_class(leaf: LeafConfig) -> list[tuple[str, Callable[..., Any] | None, bool]]:
    """Of a task written in Python, which says so by methods that need no data."""
    assert leaf.task_class is not None
    empty: Any = object.__new__(leaf.task_class)
    try:
        functions, higher = empty.aggregation(), empty.higher_is_better()
    except Exception as error:  # whatever a class of lm-eval's does without its data
        raise UserError(f"lm-eval: task {leaf.task_name!r} does not say its metrics: {error!r}.") from error
    return [(str(name), function, bool(higher.get(name, True))) for name, function in functions.items()]


Asked = Sequence[tuple[Leaf, str, Mapping[int, Document]]]
"""Of each single task and split: the documents, by lm-eval's number."""


def evaluate(
    lm: Any, asked: Asked, metrics: Sequence[LmEvalMetric], chat: Chat | None
) -> tuple[dict[str, DocumentScore], dict[str, float]]:
    """Have lm-eval ask a model; see `LmEvalTask.evaluate`."""
    from lm_eval.evaluator import evaluate as evaluate_in_lm_eval

    by_name = {f"{leaf.name}/{kind}": (leaf, kind, documents) for leaf, kind, documents in asked}
    if len(by_name) < len(asked):
        raise UserError("lm-eval: documents of one task and split are from several sources.")
    tasks = {name: leaf.asking(kind, sorted(documents), chat) for name, (leaf, kind, documents) in by_name.items()}
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
    asked: Asked, responses: Mapping[str, Sequence[Any]], metrics: Sequence[LmEvalMetric]
) -> dict[str, DocumentScore]:
    """Score responses that are there; see `LmEvalTask.score_responses`."""
    scores: dict[str, DocumentScore] = {}
    for leaf, kind, documents in asked:
        with named_errors(leaf.name):
            scores |= _scores_of(leaf, kind, documents, responses, metrics)
    return scores


def _scores_of(
    leaf: Leaf,
    kind: str,
    documents: Mapping[int, Document],
    responses: Mapping[str, Sequence[Any]],
    metrics: Sequence[LmEvalMetric],
) -> dict[str, DocumentScore]:
    scores: dict[str, DocumentScore] = {}
    task = leaf.asking(kind, sorted(documents), None)
    task.build_all_requests()
    by_ordinal: dict[int, list[Any]] = {}
    for instance in task.instances:
        by_ordinal.setdefault(instance.doc_id, []).append(instance)
    for ordinal, instances in by_ordinal.items():
        given = responses[documents[ordinal].key]
        for instance, response in zip(sorted(instances, key=lambda one: one.idx), given, strict=True):
            once = not isinstance(response, list)
            instance.resps = [response] * (instance.repeats or 1) if once else list(response)
    task.apply_filters()
    for ordinal, instances in by_ordinal.items():
        instances.sort(key=lambda one: one.idx)
        doc = leaf.docs(kind)[ordinal]
        returned = {
            name: task.process_results(doc, [one.filtered_resps[name] for one in instances])
            for name in instances[0].filtered_resps
        }
        scores[documents[ordinal].key] = _scored(leaf, metrics, returned)
    return scores


def filtered(leaf: Leaf, kind: str, ordinal: int, text: str) -> dict[str, Any]:
    """Return what each filter of a task makes of a text generated for a document."""
    task = leaf.asking(kind, [ordinal], None)
    task.build_all_requests()
    (instance,) = task.instances
    instance.resps = [text] * (instance.repeats or 1)
    task.apply_filters()
    return dict(instance.filtered_resps)


def _scored(leaf: Leaf, metrics: Sequence[LmEvalMetric], returned: Mapping[str, Mapping[str, Any]]) -> DocumentScore:
    found = document_score(metrics, returned)
    if metrics[0].name not in found.values:
        raise UserError(
            f"lm-eval: task {leaf.name!r} returns no {metrics[0].name!r} for a document, only "
            f"{', '.join(sorted(found.values)) or 'nothing'}. A package that it scores with may not be installed."
        )
    return found


def _aggregated(results: Mapping[str, Any], names: Iterable[str], metrics: Sequence[LmEvalMetric]) -> dict[str, float]:
    """lm-eval's aggregated values on our scale; of several tasks, weighted by size, as lm-eval weights groups."""
    from lm_eval.api.metrics import aggregate_subtask_metrics

    found = {}
    for metric in metrics:
        key = f"{metric.item},{metric.filter}"
        rows = [results[name] for name in names if key in results[name]]
        if not rows or metric.name != name_of(metric.metric, metric.filter):
            continue
        values, sizes = [row[key] for row in rows], [row["sample_len"] for row in rows]
        # The mean of one value is not that value to the last digit.
        value = values[0] if len(values) == 1 else aggregate_subtask_metrics(values, sizes)
        found[metric.name] = metric.scale * float(value)
    return found
