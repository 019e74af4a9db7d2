"""``exitbench list``: names that suites and commands accept."""

import dataclasses
import inspect
from argparse import Namespace
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from exitbench.errors import UserError

if TYPE_CHECKING:
    from exitbench.methods.base import Method


def listing(arguments: Namespace) -> int:
    """Print all names of one category, each with a description.

    Raises:
        UserError: A pattern is given for a category other than tasks, or matches nothing.
    """
    if arguments.pattern is not None and arguments.what != "tasks":
        raise UserError(
            f"{arguments.pattern!r}: only tasks are listed by a pattern; `exitbench list {arguments.what}`."
        )
    lines = LISTS[arguments.what]() if arguments.pattern is None else _tasks_like(arguments.pattern)
    print("\n".join(lines))
    return 0


def _methods() -> Iterator[str]:
    from exitbench.harness.conformance import USUAL
    from exitbench.harness.conformance.process import examine_apart
    from exitbench.harness.conformance.shipped import conforming_sources
    from exitbench.methods.registry import get_method, method_names, syntax_sha256, unusable_methods

    names, bundled = method_names(), conforming_sources()
    tried = [name for name in names if bundled.get(name) != syntax_sha256(get_method(name))]
    shape = dataclasses.asdict(USUAL)
    verdicts = examine_apart([{"name": name, "params": {}, **shape} for name in tried])
    verdict_by_name = dict.fromkeys(names, "conforms") | dict(zip(tried, map(str, verdicts), strict=True))
    for name, verdict in verdict_by_name.items():
        method = get_method(name)
        yield f"{name:24} {_first_line(method)}"
        reference = f" (docs/methods.md#{name})" if method.__module__.startswith("exitbench.") else ""
        yield f"  source: {method.source}{reference}"
        yield f"  needs: {_needs(method)}"
        yield f"  conformance: {verdict}"
        for field in dataclasses.fields(method):
            yield f"  {field.name} = {field.default!r}: {field.metadata['doc']}{_bounds(field)}"
    for name, why in unusable_methods().items():
        yield f"{name:24} cannot be used: {why}"


def _needs(cls: "type[Method]") -> str:
    try:
        return _needs_of(cls())
    except Exception as error:
        return f"not known: {type(error).__name__}: {error}"


def _needs_of(method: "Method") -> str:
    parts = method.parts(n_blocks=8)
    needs = ["trained exit heads"] if method.needs_exit_heads else []
    needs += ["a fit on the train split"] if method.fit_params() else []
    needs += ["the full depth of every token first"] if parts.gate.looks_ahead else []
    needs += ["states of earlier blocks"] if parts.gate.needs_history else []
    needs += [] if method.probe_tells_score() else ["a scores cell before a replay"]
    return ", ".join(needs) or "nothing"


def _bounds(field: "dataclasses.Field[object]") -> str:
    low, high = field.metadata["low"], field.metadata["high"]
    if field.metadata["choices"]:
        return f" [{', '.join(field.metadata['choices'])}]"
    return "" if low is None and high is None else f" [{'' if low is None else low} .. {'' if high is None else high}]"


def _tasks() -> Iterator[str]:
    from exitbench.tasks.lm_eval.configs import shipped_names
    from exitbench.tasks.registry import unusable_tasks

    yield from _tasks_of_python()
    for name in shipped_names():
        yield f"lm-eval:{name}"
    for name, why in unusable_tasks().items():
        yield f"{name:16} cannot be used: {why}"
    yield "lm-eval:NAME     any task, group or tag of lm-eval: exitbench list tasks 'mmlu*'"


def _tasks_of_python() -> Iterator[str]:
    """Yield a line per bundled, third-party and declared task, without lm-eval's."""
    from exitbench.harness.planning.entries.declared_task import plugged_in
    from exitbench.tasks.registry import brought_by, get_task, task_names

    for name in task_names():
        task = get_task(name)
        source = brought_by(type(task))
        origin = "" if source is None else f" From {source}."
        yield f"{name:16} {_first_line(type(task))} Metrics: {', '.join(task.metrics)}.{origin}"
    for name, declaration in plugged_in().items():
        yield f"{name:16} Metrics: {', '.join(declaration.metrics)}. From a TOML file among the plug-ins."


def _tasks_like(pattern: str) -> Iterator[str]:
    """Yield the tasks whose names match a pattern, including lm-eval's.

    Raises:
        UserError: No task matches.
    """
    from exitbench.tasks.lm_eval.configs import catalogue

    python_tasks = [line for line in _tasks_of_python() if fnmatchcase(line.split()[0], pattern)]
    lm_eval_pattern = pattern.removeprefix("lm-eval:")
    lm_eval_tasks = {
        name: entry for name, entry in sorted(catalogue(None).items()) if fnmatchcase(name, lm_eval_pattern)
    }
    if not python_tasks and not lm_eval_tasks:
        raise UserError(
            f"no task is named like {pattern!r}, among lm-eval's neither. Allowed: * and ? for any letters."
        )
    yield from python_tasks
    for name, entry in lm_eval_tasks.items():
        yield f"lm-eval:{name}  ({entry.kind.name.lower().replace('_', ' ')})"


def _families() -> Iterator[str]:
    from exitbench.harness.engine.checkpoints.families import FAMILIES

    for name in sorted(FAMILIES):
        yield f"{name:16} checkpoints whose config.json has model_type {name!r}"
    yield "any other        that transformers generates text with, on the hosted engine (docs/measuring.md, Models)"


def _models() -> Iterator[str]:
    from exitbench.harness.training import load_recipe, recipe_names

    for name in recipe_names():
        recipe = load_recipe(name)
        shape, base = recipe.architecture, recipe.start
        if shape is not None:
            blocks = f"{shape.family}, {shape.num_layers} encoder and {shape.num_decoder_layers} decoder blocks"
            what = f"{blocks}, width {shape.d_model}"
        else:
            what = f"from {base.recipe or base.checkpoint}" if base is not None else ""
        yield f"{name:20} {what}, {recipe.objective.loss} loss, {recipe.optimisation.steps} steps"


def _suites() -> Iterator[str]:
    from exitbench.harness.planning.suite import suite_names, suite_path

    for name in suite_names():
        yield f"{name:16} {suite_path(name).read_text(encoding='utf-8').splitlines()[0].lstrip('# ')}"


def _figures() -> Iterator[str]:
    from exitbench.reports import figures
    from exitbench.reports.registry import discover

    for source in discover(figures):
        yield f"{source.name:16} {source.module.TITLE}"


def _first_line(cls: type) -> str:
    return next(iter((inspect.getdoc(cls) or "").splitlines()), "")


LISTS = {
    "methods": _methods,
    "tasks": _tasks,
    "families": _families,
    "models": _models,
    "suites": _suites,
    "figures": _figures,
}
