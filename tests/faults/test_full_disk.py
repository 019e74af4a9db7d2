"""A disk that becomes full at any moment: a short message, no finished cell is lost, and the same command resumes."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from stored_rows import rows_by_table

from exitbench.results.tables import SCHEMA_VERSION, schema_sql

DISK_BYTES = 64 << 20
KILOBYTE = 1 << 10


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Yield a small separate file system."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("file systems cannot be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture(scope="session")
def whole(bench: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a runs folder in which the suite ran without faults."""
    runs = tmp_path_factory.mktemp("whole") / "runs"
    assert bench.run(runs).returncode == 0
    return runs


def fill(disk: Path, free_bytes: int) -> Path:
    """Fill the disk up to this many free bytes; return the file that takes the room."""
    ballast = disk / "ballast"
    room = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, room - free_bytes)
    return ballast


def is_said_in_a_few_lines(done: "subprocess.CompletedProcess[str]") -> bool:
    print(done.returncode, done.stderr[-1500:])
    told = done.stdout + done.stderr
    return "Traceback" not in told and "No space left" in told and len(done.stderr.splitlines()) < 25


def goes_on(bench: Any, disk: Path, whole: Path, free_kilobytes: int) -> None:
    runs = disk / "runs"
    ballast = fill(disk, free_kilobytes * KILOBYTE)
    first = bench.run(runs)
    assert first.returncode in (1, 2), first.stdout
    assert is_said_in_a_few_lines(first)
    finished = bench.digests(runs)
    ballast.unlink()
    second = bench.run(runs)
    assert second.returncode == 0, second.stderr
    assert bench.digests(runs) == bench.digests(whole)  # one good attempt a cell: what was finished was not run again
    assert finished.items() <= bench.digests(runs).items()
    bench.check(runs)


@pytest.mark.parametrize("free_kilobytes", [0, 8, 40, 160, 1000, 3000, 6000, 7000, 8000])
def test_run_on_a_full_disk_resumes_once_space_is_free(
    bench: Any, disk: Path, whole: Path, free_kilobytes: int
) -> None:
    goes_on(bench, disk, whole, free_kilobytes)


@pytest.mark.parametrize("free_kilobytes", [0, 36, 48, 64, 80, 100, 150, 200])
def test_run_into_an_existing_database_resumes_after_a_full_disk(
    bench: Any, disk: Path, whole: Path, free_kilobytes: int
) -> None:
    (disk / "runs").mkdir()
    assert bench.do("db", "rebuild", "--runs", disk / "runs").returncode == 0
    goes_on(bench, disk, whole, free_kilobytes)


@pytest.mark.parametrize("free_kilobytes", [0, 100, 2000])
def test_rebuild_on_a_full_disk_leaves_the_database_unchanged(
    bench: Any, disk: Path, whole: Path, free_kilobytes: int
) -> None:
    runs = Path(shutil.copytree(whole, disk / "runs"))
    before = rows_by_table(runs / "exitbench.duckdb")
    ballast = fill(disk, free_kilobytes * KILOBYTE)
    done = bench.do("db", "rebuild", "--runs", runs)
    assert done.returncode == 2
    assert is_said_in_a_few_lines(done)
    assert rows_by_table(runs / "exitbench.duckdb") == before
    ballast.unlink()
    bench.check(runs)


@pytest.mark.parametrize("free_kilobytes", [0, 100, 400])
def test_views_are_created_later_after_a_full_disk(bench: Any, disk: Path, whole: Path, free_kilobytes: int) -> None:
    path = disk / "exitbench.duckdb"
    with duckdb.connect(path) as connection:
        connection.execute(schema_sql())
        connection.execute("INSERT INTO schema_version VALUES (?, now()::TIMESTAMP, 'test')", [SCHEMA_VERSION])
    ballast = fill(disk, free_kilobytes * KILOBYTE)
    query = ("import", whole / "spool", "--runs", disk)  # a reader would leave the file as it is
    done = bench.do(*query)
    assert done.returncode == 2
    assert is_said_in_a_few_lines(done)
    ballast.unlink()
    assert bench.do(*query).returncode == 0


@pytest.mark.parametrize("free_kilobytes", [0, 20, 80])
def test_report_can_be_written_after_a_full_disk(bench: Any, disk: Path, whole: Path, free_kilobytes: int) -> None:
    ballast = fill(disk, free_kilobytes * KILOBYTE)
    report = ("report", "--database", whole / "exitbench.duckdb", "--out", disk / "report")
    done = bench.do(*report)
    assert done.returncode == 2
    assert is_said_in_a_few_lines(done)
    ballast.unlink()
    assert bench.do(*report).returncode == 0
    assert (disk / "report" / "index.html").exists()


@pytest.mark.parametrize("form", ["parquet", "every-eval-ever"])
@pytest.mark.parametrize("free_kilobytes", [0, 8, 20])
def test_export_on_a_full_disk_leaves_no_files_and_can_be_repeated(
    bench: Any, disk: Path, whole: Path, free_kilobytes: int, form: str
) -> None:
    ballast = fill(disk, free_kilobytes * KILOBYTE)
    export = ("export", disk / "ours", "--format", form, "--database", whole / "exitbench.duckdb")
    done = bench.do(*export)
    assert done.returncode == 2
    assert is_said_in_a_few_lines(done)
    assert sorted(path.name for path in disk.iterdir()) == ["ballast"]
    ballast.unlink()
    assert bench.do(*export).returncode == 0
    assert any((disk / "ours").iterdir())
