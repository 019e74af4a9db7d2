"""Fixtures for tests of hostile files: a folder to import into, and detection of changes."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from exitbench.harness.cli.main import main

Contents = dict[str, str]


def contents(folder: Path) -> Contents:
    """Return the contents of a folder except lock files, by name: digests of files, targets of links."""
    digests = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            digests[name] = f"-> {os.readlink(path)}"
        elif path.is_file() and path.suffix not in (".lock", ".waiting"):
            digests[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return digests


@pytest.fixture
def folder_contents() -> Callable[[Path], Contents]:
    """Return the function `contents`: equal results before and after a command show that it changed nothing."""
    return contents


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Return a function that runs a command in this process and returns its exit code, output and error output."""

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        output = capsys.readouterr()
        assert "Traceback" not in output.err
        assert len(output.err) < 2000
        return code, output.out, output.err

    return run


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Return an empty folder of runs to import into."""
    folder = tmp_path / "runs"
    folder.mkdir()
    return folder
