"""Read-only runs folders: commands that read work, and commands that write explain why they cannot."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from exitbench.results.tables import SCHEMA_VERSION, schema_sql


@pytest.fixture(scope="module")
def runs(bench: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield a read-only runs folder with a finished suite, and a database without views next to it."""
    folder = tmp_path_factory.mktemp("read-only")
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("file systems cannot be mounted here")
    assert bench.run(folder / "runs").returncode == 0
    shutil.rmtree(folder / "runs" / "report")
    with duckdb.connect(folder / "old.duckdb") as connection:
        connection.execute(schema_sql())
        connection.execute("INSERT INTO schema_version VALUES (?, now()::TIMESTAMP, 'test')", [SCHEMA_VERSION])
    (folder / "runs" / "spool" / "aa" / "a" / "20260102T030405000000Z-00000000").mkdir(parents=True)
    os.utime(folder / "runs" / "spool" / "aa" / "a" / "20260102T030405000000Z-00000000", (0, 0))
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
    yield folder / "runs"
    subprocess.run(["umount", str(folder)], check=True)


def test_reading_commands_work_on_a_read_only_folder(bench: Any, runs: Path, tmp_path: Path) -> None:
    suite = (bench.suite, "--data-dir", bench.suite.parent)
    for command in (
        ("sql", "SELECT count(*) AS n FROM runs", "--runs", runs),
        ("sql", "FROM runs", "--runs", runs, "--out", tmp_path / "runs.parquet"),
        ("sql", "FROM runs", "--database", runs.parent / "old.duckdb"),
        ("status", "--runs", runs),
        ("status", *suite, "--runs", runs),
        ("plan", *suite, "--runs", runs),
        ("report", "--runs", runs, "--out", tmp_path / "report"),
        ("compare", "tiny/lines/full", "tiny/lines/static*", "--runs", runs),
        ("db", "check", "--runs", runs),
        ("gc", "--runs", runs),
    ):
        done = bench.do(*command)
        assert done.returncode == 0, (command, done.stderr)
    assert "0 new" not in bench.do("plan", *suite, "--runs", runs).stdout


def test_writing_commands_report_the_read_only_file_system(bench: Any, runs: Path) -> None:
    suite = (bench.suite, "--data-dir", bench.suite.parent)
    for command in (
        ("run", *suite, "--runs", runs),
        ("report", "--runs", runs),
        ("db", "rebuild", "--runs", runs),
        ("gc", "--yes", "--runs", runs),
    ):
        done = bench.do(*command)
        print(command, done.stderr)
        assert done.returncode == 2, command
        assert "Read-only file system" in done.stderr, command
        assert "Traceback" not in done.stderr, command
        assert len(done.stderr.splitlines()) < 5, command
