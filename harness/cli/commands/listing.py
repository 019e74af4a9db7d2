"""``exitbench list``: print the names that suites and commands accept."""

import dataclasses
import inspect
import re
import shutil
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from textwrap import wrap
from typing import TYPE_CHECKING, Final

from exitbench.errors import UserError
from exitbench.terminal import visible

if TYPE_CHECKING:
    from exitbench.methods.base import Method

Entry = tuple[str, str]
"""Name and description of a list entry, each on one line."""

_NARROWEST: Final = 40
"""Minimum width of the description column in characters, however narrow the terminal."""


def listing(arguments: Namespace) -> int:
    """Print all names in a category (such as methods) with their descriptions, or only names that match a pattern.

    Raises:
        UserError: A pattern is given for a category without patterns, or matches nothing.
    """
    what, pattern = arguments.what, arguments.pattern
    if pattern is None:
        print(*_aligned(LISTS[what]()), sep="\n")
    elif what == "methods":
        print(*_methods_like(pattern), sep="\n")
    elif what == "tasks":
        print(*_aligned(_tasks_like(pattern)), sep="\n")
    else:
        raise UserError(f"{pattern!r}: only methods and tasks are listed by a pattern; `exitbench list {what}`.")
    return 0


def _aligned(entries: Iterable[Entry], indent: str = "") -> Iterator[str]:
    """Yield lines with names and descriptions in two columns; descriptions are wrapped on a terminal only."""
    rows = [(visible(name), visible(description)) for name, description in entries]
    start = len(indent) + max((len(name) for name, _ in rows), default=0) + 2
    room = max(_NARROWEST, shutil.get_terminal_size().columns - start) if sys.stdout.isatty() else sys.maxsize
    for name, description in rows:
        lines = wrap(description, room, break_on_hyphens=False) or [""]
        yield f"{indent}{name}".ljust(start) + lines[0]
        yield from (" " * start + line for line in lines[1:])


def _methods() -> Iterator[Entry]:
    from exitbench.methods.registry import get_method, method_names, unusable_methods

    verdicts = _verdicts(method_names())
    for name, verdict in verdicts.items():
        faulty = "" if verdict == "conforms" else f" Conformance: {verdict}"
        yield name, f"{_first_line(get_method(name))}{faulty}"
    for name, why in unusable_methods().items():
        yield name, f"cannot be used: {why}"


def _methods_like(pattern: str) -> Iterator[str]:
    """Yield the lines that describe the methods whose names match a pattern, with their parameters.

    Parameters that several methods have are explained once, at the end.

    Raises:
        UserError: No method matches.
    """
    from exitbench.methods.registry import get_method, method_names, unusable_methods

    names = [name for name in method_names() if fnmatchcase(name, pattern)]
    unusable = {name: why for name, why in unusable_methods().items() if fnmatchcase(name, pattern)}
    if not names and not unusable:
        allowed = ", ".join(method_names())
        raise UserError(f"no method is named {pattern!r}. Allowed: {allowed}; * and ? match any letters.")
    users = Counter(field for name in method_names() for field in _parameters(get_method(name)))
    shared: dict[Entry, None] = {}
    for name, verdict in _verdicts(names).items():
        method = get_method(name)
        parameters = _parameters(method)
        own_parameters = [field for field in parameters if users[field] == 1]
        common_parameters = [field for field in parameters if users[field] > 1]
        shared |= dict.fromkeys(common_parameters)
        bundled = method.__module__.startswith("exitbench.")
        yield from (name, f"  {_first_line(method)}")
        yield f"  source: {method.source}{f' (docs/methods/{name}.md)' if bundled else ''}"
        yield f"  needs: {_needs(method)}"
        yield f"  conformance: {verdict}"
        if common_parameters:
            yield f"  shared parameters: {', '.join(field.partition(' = ')[0] for field, _ in common_parameters)}"
        yield from _aligned(own_parameters, indent="  ")
        yield ""
    if shared:
        yield "Shared parameters:"
        yield from _aligned(shared, indent="  ")
    yield from _aligned((name, f"cannot be used: {why}") for name, why in unusable.items())


def _verdicts(names: Sequence[str]) -> Mapping[str, str]:
    """Return each method's conformance verdict (`conforms`, or what is wrong) by the method's name.

    Bundled methods whose code is unchanged since their check are not checked again: they conform.
    """
    from exitbench.harness.conformance import USUAL
    from exitbench.harness.conformance.process import examine_apart
    from exitbench.harness.conformance.shipped import conforming_sources
    from exitbench.methods.registry import get_method, syntax_sha256

    bundled = conforming_sources()
    to_examine = [name for name in names if bundled.get(name) != syntax_sha256(get_method(name))]
    shape = dataclasses.asdict(USUAL)
    verdicts = examine_apart([{"name": name, "params": {}, **shape} for name in to_examine])
    return dict.fromkeys(names, "conforms") | dict(zip(to_examine, map(str, verdicts), strict=True))


def _parameters(cls: "type[Method]") -> list[Entry]:
    """Return a method's parameters as pairs: `name = default`, and the description with bounds."""
    return [
        (f"{field.name} = {field.default!r}", f"{field.metadata['doc']}{_bounds(field)}")
        for field in dataclasses.fields(cls)
    ]


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
    needs += [] if method.probe_has_score() else ["a scores cell before a replay"]
    return ", ".join(needs) or "nothing"


def _bounds(field: "dataclasses.Field[object]") -> str:
    low, high = field.metadata["low"], field.metadata["high"]
    if field.metadata["choices"]:
        return f" [{', '.join(field.metadata['choices'])}]"
    return "" if low is None and high is None else f" [{'' if low is None else low} .. {'' if high is None else high}]"


def _tasks() -> Iterator[Entry]:
    from exitbench.tasks.lm_eval.configs import shipped_names
    from exitbench.tasks.registry import unusable_tasks

    yield from _tasks_of_python()
    for name in shipped_names():
        yield f"lm-eval:{name}", "Task of lm-eval that comes with ExitBench."
    for name, why in unusable_tasks().items():
        yield name, f"cannot be used: {why}"
    yield "lm-eval:NAME", "Any task, group or tag of lm-eval: exitbench list tasks 'mmlu*'"


def _tasks_of_python() -> Iterator[Entry]:
    """Yield the name and description of every bundled, third-party and declared task, without lm-eval's tasks."""
    from exitbench.harness.planning.entries.declared_task import plugged_in
    from exitbench.tasks.registry import get_task, task_names, task_origin

    for name in task_names():
        task = get_task(name)
        source = task_origin(type(task))
        origin = "" if source is None else f" From {source}."
        yield name, f"{_first_line(type(task))} Metrics: {', '.join(task.metrics)}.{origin}"
    for name, declaration in plugged_in().items():
        yield name, f"Metrics: {', '.join(declaration.metrics)}. From a TOML file among the plug-ins."


def _tasks_like(pattern: str) -> Iterator[Entry]:
    """Yield the name and description of every task, lm-eval's included, whose name matches a pattern.

    Raises:
        UserError: No task matches.
    """
    from exitbench.tasks.lm_eval.configs import catalogue

    python_tasks = [entry for entry in _tasks_of_python() if fnmatchcase(entry[0], pattern)]
    lm_eval_pattern = pattern.removeprefix("lm-eval:")
    lm_eval_tasks = {
        name: entry for name, entry in sorted(catalogue(None).items()) if fnmatchcase(name, lm_eval_pattern)
    }
    if not python_tasks and not lm_eval_tasks:
        raise UserError(f"no task is named {pattern!r}, in lm-eval neither. Allowed: * and ? match any letters.")
    yield from python_tasks
    for name, entry in lm_eval_tasks.items():
        yield f"lm-eval:{name}", f"({entry.kind.name.lower().replace('_', ' ')})"


def _families() -> Iterator[Entry]:
    from exitbench.harness.engine.checkpoints.families import FAMILIES

    for name in sorted(FAMILIES):
        yield name, f"checkpoints whose config.json has model_type {name!r}"
    yield "any other", "that transformers generates text with, on the hosted engine (docs/families.md)"


def _models() -> Iterator[Entry]:
    from exitbench.harness.training import load_recipe, recipe_names

    for name in recipe_names():
        recipe = load_recipe(name)
        shape, base = recipe.architecture, recipe.start
        if shape is not None:
            blocks = f"{shape.family}, {shape.num_layers} encoder and {shape.num_decoder_layers} decoder blocks"
            what = f"{blocks}, width {shape.d_model}"
        else:
            what = f"from {base.recipe or base.checkpoint}" if base is not None else ""
        yield name, f"{what}, {recipe.objective.loss} loss, {recipe.optimisation.steps} steps"


def _suites() -> Iterator[Entry]:
    from exitbench.harness.planning.suite import suite_names, suite_path

    for name in suite_names():
        yield name, _opening_sentence(suite_path(name).read_text(encoding="utf-8"))


def _figures() -> Iterator[Entry]:
    from exitbench.reports import figures
    from exitbench.reports.registry import discover

    for source in discover(figures):
        yield source.name, source.module.TITLE


def _opening_sentence(suite: str) -> str:
    """Return the first sentence of the comment at the beginning of a suite file."""
    comment = re.match(r"(#.*\n)*", suite)
    text = " ".join(line.lstrip("# ") for line in comment[0].splitlines()) if comment else ""
    return re.split(r"(?<=\.)\s", text, maxsplit=1)[0]


def _first_line(cls: type) -> str:
    return next(iter((inspect.getdoc(cls) or "").splitlines()), "")


LISTS: Final[Mapping[str, Callable[[], Iterator[Entry]]]] = {
    "methods": _methods,
    "tasks": _tasks,
    "families": _families,
    "models": _models,
    "suites": _suites,
    "figures": _figures,
}
