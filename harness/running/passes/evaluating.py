"""lm-eval evaluates: our tasks through the bridge, its own by themselves. What it says must be what is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from exitbench.harness.cells.job import CellJob
from exitbench.harness.running.lm import EarlyExitLM
from exitbench.harness.running.passes.session import Session
from exitbench.harness.running.scoring import Metric, task_metrics
from exitbench.tasks import lm_eval_bridge
from exitbench.tasks.base import Task
from exitbench.tasks.document import Document, DocumentScore
from exitbench.tasks.lm_eval.task import LmEvalTask

_TOLERANCE = 1e-6


def evaluate_documents(
    session: Session, item: CellJob, lm: EarlyExitLM, documents: Sequence[Document]
) -> tuple[Mapping[str, DocumentScore], Mapping[str, float]]:
    """Have lm-eval ask the model about every document.

    Returns:
        The scores of each document, by its key; and the value of each metric as lm-eval aggregates it.
    """
    task = item.data.task_object
    if isinstance(task, LmEvalTask):
        return task.evaluate(lm, documents, session.chat(item.cell.generation), session.confirms_unsafe_code)
    from lm_eval.evaluator import evaluate
    from lm_eval.tasks import TaskManager

    asked = item.cell.generation
    config = task.lm_eval_config(documents, item.cell.model.kind)
    generation = {"until": list(asked.stop), "max_gen_toks": asked.max_new_tokens}
    config["generation_kwargs"] = {**config["generation_kwargs"], **generation}
    tasks = TaskManager(include_defaults=False).load([config])
    results = evaluate(lm=lm, task_dict=tasks, bootstrap_iters=0, log_samples=True)
    evaluated = {metric: results["results"][task.name][f"{metric},none"] for metric in task.metrics}
    return lm_eval_bridge.scores(task, results), evaluated


def checked_metrics(task: Task, scores: Sequence[DocumentScore], evaluated: Mapping[str, float]) -> dict[str, Metric]:
    """Return the task's metrics of stored scores.

    Raises:
        RuntimeError: lm-eval says another value.
    """
    metrics = task_metrics(task, scores)
    for metric, stored in metrics.items():
        said = evaluated.get(metric, stored.interval.value)
        if abs(said - stored.interval.value) > _TOLERANCE * max(1.0, abs(said)):
            raise RuntimeError(f"lm-eval says {metric} = {said}, the stored scores say {stored.interval.value}")
    return metrics
