"""Registry of tasks: bundled tasks, third-party tasks from packages and plug-ins, and tasks of lm-eval.

Third parties publish tasks through the entry-point group ``exitbench.tasks``; the entry point names the class.
"""

from collections.abc import Callable
from functools import cache, partial
from importlib.metadata import entry_points
from typing import Final

from exitbench.errors import UserError, one_line, suggestion
from exitbench.plugins import load_plugins
from exitbench.provenance import distribution, third_party_revision
from exitbench.tasks.base import FloatArray, Task
from exitbench.tasks.declared import PREFIX as DECLARED
from exitbench.tasks.declared import aggregate
from exitbench.tasks.glue import DATA_SETS, Glue
from exitbench.tasks.lm_eval.settings import PREFIX, LmEvalSettings
from exitbench.tasks.squad import Squad
from exitbench.tasks.summarisation import CORPORA, Summarisation
from exitbench.tasks.translation import Translation, is_pair

GROUP: Final = "exitbench.tasks"
"""Entry-point group of third-party tasks, and package of this project's own tasks."""

_TASKS: dict[str, Callable[[], Task]] = {
    Squad.name: Squad,
    **{name: partial(Summarisation, name) for name in CORPORA},
    **{name: partial(Glue, name) for name in DATA_SETS},
    "wmt-en-fr": partial(Translation, "wmt-en-fr"),
}
_unusable: dict[str, str] = {}


def register(task: type[Task]) -> type[Task]:
    """Register a task class by its name, in this process only; return the class.

    Workers of a run have only the bundled tasks and those of entry points and plug-ins.

    Raises:
        TypeError: The object is not a subclass of `Task` with all required methods and attributes.
        ValueError: Another task has the name, or the name is reserved for other kinds of tasks.
    """
    if not (isinstance(task, type) and issubclass(task, Task)) or getattr(task, "__abstractmethods__", None):
        raise TypeError(f"{task!r} is no subclass of exitbench.tasks.base.Task with all its methods")
    for attribute in ("name", "metric_version"):
        if not isinstance(getattr(task, attribute, None), str):
            raise TypeError(f'task {task.__name__} needs {attribute} = "..."')
    metrics, lower = getattr(task, "metrics", None), task.lower_is_better
    # Both may be properties, or set when a task is instantiated.
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
        except (Exception, SystemExit) as error:  # a broken task must not affect the others
            _unusable[point.name] = f"{point.value}: {type(error).__name__}: {one_line(error)}"
    load_plugins()


def task_names() -> tuple[str, ...]:
    """Return the sorted names of all tasks except lm-eval's; of all translation tasks, only `wmt-en-fr` is listed."""
    _discover()
    return tuple(sorted(_TASKS))


def unusable_tasks() -> dict[str, str]:
    """Return why each unusable third-party task cannot be loaded, by the name of its entry point."""
    _discover()
    return dict(sorted(_unusable.items()))


def task_origin(task: type[Task]) -> str | None:
    """Return the origin of a third-party task: a distribution with its version, or a module; None for bundled tasks."""
    if task.__module__.startswith(f"{GROUP}."):
        return None
    name, version = distribution(task, GROUP)
    return task.__module__ if name is None else f"{name} {version}"


def get_task(name: str, settings: LmEvalSettings | None = None) -> Task:
    """Return the task with this name.

    Args:
        name: One of `task_names`; a translation data set with a pair, such as `wmt16-ro-en`; or `lm-eval:` and a task,
            group or tag of lm-eval.
        settings: Settings of an lm-eval task; None: lm-eval's defaults.

    Raises:
        UserError: The task does not exist, or settings are given for a task that is not lm-eval's.
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
        alternatives = f"a translation such as 'wmt16-ro-en', or {PREFIX}NAME, a task of lm-eval"
        raise UserError(f"unknown task {name!r}.{suggestion(name, _TASKS).removesuffix('.')}; {alternatives}.")
    task = _TASKS[name]()
    if task_origin(type(task)) is not None:  # third-party: its source is part of the version
        task.metric_version = _revision(type(task))
    return task


def aggregation(name: str, metric: str) -> Callable[[FloatArray, FloatArray], FloatArray]:
    """Return the function that computes a metric from (summed statistics, number of documents); see `Task.aggregator`.

    `name` and `metric` are the names in results; the task's TOML or YAML file, if it has one, is not needed.

    Raises:
        UserError: The task or metric does not exist.
    """
    if name.startswith(DECLARED):  # results do not contain its TOML file
        return partial(aggregate, metric)
    if name.startswith(PREFIX):  # results do not contain the user's YAML either
        return _lm_eval_aggregation(name, metric)
    return get_task(name).aggregator(metric)


def _lm_eval_aggregation(name: str, metric: str) -> Callable[[FloatArray, FloatArray], FloatArray]:
    from exitbench.tasks.lm_eval.metrics import aggregate_of

    try:
        task = _lm_eval_task(name, LmEvalSettings())
    except UserError:
        return aggregate_of(metric)
    return partial(task.aggregate, metric) if metric in task.metrics else aggregate_of(metric)


@cache
def _lm_eval_task(name: str, settings: LmEvalSettings) -> Task:
    # Imported here: importing lm-eval takes seconds, which other tasks should not wait for.
    from exitbench.tasks.lm_eval.task import LmEvalTask

    return LmEvalTask(name, settings)


@cache
def _revision(task: type[Task]) -> str:
    return third_party_revision(task, task.metric_version, GROUP)
