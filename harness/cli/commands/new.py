"""``exitbench new``: write starter files for a method, a task or a suite, and print the next commands."""

import os
import shlex
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from exitbench.errors import UserError
from exitbench.harness.cli.commands.inspect import model_folder
from exitbench.harness.cli.commands.show import entry_as_given, task_settings
from exitbench.harness.planning.entries.task import TaskEntry
from exitbench.harness.scaffolds import check_new_name, method_files, module_name, python_task_files, task_files
from exitbench.harness.service.folders import Runs
from exitbench.results.files.formats import toml_value
from exitbench.terminal import print_escaped


def new_method(arguments: Namespace) -> int:
    """Write starter files of a method: a plug-in with a working gate, its test and a suite.

    Raises:
        UserError: The name is invalid or in use, or a file exists or cannot be written.
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
    """Write starter files of a task: its definition, ten example records, its test and a suite.

    Raises:
        UserError: The name is invalid or in use, or a file exists or cannot be written.
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
    """Write a suite for a model, with methods that run on it and need no training, on tasks for its kind.

    Raises:
        UserError: The name is invalid or in use, the model or a task does not exist, or the file exists or cannot be
            written.
    """
    from exitbench.harness.scaffolds.suite import SuiteDescription, label_of, suite_text

    name, to, written = arguments.name, arguments.to, arguments.model
    check_new_name(name)
    folder = model_folder(written, Runs(arguments.runs).models, query_hub=arguments.hub)
    key, value, stem = model_line(written, folder, to)
    options = [] if arguments.data_dir is None else ["--data-dir", arguments.data_dir]
    options += [] if arguments.plugins is None else ["--plugins", arguments.plugins]
    plan, run = (("exitbench", command, to / f"{name}.toml", *options) for command in ("plan", "run"))
    tasks, entries = _tasks(arguments, label_of)
    description = SuiteDescription(
        name, f"{key} = {toml_value(value)}", label_of(stem), folder, tasks, entries, _command_line(plan)
    )
    first = "--limit", "2", "--no-report"
    _write(to, {f"{name}.toml": suite_text(description)}, (plan, (*run, *first), run))
    return 0


def model_line(written: str, folder: Path, to: Path) -> tuple[str, str, str]:
    """Return the key and the value that name a model in a suite, and a text from which the caller makes its label.

    They belong in the suite's table ``[models.LABEL]``. The key is ``recipe`` if the model is a training recipe,
    otherwise ``path``; the value is then a hub name, or the path of `folder` (relative to `to` unless absolute).

    Args:
        written: The model as the user named it: a hub name, a recipe or a folder.
        folder: Folder of the model's checkpoint.
        to: Folder of the suite.
    """
    from exitbench.harness.engine.checkpoints.hub import read_name
    from exitbench.harness.training import recipe_names

    if (hub := read_name(written)) is not None:
        return "path", written, hub.repository.rpartition("/")[2]
    if written.partition("@")[0] in recipe_names():
        return "recipe", written, written
    return "path", _relative_to(to, str(folder)), Path(os.path.abspath(folder)).name


def _tasks(
    arguments: Namespace, label_of: Callable[[str], str]
) -> tuple[dict[str, dict[str, Any]], dict[str, TaskEntry]]:
    """Check the tasks named on the command line; return their tables in a suite, and their entries, by label."""
    settings = task_settings(arguments.set)
    if arguments.set and len(arguments.task) != 1:
        raise UserError(f"--set {arguments.set[0]}: goes with one --task, whose settings they are.")
    tables: dict[str, dict[str, Any]] = {}
    entries: dict[str, TaskEntry] = {}
    for task in arguments.task:
        entry = entry_as_given(task, settings)
        label = label_of(Path(task.rpartition(":")[2]).stem)
        if label in tables:
            raise UserError(f"--task {task}: another one has the label {label!r}.")
        tables[label] = {"task": _relative_to(arguments.to, task) if task.endswith(".toml") else task, **settings}
        entries[label] = entry
    return tables, entries


def _relative_to(to: Path, path: str) -> str:
    """Return a path relative to the folder `to`; an absolute path is returned unchanged."""
    if os.path.isabs(path):
        return path
    at = Path(os.path.abspath(path))
    return os.path.relpath(at.parent.resolve() / at.name, to.resolve())


def _suite_command(name: str, is_python: bool) -> str:
    return f"exitbench run {name}.toml --data-dir data{' --plugins plugins' if is_python else ''}"


def _write(to: Path, files: Mapping[str, str], steps: Sequence[Sequence[str | Path]]) -> None:
    """Write starter files into the folder `to`, and print their names and the next commands."""
    write_new_files(to, files)
    lines = [*(f"wrote {to / name}" for name in files), "", "next:"]
    print_escaped("\n".join([*lines, *(f"  {_command_line(step)}" for step in steps)]), sys.stdout)


def _command_line(step: Sequence[str | Path]) -> str:
    return shlex.join(map(str, step))


def write_new_files(folder: Path, texts: Mapping[str, str]) -> None:
    """Write text files into a folder, creating missing folders. After an error, all created files are removed.

    Args:
        folder: The folder.
        texts: Text of each file, by path within the folder.

    Raises:
        UserError: A path already exists or cannot be written; the message names the path.
    """
    for name in texts:
        if os.path.lexists(folder / name):
            raise UserError(f"{folder / name}: is there already. Nothing was written.")
    created: list[Path] = []
    try:
        for name, text in texts.items():
            path = folder / name
            for missing_folder in _missing(path.parent):
                missing_folder.mkdir()
                created.append(missing_folder)
            with path.open("xb") as file:  # never replaces a file created in the meantime
                created.append(path)
                file.write(text.encode("utf-8"))
    except BaseException as error:
        for path in reversed(created):
            path.rmdir() if path.is_dir() else path.unlink()
        if isinstance(error, OSError):
            raise UserError(f"{folder / name}: cannot be written ({error.strerror}). Nothing was written.") from error
        raise


def _missing(folder: Path) -> Iterator[Path]:
    """Yield the missing folders on the path to `folder`, itself included, from the top down."""
    if not os.path.exists(folder):
        yield from _missing(folder.parent)
        yield folder
