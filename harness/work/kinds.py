"""Registry of the kinds of work: generation, log-likelihoods, classification; and the choice of the kind for a task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from exitbench.harness.work.classification import ClassificationWork
from exitbench.harness.work.generation import GenerationWork
from exitbench.harness.work.likelihood import LikelihoodWork

if TYPE_CHECKING:
    from exitbench.harness.cells.job import CellJob
    from exitbench.harness.work.base import Work
    from exitbench.harness.work.loaded import LoadedModel
    from exitbench.tasks.base import Task

WORKS: Final[tuple[type[Work[Any]], ...]] = (GenerationWork, LikelihoodWork, ClassificationWork)
"""All kinds of work. A new kind is one more class in this tuple."""


def work_class(task: Task) -> type[Work[Any]]:
    """Return the subclass of `Work` that handles a task's output type."""
    (work_type,) = (work for work in WORKS if task.output_type in work.output_types)
    return work_type


def work_of(model: LoadedModel, item: CellJob) -> Work[Any]:
    """Return the `Work` object that runs a cell on a loaded model."""
    return work_class(item.data.task_object)(model, item)
