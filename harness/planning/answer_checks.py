"""Check that each task fits its model: text for generating models, labels and numbers for encoders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from exitbench.errors import UserError

if TYPE_CHECKING:
    from exitbench.harness.engine.checkpoints.digest import Description
    from exitbench.harness.planning.expand import CellTemplate


def check_answers(drafts: Sequence[CellTemplate], description: Description) -> None:
    """Check the cells of one model.

    Raises:
        UserError: The model cannot give the answers that a task requires, or a method cannot run on it; names the
            suite's line.
    """
    for draft in drafts:
        work, task = draft.task.work, draft.task.data.task_object
        try:
            work.check_model(task, description)
        except UserError as error:
            raise UserError(f"{draft.task.where}: {error}") from None
        if draft.kind not in work.kinds or (draft.record is not None and not work.records):
            what = draft.kind if draft.record is None else f"'record' of a {draft.kind}"
            raise UserError(
                f"{draft.where}: {what} is for models that generate, and {draft.model.name!r} is a classifier; "
                f"allowed kinds: {', '.join(work.kinds)}."
            )
        try:
            work.check_method(draft.method, description)
        except UserError as error:
            raise UserError(f"{draft.where}: {error}") from None
