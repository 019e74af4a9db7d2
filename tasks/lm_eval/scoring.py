"""lm-eval's evaluate(), filters and process_results, for some documents of some tasks."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from exitbench.errors import UserError
from exitbench.tasks.document import Document, DocumentScore
from exitbench.tasks.lm_eval.leaves import Chat, Leaf, named_errors
from exitbench.tasks.lm_eval.metrics import LmEvalMetric, document_score, name_of

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
