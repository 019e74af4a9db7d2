"""Scaffolds: files to begin with, of a method, a task or a suite: `exitbench new`."""

import re
from pathlib import Path
from string import Template
from typing import Final

from exitbench.errors import UserError
from exitbench.terminal import without_middle

MOST_CHARACTERS: Final = 40
_FORM: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", re.ASCII)
_SHOWN: Final = 80


def check_new_name(name: str) -> None:
    """Check that a method, a task or a suite can have a name.

    Raises:
        UserError: It is not of the form that names have, or something has it already.
    """
    from exitbench.harness.planning.entries.declared_task import plugged_in
    from exitbench.harness.planning.suite import suite_names
    from exitbench.methods.registry import method_names, unusable_methods
    from exitbench.tasks.registry import task_names, unusable_tasks
    from exitbench.tasks.translation import is_pair

    if len(name) > MOST_CHARACTERS or not _FORM.fullmatch(name):
        raise UserError(
            f"{without_middle(repr(name), _SHOWN)} cannot be a name. Allowed: lower-case letters a to z, digits and "
            f"single hyphens, a letter first, at most {MOST_CHARACTERS} characters, such as 'my-method'."
        )
    taken = {
        "method": {*method_names(), *unusable_methods()},
        "task": {*task_names(), *unusable_tasks(), *plugged_in(), *([name] if is_pair(name) else ())},
        "suite": {*suite_names()},
    }
    for kind, names in taken.items():
        if name in names:
            raise UserError(f"there is a {kind} named {name!r}: choose another name.")


def module_name(name: str) -> str:
    """Return the name of a Python module for what is called so: `my_method`."""
    return name.replace("-", "_")


def class_name(name: str) -> str:
    """Return the beginning of the names of classes for it: `MyMethod`."""
    return "".join(word.capitalize() for word in name.split("-"))


_TEMPLATES: Final = Path(__file__).parent / "templates"


def method_files(name: str) -> dict[str, str]:
    """Return the plug-in, the test and the suite of a method: texts by path."""
    module = module_name(name)
    return {
        f"plugins/{module}.py": filled("method.py", name=name, class_name=class_name(name)),
        f"tests/test_{module}.py": filled("method_test.py", name=name),
        f"{name}.toml": filled("method.toml", name=name),
    }


def task_files(name: str, command: str) -> dict[str, str]:
    """Return a task's TOML file, its example records, its test and a suite: texts by path.

    Args:
        name: Of the task.
        command: That runs the suite, for the comment at its top.
    """
    asked = f'task = "tasks/{name}.toml"'
    return {
        f"tasks/{name}.toml": filled("task.toml", name=name),
        f"data/{name}.jsonl": filled("records.jsonl"),
        f"tests/test_{module_name(name)}.py": filled("task_test.py", name=name),
        f"{name}.toml": filled("task_suite.toml", name=name, command=command, task=asked),
    }


def python_task_files(name: str, command: str) -> dict[str, str]:
    """The same of a task that is a class in a plug-in."""
    module = module_name(name)
    return {
        f"plugins/{module}.py": filled("task.py", name=name, class_name=class_name(name)),
        f"data/{name}.jsonl": filled("records.jsonl"),
        f"tests/test_{module}.py": filled("task_in_python_test.py", name=name),
        f"{name}.toml": filled("task_suite.toml", name=name, command=command, task='source = "local"'),
    }


def filled(template: str, **values: str) -> str:
    """Return a template of this folder with values in place of its ``$names``."""
    return Template((_TEMPLATES / f"{template}.tmpl").read_text(encoding="utf-8")).substitute(values)
