"""Fixtures of the distribution `exit-broken`, whose methods break contracts."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

_SOURCE = Path(__file__).with_name("exit_broken.py")
_ENTRY_POINTS = """\
[exitbench.methods]
broken = exit_broken:Broken
plain = exit_broken:UndeclaredField
unmade = exit_broken:GateRaises
absent = exit_broken:Absent
"""


@pytest.fixture(scope="session")
def broken() -> ModuleType:
    """Return the module `exit_broken.py`, which tests cannot import by name."""
    spec = importlib.util.spec_from_file_location("exit_broken", _SOURCE)
    assert spec is not None and spec.loader is not None
    module = sys.modules["exit_broken"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the files of an installed wheel of `exit_broken.py`."""
    folder = tmp_path_factory.mktemp("installed") / "site"
    info = folder / "exit_broken-1.0.dist-info"
    info.mkdir(parents=True)
    shutil.copy(_SOURCE, folder)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: exit-broken\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(_ENTRY_POINTS)
    return folder
