"""Metrics under which a task's references do not score best against themselves: no model could be seen to be right."""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from exitbench.tasks.base import Task
from exitbench.tasks.document import Document

CHECKED: Final = 200
"""Documents of a task that are looked at, the first ones."""
_ROUNDING: Final = 1e-6
_ROUGE: Final = "rouge-score keeps only the letters a to z and the digits 0 to 9"
_SQUAD: Final = "SQuAD's rules leave out articles (a, an, the) and punctuation"
_WHY: Final[Mapping[str, str]] = {
    "rouge1": _ROUGE,
    "rouge2": f"{_ROUGE}, and counts pairs of words",
    "rougeL": _ROUGE,
    "rougeLsum": _ROUGE,
    "f1": _SQUAD,
    "em": _SQUAD,
    "bleu": "BLEU counts runs of four words, and sacrebleu's tokenizer cuts the references into fewer",
}


def self_score_remarks(task: Task, documents: Sequence[Document]) -> tuple[str, ...]:
    """Score each document's reference as if a model had answered it.

    A metric of the whole corpus (BLEU) may be low for one short sentence alone; it is remarked on where it is for most.

    Args:
        task: A task whose answers are texts; others have nothing to be remarked on.
        documents: Its documents, of which the first `CHECKED` are looked at.

    Returns:
        One sentence per metric under which references are below its best value.
    """
    if task.output_type != "generate_until":
        return ()
    scores = [task.score(document, task.target(document)) for document in documents[:CHECKED]]
    remarks = []
    for metric in task.metrics:
        bounds = task.bounds(metric)
        if bounds is None:
            continue
        least_good = metric in task.lower_is_better
        best = bounds[0] if least_good else bounds[1]
        alone = task.aggregate(metric, np.array([score.summands(metric) for score in scores]), np.ones(len(scores)))
        away = np.abs(alone - best) > _ROUNDING
        if away.sum() > (len(scores) / 2 if metric in scores[0].statistics else 0):
            worst = float((alone.max if least_good else alone.min)())
            is_one = bool((alone[away] == worst).all())
            value = f"{worst:.3g}" if is_one else f"not {best:g} (the worst: {worst:.3g})"
            remarks.append(
                f"{metric} of {away.sum()} of {len(scores)} references is {value} even for the reference itself"
                + (f": {_WHY[metric]}" if metric in _WHY else "")
            )
    return tuple(remarks)
