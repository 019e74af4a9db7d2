"""Waiting for an open database: without limit for a process that fills it, and for a limited time otherwise."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from exitbench.results.database.access import DatabaseInUse, retry_while_in_use
from exitbench.results.database.connection import Database, open_database
from exitbench.results.ingest.ingest import ingest

OURS = """
import sys, time
from pathlib import Path
from exitbench.results.database.connection import open_database
with open_database(Path(sys.argv[1]), read_only=False):
    print("open", flush=True)
    time.sleep(float(sys.argv[2]))
"""
STRANGER = """
import sys, time, duckdb
connection = duckdb.connect(sys.argv[1])
print("open", flush=True)
time.sleep(float(sys.argv[2]))
"""


@contextmanager
def holding(path: Path, script: str, seconds: float) -> Iterator[int]:
    """Run `script` in a process that keeps the database open for some seconds, and yield its process id."""
    command = [sys.executable, "-c", script, str(path), str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "open\n"
        try:
            yield process.pid
        finally:
            process.kill()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "exitbench.duckdb"
    open_database(path, read_only=False).close()
    return path


def opening(path: Path, read_only: bool) -> Callable[[], Database]:
    return lambda: open_database(path, read_only=read_only, wait_s=0.1)


@pytest.mark.parametrize("read_only", [True, False])
def test_exitbench_writer_is_waited_for_and_named_once(path: Path, read_only: bool) -> None:
    messages: list[str] = []
    with holding(path, OURS, 3.0) as process:
        retry_while_in_use(opening(path, read_only), messages.append, patience_s=0.0).close()
    assert messages == [f"{path} is in use by process {process}; waiting for it."]


def test_third_party_process_that_releases_in_time_is_waited_for(path: Path) -> None:
    messages: list[str] = []
    with holding(path, STRANGER, 2.0) as process:
        retry_while_in_use(opening(path, False), messages.append, patience_s=60.0).close()
    assert messages == [f"{path} is in use by process {process}; waiting for it."]


def test_third_party_process_that_keeps_the_database_open_is_named(path: Path) -> None:
    with holding(path, STRANGER, 300.0) as process:
        with pytest.raises(DatabaseInUse, match=f"in use by process {process};"):
            retry_while_in_use(opening(path, False), lambda text: None, patience_s=1.0)
        with pytest.raises(DatabaseInUse):  # it was not waited for: the database is held still
            opening(path, False)()


def test_ingest_waits_for_another_writer(example_spool: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("exitbench.results.database.connection.open_database.__defaults__", (True, 0.1))
    messages: list[str] = []
    with holding(path, OURS, 3.0):
        report = ingest(example_spool, path, on_wait=messages.append)
    assert report.added > 0 and len(messages) == 1
