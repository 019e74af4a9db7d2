"""``exitbench show`` and ``show-prompts``: print stored answers token by token, or the prompts of a task."""

import tomllib
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Any

from exitbench.errors import UserError
from exitbench.harness.cli.commands.common import existing_database
from exitbench.harness.planning.entries.task import TaskEntry, read_task
from exitbench.harness.planning.suite import load_suite
from exitbench.harness.reading.toml import TomlTable
from exitbench.results.database.connection import open_database
from exitbench.terminal import number_of, visible

if TYPE_CHECKING:
    from exitbench.tasks.base import Task


def show(arguments: Namespace) -> int:
    """Print the answer of one run, or the answers of two runs, to one document.

    Raises:
        UserError: A name matches no run or too many, or the document or token does not exist.
    """
    from rich.console import Console

    from exitbench.reports.answers.answer import HeatMap, find_answers

    names = [name for name in (arguments.run, arguments.against) if name is not None]
    with open_database(existing_database(arguments)) as database:
        answers = find_answers(database, names, arguments.doc)
    heat_map = HeatMap(Console())
    heat_map.print_answers(answers)
    if arguments.token is not None:
        for answer in answers:
            heat_map.print_token(answer, arguments.token)
    return 0


def show_prompts(arguments: Namespace) -> int:
    """Print the first prompts of a task with their targets, and its number of documents.

    Raises:
        UserError: The task does not exist, its documents cannot be read, or a setting is invalid.
    """
    entry = _entry(arguments)
    task, documents = entry.data.task_object, entry.data.load(arguments.data_dir)
    print("\n".join(_head(entry, task, len(documents))))
    shown_documents = documents[: arguments.n]
    for number, (document, parts) in enumerate(
        zip(shown_documents, entry.work.readable_texts(task, shown_documents), strict=True), start=1
    ):
        print(f"\n{number} of {len(documents)}, document {document.key}")
        for title, text in parts:
            print(f"  {title}:\n{indent(visible(text, keep=chr(10)), '    ', lambda line: True)}")
    return 0


def _entry(arguments: Namespace) -> TaskEntry:
    """Return the task entry of a suite, or the entry built from the command line."""
    if arguments.suite is not None:
        if arguments.set:
            raise UserError(f"--set {arguments.set[0]}: does not go with --suite, which has its own settings.")
        suite = load_suite(arguments.suite)
        labels = [entry.label for entry in suite.tasks]
        matches = [entry for entry in suite.tasks if entry.label == arguments.task]
        if not matches:
            raise UserError(f"suite {suite.name} has no task {arguments.task!r}. Allowed: {', '.join(labels)}.")
        return matches[0]
    return entry_as_given(arguments.task, task_settings(arguments.set))


def entry_as_given(task: str, settings: Mapping[str, Any]) -> TaskEntry:
    """Return the entry of a task named on the command line. Paths are relative to the current folder.

    Args:
        task: Name of a task, or path of its TOML file.
        settings: Values of its ``[tasks.LABEL]`` table.

    Raises:
        UserError: The task does not exist, or a setting is invalid.
    """
    values = {"task": task, **settings}
    return read_task(Path(task).stem, TomlTable(Path("--set"), "", ("tasks", task), values))


def task_settings(assignments: Sequence[str]) -> dict[str, Any]:
    """Parse ``--set KEY=VALUE`` options into the settings of a ``[tasks.LABEL]`` table.

    Raises:
        UserError: An option does not have the form KEY=VALUE.
    """
    values: dict[str, Any] = {}
    for assignment in assignments:
        try:
            values |= tomllib.loads(assignment)
        except tomllib.TOMLDecodeError as error:
            raise UserError(
                f"--set {assignment}: {error}. Allowed: KEY=VALUE as in [tasks.LABEL] of a suite."
            ) from None
    return values


def _head(entry: TaskEntry, task: "Task", n_documents: int) -> Iterator[str]:
    yield f"{entry.label}: {task.name}, {number_of(n_documents, 'document')} of {visible(entry.data.place)}"
    yield f"metrics: {', '.join(task.metrics)}"
    yield entry.work.about(task, entry.generation.max_new_tokens)
    if entry.chat_template:
        yield "prompts go through the chat template of each model, which is not shown here"
