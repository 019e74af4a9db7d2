"""``exitbench show`` and ``show-prompts``: print stored answers token by token, or the prompts of a task."""

import tomllib
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Any

from exitbench.errors import UserError
from exitbench.harness.cli.commands.common import existing_database
from exitbench.harness.planning.entries.task import TaskEntry, read_task
from exitbench.harness.planning.suite import load_suite
from exitbench.harness.reading.toml import TomlTable
from exitbench.harness.service.folders import Runs
from exitbench.results.database.connection import open_database
from exitbench.tasks.styles import OWN_FORMAT
from exitbench.terminal import number_of, visible

if TYPE_CHECKING:
    from exitbench.tasks.base import ModelKind, Task
    from exitbench.tasks.document import Document


def show(arguments: Namespace) -> int:
    """Print, token by token, the answer of one run or of two runs to a document.

    Raises:
        UserError: The name of a run matches no run or too many, or the document or token does not exist.
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
    entry = _entry(arguments).with_source_resolved(arguments.data_dir, hub=True)
    reader = None if arguments.model is None else _Reader.of(arguments, entry)
    entry = entry if reader is None else reader.entry
    task, documents = entry.data.task_object, entry.data.load(arguments.data_dir)
    print("\n".join(_head(entry, task, len(documents), is_rendered=reader is not None)))
    shown_documents = documents[: arguments.n]
    texts = entry.work.readable_texts(task, shown_documents)
    if reader is not None and entry.work.generates:
        texts = (reader.texts(task, document) for document in shown_documents)
    for number, (document, parts) in enumerate(zip(shown_documents, texts, strict=True), start=1):
        print(f"\n{number} of {len(documents)}, document {document.key}")
        for title, text in parts:
            print(f"  {title}:\n{indent(visible(text, keep=chr(10)), '    ', lambda line: True)}")
    return 0


@dataclass(frozen=True)
class _Reader:
    """Model that reads the shown prompts: its kind, its tokenizer, and the task's entry with its prompt style."""

    entry: TaskEntry
    kind: "ModelKind"
    tokenizer: Any

    @classmethod
    def of(cls, arguments: Namespace, entry: TaskEntry) -> "_Reader":
        """Return the kind and tokenizer of the model given by ``--model``, and the task's entry for this model.

        In this entry, prompts have the style that suits the model.
        """
        from exitbench.harness.cli.commands.inspect import model_folder
        from exitbench.harness.engine.checkpoints.digest import inspect_checkpoint
        from exitbench.harness.engine.checkpoints.tokenizer_files import load_tokenizer
        from exitbench.harness.planning.prompt_styles import styled

        folder = model_folder(arguments.model, Runs(arguments.runs).models)
        model = inspect_checkpoint(arguments.model, folder, "auto").model
        return cls(styled(entry, folder, model, arguments.data_dir), model.kind, load_tokenizer(folder))

    def texts(self, task: "Task", document: "Document") -> list[tuple[str, str]]:
        """Return (title, text) pairs for a document: exactly what the model reads, and the target."""
        from exitbench.harness.cells.prompts import render_chat

        prompt = task.prompt_for(document, self.kind)
        if self.entry.chat_template:
            prompt = render_chat(self.tokenizer, self.entry.generation.system, prompt)
        return [("the model reads", prompt), ("target", task.target(document))]


def _entry(arguments: Namespace) -> TaskEntry:
    """Return the entry of a task from the suite of ``--suite`` or, without it, built from the command line."""
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
    """Return the entry that a suite would have for a task named on the command line.

    Paths are relative to the current folder.

    Args:
        task: Name of a task, or path of its TOML file.
        settings: Values of the entry's ``[tasks.LABEL]`` table.

    Raises:
        UserError: The task does not exist, or a setting is invalid.
    """
    values = {"task": task, **settings}
    return read_task(Path(task).stem, TomlTable(Path("--set"), "", ("tasks", task), values))


def task_settings(assignments: Sequence[str]) -> dict[str, Any]:
    """Parse ``--set KEY=VALUE`` options into the values of a suite's ``[tasks.LABEL]`` table.

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


def _head(entry: TaskEntry, task: "Task", n_documents: int, *, is_rendered: bool) -> Iterator[str]:
    yield f"{entry.label}: {task.name}, {number_of(n_documents, 'document')} of {visible(entry.data.origin)}"
    yield f"metrics: {', '.join(task.metrics)}"
    yield entry.work.about(task, entry.generation.max_new_tokens)
    if is_rendered and task.style_texts is not None:
        yield f"prompt style: {entry.generation.prompt_style or OWN_FORMAT}"
    if entry.generation.stop:
        yield f"answers end at {', '.join(map(repr, entry.generation.stop))}"
    if entry.chat_template and not is_rendered:
        yield "prompts go through the chat template of each model, which is not shown here"
