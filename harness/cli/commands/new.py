"""``exitbench new``: files to begin with, of a method, a task or a suite, and what to do with them."""

import os
import shlex
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from exitbench.errors import UserError
from exitbench.harness.cli.commands.inspect import model_folder
from exitbench.harness.cli.commands.show_prompts import entry_as_given, task_settings
from exitbench.harness.scaffolds import check_new_name, method_files, module_name, python_task_files, task_files
from exitbench.harness.service.folders import Runs
from exitbench.results.files.new_files import write_new_files
from exitbench.results.files.toml_text import toml_value
from exitbench.terminal import tell


def new_method(arguments: Namespace) -> int:
    """Write a plug-in with a gate that works, a test and a suite.

    Raises:
        UserError: The name is taken or none, or a file is there or cannot be written.
    """
    name, to = arguments.name, arguments.to
    check_new_name(name)
    plugins = ("--plugins", to / "plugins")
    _write(
        to,
        method_files(name),
        (
            ("python", "-m", "pytest", to / f"tests/test_{module_name(name)}.py"),
            ("exitbench", "run", to / f"{name}.toml", *plugins),
            ("exitbench", "replay", "weighted/wmt-en-fr", name, *plugins),
        ),
    )
    return 0


def new_task(arguments: Namespace) -> int:
    """Write a task with ten records, a test and a suite.

    Raises:
        UserError: The name is taken or none, or a file is there or cannot be written.
    """
    name, to = arguments.name, arguments.to
    check_new_name(name)
    plugins = ("--plugins", to / "plugins") if arguments.python else ()
    files = (python_task_files if arguments.python else task_files)(name, _suite_command(name, arguments.python))
    data = ("--data-dir", to / "data", *plugins)
    _write(
        to,
        files,
        (
            ("exitbench", "show-prompts", name, "--suite", to / f"{name}.toml", "-n", "1", *data),
            ("python", "-m", "pytest", to / f"tests/test_{module_name(name)}.py"),
            ("exitbench", "run", to / f"{name}.toml", *data),
        ),
    )
    return 0


def new_suite(arguments: Namespace) -> int:
    """Write a suite for a model: methods that it can run and that need nothing trained, tasks for its kind.

    Raises:
        UserError: The name is taken or none, there is no such model or task, or the file is there or cannot be written.
    """
    from exitbench.harness.engine.checkpoints.hub import read_name
    from exitbench.harness.scaffolds.suite import Asked, label_of, suite_text
    from exitbench.harness.training import recipe_names

    name, to, written = arguments.name, arguments.to, arguments.model
    check_new_name(name)
    folder = model_folder(written, Runs(arguments.runs).models, ask_hub=arguments.hub)
    hub = read_name(written)
    if hub is not None:
        key, value, stem = "path", written, hub.repository.rpartition("/")[2]
    elif written.partition("@")[0] in recipe_names():
        key, value, stem = "recipe", written, written
    else:
        key, value, stem = "path", _from(to, str(folder)), Path(os.path.abspath(folder)).name
    options = [] if arguments.data_dir is None else ["--data-dir", arguments.data_dir]
    options += [] if arguments.plugins is None else ["--plugins", arguments.plugins]
    plan, run = (("exitbench", command, to / f"{name}.toml", *options) for command in ("plan", "run"))
    tasks, is_likelihood = _tasks(arguments, label_of)
    asked = Asked(name, f"{key} = {toml_value(value)}", label_of(stem), folder, tasks, is_likelihood, _spelled(plan))
    first = "--limit", "2", "--no-report"
    _write(to, {f"{name}.toml": suite_text(asked)}, (plan, (*run, *first), run))
    return 0


def _tasks(arguments: Namespace, label_of: Callable[[str], str]) -> tuple[dict[str, dict[str, Any]], bool]:
    """What the suite says of the tasks that are named, each checked; and whether one asks for log-likelihoods."""
    settings = task_settings(arguments.set)
    if arguments.set and len(arguments.task) != 1:
        raise UserError(f"--set {arguments.set[0]}: goes with one --task, whose settings they are.")
    found: dict[str, dict[str, Any]] = {}
    is_likelihood = False
    for task in arguments.task:
        is_likelihood |= entry_as_given(task, settings).is_likelihood
        label = label_of(Path(task.rpartition(":")[2]).stem)
        if label in found:
            raise UserError(f"--task {task}: another one has the label {label!r}.")
        found[label] = {"task": _from(arguments.to, task) if task.endswith(".toml") else task, **settings}
    return found, is_likelihood


def _from(to: Path, path: str) -> str:
    """Return a path as a suite in the folder `to` has it: the same where it is whole."""
    if os.path.isabs(path):
        return path
    at = Path(os.path.abspath(path))
    return os.path.relpath(at.parent.resolve() / at.name, to.resolve())


def _suite_command(name: str, is_python: bool) -> str:
    return f"exitbench run {name}.toml --data-dir data{' --plugins plugins' if is_python else ''}"


def _write(to: Path, files: Mapping[str, str], steps: Sequence[Sequence[str | Path]]) -> None:
    """Write the files and print them, and the commands that come next."""
    write_new_files(to, files)
    lines = [*(f"wrote {to / name}" for name in files), "", "next:"]
    tell("\n".join([*lines, *(f"  {_spelled(step)}" for step in steps)]), sys.stdout)


def _spelled(step: Sequence[str | Path]) -> str:
    return shlex.join(map(str, step))
