"""Scaffolds: starter files for a method, a task or a suite (`exitbench new`)."""

import re
from pathlib import Path
from string import Template
from typing import Final

from exitbench.errors import UserError
from exitbench.terminal import without_middle

MOST_CHARACTERS: Final = 40
_FORM: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", re.ASCII)
_WIDTH: Final = 80


def check_new_name(name: str) -> None:
    """Check that a name is valid for a new method, task or suite.

    Raises:
        UserError: The name has an invalid form or is already in use.
    """
    from exitbench.harness.planning.entries.declared_task import plugged_in
    from exitbench.harness.planning.suite import suite_names
    from exitbench.methods.registry import method_names, unusable_methods
    from exitbench.tasks.registry import task_names, unusable_tasks
    from exitbench.tasks.translation import is_pair

    if len(name) > MOST_CHARACTERS or not _FORM.fullmatch(name):
        raise UserError(
            f"{without_middle(repr(name), _WIDTH)} cannot be a name. Allowed: lower-case letters a to z, digits and "
            f"single hyphens, a letter first, at most {MOST_CHARACTERS} characters, such as 'my-method'."
        )
    used_names = {
        "method": {*method_names(), *unusable_methods()},
        "task": {*task_names(), *unusable_tasks(), *plugged_in(), *([name] if is_pair(name) else ())},
        "suite": {*suite_names()},
    }
    for kind, names in used_names.items():
        if name in names:
            raise UserError(f"there is a {kind} named {name!r}: choose another name.")


def module_name(name: str) -> str:
    """Return the Python module name for a name with hyphens: `my_method` for `my-method`."""
    return name.replace("-", "_")


def class_name(name: str) -> str:
    """Return the beginning of a class name for a name with hyphens: `MyMethod` for `my-method`."""
    return "".join(word.capitalize() for word in name.split("-"))


_TEMPLATES: Final = Path(__file__).parent / "templates"


def method_files(name: str) -> dict[str, str]:
    """Return the starter files of a new method (plug-in, test, suite): their texts, by relative path."""
    module = module_name(name)
    return {
        f"plugins/{module}.py": filled("method.py", name=name, class_name=class_name(name)),
        f"tests/test_{module}.py": filled("method_test.py", name=name),
        f"{name}.toml": filled("method.toml", name=name),
    }


def task_files(name: str, command: str) -> dict[str, str]:
    """Return the starter files of a new task declared in TOML (task, example records, test, suite), by relative path.

    Args:
        name: Name of the task.
        command: Command that runs the suite, for its header comment.
    """
    task_line = f'task = "tasks/{name}.toml"'
    return {
        f"tasks/{name}.toml": filled("task.toml", name=name),
        f"data/{name}.jsonl": filled("records.jsonl"),
        f"tests/test_{module_name(name)}.py": filled("task_test.py", name=name),
        f"{name}.toml": filled("task_suite.toml", name=name, command=command, task=task_line),
    }


def python_task_files(name: str, command: str) -> dict[str, str]:
    """Return the starter files of a new Python task (plug-in, example records, test, suite), by relative path.

    Args:
        name: Name of the task.
        command: Command that runs the suite, for its header comment.
    """
    module = module_name(name)
    return {
        f"plugins/{module}.py": filled("task.py", name=name, class_name=class_name(name)),
        f"data/{name}.jsonl": filled("records.jsonl"),
        f"tests/test_{module}.py": filled("task_in_python_test.py", name=name),
        f"{name}.toml": filled("task_suite.toml", name=name, command=command, task='source = "local"'),
    }


def filled(template: str, **values: str) -> str:
    """Return the text of a template file in this folder, with its ``$names`` replaced by `values`."""
    return Template((_TEMPLATES / f"{template}.tmpl").read_text(encoding="utf-8")).substitute(values)
