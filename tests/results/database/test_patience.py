"""Waiting for an open database: without limit for a process that fills it, and for a limited time otherwise."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

from exitbench.results.database.access import DatabaseInUse, retry_while_in_use
from exitbench.results.database.connection import Database, open_database
from exitbench.results.ingest.ingest import ingest

OURS = """
import sys
from pathlib import Path
from exitbench.results.database.connection import open_database
with open_database(Path(sys.argv[1]), read_only=False):
    print("open", flush=True)
    sys.stdin.read()
"""
STRANGER = """
import sys, duckdb
connection = duckdb.connect(sys.argv[1])
print("open", flush=True)
sys.stdin.read()
"""


@contextmanager
def holding(path: Path, script: str) -> Iterator[subprocess.Popen[str]]:
    """Run `script` in a process that keeps the database open until its input is closed, and yield the process."""
    command = [sys.executable, "-c", script, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "open\n"
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "exitbench.duckdb"
    open_database(path, read_only=False).close()
    return path


def release(process: subprocess.Popen[str]) -> None:
    """Let the process close the database."""
    assert process.stdin is not None
    process.stdin.close()


def opening(path: Path, read_only: bool) -> Callable[[], Database]:
    return lambda: open_database(path, read_only=read_only, wait_s=0.1)


@pytest.mark.parametrize("read_only", [True, False])
def test_exitbench_writer_is_waited_for_and_named_once(path: Path, read_only: bool) -> None:
    messages: list[str] = []
    with holding(path, OURS) as process:
        attempts = count(1)

        def open_thrice() -> Database:
            if next(attempts) == 3:  # so that a second message would have been given
                release(process)
            return opening(path, read_only)()

        retry_while_in_use(open_thrice, messages.append, patience_s=0.0).close()
    assert messages == [f"{path} is in use by process {process.pid}; waiting for it."]


def test_third_party_process_that_releases_in_time_is_waited_for(path: Path) -> None:
    messages: list[str] = []

    def on_wait(message: str) -> None:
        messages.append(message)
        release(process)

    with holding(path, STRANGER) as process:
        retry_while_in_use(opening(path, False), on_wait, patience_s=60.0).close()
    assert messages == [f"{path} is in use by process {process.pid}; waiting for it."]


def test_third_party_process_that_keeps_the_database_open_is_named(path: Path) -> None:
    with holding(path, STRANGER) as process:
        with pytest.raises(DatabaseInUse, match=f"in use by process {process.pid};"):
            retry_while_in_use(opening(path, False), lambda text: None, patience_s=0.3)
        with pytest.raises(DatabaseInUse):  # it was not waited for: the database is held still
            opening(path, False)()


def test_ingest_waits_for_another_writer(few_spool: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("exitbench.results.database.connection.open_database.__defaults__", (True, 0.1))
    messages: list[str] = []

    def on_wait(message: str) -> None:
        messages.append(message)
        release(process)

    with holding(path, OURS) as process:
        report = ingest(few_spool, path, on_wait=on_wait)
    assert report.added > 0 and len(messages) == 1
