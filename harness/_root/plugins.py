"""Plug-ins: Python files of a folder that the user names with ``--plugins``, which run with the user's rights.

A file registers its tasks and methods (``exitbench.register_task``, ``exitbench.register_method``) and imports other
files of the folder as ``exitbench_plugins.NAME``. No other folder is searched. This module imports nothing from
this project except `errors`.
"""

import importlib
import os
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Final

from exitbench.errors import UserError, one_line

PACKAGE: Final = "exitbench_plugins"
"""Package name under which the folder's files are imported."""
_VARIABLE: Final = "EXITBENCH_PLUGINS"


def use_plugins(folder: Path) -> tuple[Path, ...]:
    """Set the plug-in folder, for this process and its child processes.

    Returns:
        The Python files that will be executed.

    Raises:
        UserError: The folder does not exist or is empty, or another plug-in folder is already set.
    """
    folder = folder.resolve()
    if not folder.is_dir():
        raise UserError(f"--plugins {folder}: is not a folder. Needed: a folder with Python files or tasks in TOML.")
    if (other := plugins_folder()) not in (None, folder):
        raise UserError(f"--plugins {folder}: {other} is in use. One folder goes with one process.")
    files = _modules(folder)
    if not files and not any(folder.glob("*.toml")):
        raise UserError(f"--plugins {folder}: holds no .py file and no .toml file.")
    os.environ[_VARIABLE] = str(folder)
    return files


def plugins_folder() -> Path | None:
    """Return the plug-in folder, or None if the user named none."""
    value = os.environ.get(_VARIABLE)
    return Path(value) if value else None


def load_plugins() -> None:
    """Import each Python file of the plug-in folder once; do nothing if no folder is set.

    Raises:
        UserError: A file cannot be imported.
    """
    if (folder := plugins_folder()) is not None:
        _load(folder)


@cache
def _load(folder: Path) -> None:
    package = ModuleType(PACKAGE)
    package.__path__ = [str(folder)]
    sys.modules[PACKAGE] = package
    for path in _modules(folder):
        try:
            importlib.import_module(f"{PACKAGE}.{path.stem}")
        except (Exception, SystemExit) as error:
            raise UserError(f"plug-in {path}: {type(error).__name__}: {one_line(error)}") from error


def _modules(folder: Path) -> tuple[Path, ...]:
    return tuple(sorted(path for path in folder.glob("*.py") if path.stem.isidentifier()))
