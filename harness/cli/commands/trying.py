"""``exitbench try``: measure, in a given time, whether early exit is worth it for a model."""

from argparse import Namespace
from pathlib import Path
from typing import Any

from exitbench.errors import UserError
from exitbench.harness.cli.commands.inspect import model_folder
from exitbench.harness.cli.commands.new import model_line
from exitbench.harness.service.folders import Runs


def try_model(arguments: Namespace) -> int:
    """Print whether early exit is worth it for a model; return 0 if that was measured, and 1 if cells failed.

    Raises:
        UserError: The model or the data cannot be used, or the time is too short.
        KeyboardInterrupt: Interrupted; finished cells are kept and the same command resumes.
    """
    from exitbench.harness.scaffolds.suite import label_of
    from exitbench.harness.service.trying import TryOptions
    from exitbench.harness.service.trying import try_model as try_early_exit

    runs = Runs(arguments.runs)
    runs.require_writable()
    folder = model_folder(arguments.model, runs.models, query_hub=arguments.hub)
    key, value, stem = model_line(arguments.model, folder.resolve(), runs.root / "tried")
    name = _task_with_labels(folder) if arguments.task is None else arguments.task
    data_dir, task = _task(name, arguments.data)
    options = TryOptions(
        label=label_of(stem),
        model={key: value},
        folder=folder,
        task=task,
        task_label=label_of(Path(name.rpartition(":")[2]).stem),
        minutes=arguments.minutes,
        max_loss=arguments.max_loss,
        runs=arguments.runs,
        run={"threads": arguments.threads, "hub": arguments.hub, "data_dir": data_dir},
    )
    return 0 if try_early_exit(options) else 1


def _task_with_labels(folder: Path) -> str:
    """Return the default task of a model: squad or, for a classifier, the only task with the same labels.

    Raises:
        UserError: No task has the classifier's labels, or several have.
    """
    from exitbench.harness.engine.checkpoints.encoder_loading import is_encoder
    from exitbench.harness.inspecting.encoders import inspect_classifier
    from exitbench.tasks.classification import ClassificationTask
    from exitbench.tasks.registry import get_task, task_names

    if not is_encoder(folder) or (shape := inspect_classifier(folder).shape) is None:
        return "squad"
    labelled = {name: task.labels for name in task_names() if isinstance(task := get_task(name), ClassificationTask)}
    same = [name for name, labels in labelled.items() if labels is not None and sorted(labels) == sorted(shape.labels)]
    if len(same) != 1:
        allowed = ", ".join(same or labelled)
        raise UserError(f"--task is missing: {len(same) or 'no'} tasks have the model's labels. Allowed: {allowed}.")
    return same[0]


def _task(name: str, file: Path | None) -> tuple[Path | None, dict[str, Any]]:
    """Return the folder of the data file, and the table with which a suite describes the task, without ``limit``.

    Raises:
        UserError: The data file does not exist, or the task needs several files.
    """
    from exitbench.harness.cli.commands.show import entry_as_given

    task = str(Path(name).resolve()) if name.endswith(".toml") else name
    if file is None:
        if name.endswith(".toml"):
            raise UserError(f"--task {name}: needs its records too: --data FILE.")
        return None, {"task": task}
    if not file.is_file():
        raise UserError(f"--data {file}: there is no such file.")
    path = file.resolve()
    roles = entry_as_given(name, {"source": "local", "files": {"data": path.name}}).data.task_object.local_roles
    if not (single := [role for roles_of_set in roles if len(roles_of_set) == 1 for role in roles_of_set]):
        needed = " or ".join(" + ".join(sorted(roles_of_set)) for roles_of_set in roles)
        raise UserError(f"--data {file}: task {name!r} reads several files ({needed}); name them in a suite.")
    return path.parent, {"task": task, "source": "local", "files": {sorted(single)[0]: path.name}}
