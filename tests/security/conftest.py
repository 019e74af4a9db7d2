"""What tests of hostile files share: a place to import into, and whether anything changed."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from exitbench.harness.cli.main import main

Contents = dict[str, str]


def contents(folder: Path) -> Contents:
    """Everything below a folder but lock files, by name: digests of files, targets of links."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = f"-> {os.readlink(path)}"
        elif path.is_file() and path.suffix not in (".lock", ".waiting"):
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


@pytest.fixture
def unchanged() -> Callable[[Path], Contents]:
    """What to compare before with after."""
    return contents


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run one command in this process; returns its exit code, what it answered and what it complained about."""

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        assert len(said.err) < 2000
        return code, said.out, said.err

    return run


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """An empty folder of runs to import into."""
    folder = tmp_path / "runs"
    folder.mkdir()
    return folder
