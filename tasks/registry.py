"""Registry of tasks."""

from exitbench.errors import UserError, suggestion
from exitbench.tasks.base import Task
from exitbench.tasks.samsum.task import Samsum
from exitbench.tasks.squad.task import Squad
from exitbench.tasks.wmt_en_fr.task import WmtEnFr

_TASKS: dict[str, type[Task]] = {task.name: task for task in (Squad, Samsum, WmtEnFr)}


def register(task: type[Task]) -> type[Task]:
    """Make a task known by its name in this process; workers of a run are others.

    Raises:
        TypeError: It is no task.
        ValueError: Another one has its name.
    """
    if not (isinstance(task, type) and issubclass(task, Task)) or getattr(task, "__abstractmethods__", None):
        raise TypeError(f"{task!r} is no subclass of exitbench.tasks.base.Task with all its methods")
    if _TASKS.setdefault(task.name, task) is not task:
        raise ValueError(f"two tasks are named {task.name!r}")
    return task


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
