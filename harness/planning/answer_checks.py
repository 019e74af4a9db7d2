"""Check that tasks ask for what models answer: texts of those that generate, labels and numbers of encoders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from exitbench.errors import UserError
from exitbench.harness.cells.cell import Kind
from exitbench.harness.cells.texts import label_places
from exitbench.tasks.classification import ClassificationTask

if TYPE_CHECKING:
    from exitbench.harness.engine.checkpoints.digest import Description
    from exitbench.harness.planning.expand import CellTemplate

_KINDS: Final[tuple[Kind, ...]] = ("quality", "timing", "fit")
"""What encoders are asked for."""


def check_answers(drafts: Sequence[CellTemplate], description: Description) -> None:
    """Check the cells of one model.

    Raises:
        UserError: Its answers are not what a task asks for, or a method cannot be run on it; names the suite's line.
    """
    for draft in drafts:
        task, model = draft.task.data.task_object, description.model.name
        if not isinstance(task, ClassificationTask):
            if description.labels is not None:
                raise UserError(
                    f"{draft.task.where}: task {task.name!r} asks for texts, and model {model!r} is a classifier; "
                    "allowed with it: tasks of classification. 'tasks' of [models.NAME] says which are its own."
                )
            continue
        if description.labels is None:
            raise UserError(
                f"{draft.task.where}: task {task.name!r} asks for labels or numbers, and model {model!r} generates "
                "text; allowed with it: encoders with a classifier. 'tasks' of [models.NAME] says which are its own."
            )
        try:
            label_places(task.name, task.labels, description.labels)
        except UserError as error:
            raise UserError(f"{draft.task.where}: model {model!r}: {error}") from None
        _check_cell(draft, description.labels)


def _check_cell(draft: CellTemplate, labels: Sequence[str]) -> None:
    from exitbench.harness.engine.encoders.model import why_not

    if draft.kind not in _KINDS or draft.record is not None:
        what = draft.kind if draft.record is None else f"'record' of a {draft.kind}"
        raise UserError(
            f"{draft.where}: {what} is for models that generate, and {draft.model.name!r} is a classifier; "
            f"allowed kinds: {', '.join(_KINDS)}."
        )
    parts = draft.method.parts(n_blocks=2)
    reason = why_not(parts, is_regression=len(labels) == 1, is_fitted=bool(draft.method.fit_params()))
    if reason is not None:
        raise UserError(f"{draft.where}: {draft.method.name!r} cannot be run on {draft.model.name!r}: {reason}.")
