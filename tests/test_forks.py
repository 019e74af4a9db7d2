"""A fork that stands for a new interpreter is what was asked for, and ends as an interpreter does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no process begins as a fork")


@pytest.fixture
def pool() -> Iterator[ProcessPoolExecutor]:
    """A pool of one process, which begins with the first thing that it is asked."""
    with ProcessPoolExecutor(1, get_context("spawn")) as made:
        yield made


HAS_TORCH = "'torch' in __import__('sys').modules"


def test_it_has_its_imports_and_is_a_child_of_this_process(pool: ProcessPoolExecutor) -> None:
    assert pool.submit(eval, HAS_TORCH).result()
    assert pool.submit(os.getppid).result() == os.getpid()


@pytest.mark.usefixtures("new_interpreters")
def test_a_new_interpreter_has_to_import_them(pool: ProcessPoolExecutor) -> None:
    assert not pool.submit(eval, HAS_TORCH).result()


def test_it_has_folder_and_variables_of_this_process(
    pool: ProcessPoolExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ASKED", "so")
    assert pool.submit(os.getcwd).result() == str(tmp_path)
    assert pool.submit(os.getenv, "ASKED").result() == "so"


def test_where_imports_would_read_other_variables_it_is_none(
    pool: ProcessPoolExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert not pool.submit(eval, HAS_TORCH).result()


def test_it_can_be_killed(pool: ProcessPoolExecutor) -> None:
    with pytest.raises(BrokenProcessPool):
        pool.submit(eval, f"__import__('os').kill({pool.submit(os.getpid).result()}, {signal.SIGKILL:d})").result()


COMMANDS = [["--help"], ["plan", "nowhere.toml"], ["sql", "SELECT 1 AS n"], ["sql", "SELECT 1 AS n", "--database", "-"]]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_command_says_and_returns_what_it_does_in_a_new_interpreter(
    words: list[str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    command = [sys.executable, "-m", "exitbench.harness.cli.main", *words]

    def ended() -> tuple[int, bytes, bytes]:
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
        return done.returncode, done.stdout, done.stderr

    forked = ended()
    request.getfixturevalue("new_interpreters")
    assert forked == ended()
