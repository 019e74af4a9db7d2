"""``exitbench new``: files to begin with, of a method, a task or a suite, and what to do with them."""

import shlex
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path

from exitbench.harness.scaffolds.files import method_files, python_task_files, task_files
from exitbench.harness.scaffolds.names import check_new_name, module_name
from exitbench.results.files.new_files import write_new_files
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


def _suite_command(name: str, is_python: bool) -> str:
    return f"exitbench run {name}.toml --data-dir data{' --plugins plugins' if is_python else ''}"


def _write(to: Path, files: Mapping[str, str], steps: Sequence[Sequence[str | Path]]) -> None:
    """Write the files and print them, and the commands that come next."""
    write_new_files(to, files)
    lines = [*(f"wrote {to / name}" for name in files), "", "next:"]
    tell("\n".join([*lines, *(f"  {shlex.join(map(str, step))}" for step in steps)]), sys.stdout)
