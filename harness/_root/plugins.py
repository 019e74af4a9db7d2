"""Plug-ins: Python files of a folder that the user names with ``--plugins``, which run with the user's rights.

A file registers what it brings (``exitbench.register_task``, ``exitbench.register_method``); others of the folder it
imports as ``exitbench_plugins.NAME``. Nothing is looked for anywhere else. It lies beneath every package, as `errors`
does.
"""

import importlib
import os
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Final

from exitbench.errors import UserError, told

PACKAGE: Final = "exitbench_plugins"
"""The package that the folder is."""
_VARIABLE: Final = "EXITBENCH_PLUGINS"


def use_plugins(folder: Path) -> tuple[Path, ...]:
    """Trust a folder, in this process and in those that it starts.

    Returns:
        The files whose code is run.

    Raises:
        UserError: There is no such folder, nothing is in it, or another one is in use.
    """
    folder = folder.resolve()
    if not folder.is_dir():
        raise UserError(f"--plugins {folder}: is no folder. Needed: one with Python files or tasks in TOML.")
    if (other := plugins_folder()) not in (None, folder):
        raise UserError(f"--plugins {folder}: {other} is in use. One folder goes with one process.")
    files = _modules(folder)
    if not files and not any(folder.glob("*.toml")):
        raise UserError(f"--plugins {folder}: holds no .py file and no .toml file.")
    os.environ[_VARIABLE] = str(folder)
    return files


def plugins_folder() -> Path | None:
    """Return the folder that is trusted; None where the user named none."""
    given = os.environ.get(_VARIABLE)
    return Path(given) if given else None


def load_plugins() -> None:
    """Import the files of the trusted folder, each once; does nothing without one.

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
            raise UserError(f"plug-in {path}: {type(error).__name__}: {told(error)}") from error


def _modules(folder: Path) -> tuple[Path, ...]:
    return tuple(sorted(path for path in folder.glob("*.py") if path.stem.isidentifier()))
