"""The files of a scaffold: templates of this folder with a name filled in."""

from pathlib import Path
from string import Template
from typing import Final

from exitbench.harness.scaffolds.names import class_name, module_name

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
