"""Registry of tasks: our own, those that other distributions and plug-ins bring, and those of lm-eval.

Third parties publish theirs through the entry-point group ``exitbench.tasks``; the entry point names the class.
"""

from collections.abc import Callable
from functools import cache, partial
from importlib.metadata import entry_points
from typing import Final

from exitbench.errors import UserError, suggestion, told
from exitbench.plugins import load_plugins
from exitbench.provenance import distribution, revision_of_others
from exitbench.tasks.base import FloatArray, Task
from exitbench.tasks.declared import PREFIX as DECLARED
from exitbench.tasks.declared import aggregate
from exitbench.tasks.glue import DATA_SETS, Glue
from exitbench.tasks.lm_eval.settings import PREFIX, LmEvalSettings
from exitbench.tasks.squad import Squad
from exitbench.tasks.summarisation import CORPORA, Summarisation
from exitbench.tasks.translation import Translation, is_pair

GROUP: Final = "exitbench.tasks"
"""Entry points of other distributions, and the package of our own tasks."""

_TASKS: dict[str, Callable[[], Task]] = {
    Squad.name: Squad,
    **{name: partial(Summarisation, name) for name in CORPORA},
    **{name: partial(Glue, name) for name in DATA_SETS},
    "wmt-en-fr": partial(Translation, "wmt-en-fr"),
}
_unusable: dict[str, str] = {}


def register(task: type[Task]) -> type[Task]:
    """Make a task known by its name in this process; workers of a run find those of entry points and plug-ins.

    Raises:
        TypeError: It is no task.
        ValueError: Another one has its name.
    """
    if not (isinstance(task, type) and issubclass(task, Task)) or getattr(task, "__abstractmethods__", None):
        raise TypeError(f"{task!r} is no subclass of exitbench.tasks.base.Task with all its methods")
    for attribute in ("name", "metric_version"):
        if not isinstance(getattr(task, attribute, None), str):
            raise TypeError(f'task {task.__name__} needs {attribute} = "..."')
    metrics, lower = getattr(task, "metrics", None), task.lower_is_better
    # Both may be properties, or set when a task is made.
    if isinstance(metrics, tuple) and not isinstance(lower, property) and (unknown := sorted({*lower} - {*metrics})):
        raise TypeError(f"task {task.__name__}: lower_is_better has {unknown[0]!r}, which is none of its metrics")
    if ":" in task.name or task.name.endswith(".toml"):
        raise ValueError(f"task {task.name!r}: names with ':' or an ending .toml stand for tasks of other kinds")
    if is_pair(task.name) or _TASKS.setdefault(task.name, task) is not task:
        raise ValueError(f"two tasks are named {task.name!r}")
    return task


@cache
def _discover() -> None:
    for point in entry_points(group=GROUP):
        try:
            register(point.load())
        except (Exception, SystemExit) as error:  # of a task that is broken the others know nothing
            _unusable[point.name] = f"{point.value}: {type(error).__name__}: {told(error)}"
    load_plugins()


def task_names() -> tuple[str, ...]:
    """Return the names of all tasks but lm-eval's, sorted; of translation, whose pairs are many, one."""
    _discover()
    return tuple(sorted(_TASKS))


def unusable_tasks() -> dict[str, str]:
    """Return entry points that bring no task that can be used, by name, and why not."""
    _discover()
    return dict(sorted(_unusable.items()))


def brought_by(task: type[Task]) -> str | None:
    """Return what brought a task of others: a distribution with its version, or a module; None of our own."""
    if task.__module__.startswith(f"{GROUP}."):
        return None
    name, version = distribution(task, GROUP)
    return task.__module__ if name is None else f"{name} {version}"


def get_task(name: str, settings: LmEvalSettings | None = None) -> Task:
    """Return the task of a name.

    Args:
        name: One of `task_names`; a data set of translation and a pair, such as `wmt16-ro-en`; or `lm-eval:` and a
            task, group or tag of lm-eval.
        settings: Of a task of lm-eval; None: as lm-eval has it.

    Raises:
        UserError: If there is none, or a task of our own is given settings.
    """
    if name.startswith(PREFIX) or (settings is not None and settings.declaration is not None):
        return _lm_eval_task(name, settings or LmEvalSettings())
    if settings is not None:
        raise UserError(f"task {name!r}: settings of lm-eval go with tasks named {PREFIX}NAME only.")
    _discover()
    if is_pair(name) and name not in _TASKS:
        return Translation(name)
    if name not in _TASKS and name in _unusable:
        raise UserError(f"task {name!r} cannot be used: {_unusable[name]}")
    if name not in _TASKS:
        others = f"a translation such as 'wmt16-ro-en', or {PREFIX}NAME, a task of lm-eval"
        raise UserError(f"unknown task {name!r}.{suggestion(name, _TASKS).removesuffix('.')}; {others}.")
    task = _TASKS[name]()
    if brought_by(type(task)) is not None:  # whose source is a part of the version
        task.metric_version = _revision(type(task))
    return task


def aggregation(name: str, metric: str) -> Callable[[FloatArray, FloatArray], FloatArray]:
    """Return what has the value of a task's metric, by the names in results; see `Task.aggregator`.

    Raises:
        UserError: There is no such task or metric.
    """
    if name.startswith(DECLARED):  # of which results have no file
        return partial(aggregate, metric)
    if name.startswith(PREFIX):  # nor have they the YAML of users
        return _of_lm_eval(name, metric)
    return get_task(name).aggregator(metric)


def _of_lm_eval(name: str, metric: str) -> Callable[[FloatArray, FloatArray], FloatArray]:
    from exitbench.tasks.lm_eval.metrics import aggregate_of

    try:
        task = _lm_eval_task(name, LmEvalSettings())
    except UserError:
        return aggregate_of(metric)
    return partial(task.aggregate, metric) if metric in task.metrics else aggregate_of(metric)


@cache
def _lm_eval_task(name: str, settings: LmEvalSettings) -> Task:
    # Imported here: lm-eval takes seconds that no other task should wait for.
    from exitbench.tasks.lm_eval.task import LmEvalTask

    return LmEvalTask(name, settings)


@cache
def _revision(task: type[Task]) -> str:
    return revision_of_others(task, task.metric_version, GROUP)
