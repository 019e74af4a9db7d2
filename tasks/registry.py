"""The tasks by name."""

from exitbench.errors import UserError, suggestion
from exitbench.tasks.base import Task
from exitbench.tasks.samsum.task import Samsum
from exitbench.tasks.squad.task import Squad
from exitbench.tasks.wmt_en_fr.task import WmtEnFr

_TASKS: dict[str, type[Task]] = {task.name: task for task in (Squad, Samsum, WmtEnFr)}


def task_names() -> tuple[str, ...]:
    """Return the names of all tasks, sorted."""
    return tuple(sorted(_TASKS))


def get_task(name: str) -> Task:
    """Return the task of a name.

    Raises:
        UserError: If there is none.
    """
    if name not in _TASKS:
        raise UserError(f"unknown task {name!r}.{suggestion(name, _TASKS)}")
    return _TASKS[name]()
