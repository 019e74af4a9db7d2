"""`gc` frees only files that nothing needs, and a database that cannot be rebuilt is not lost."""

import os
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from stored_rows import rows_by_table

from exitbench.errors import UserError
from exitbench.results.database.connection import open_database
from exitbench.results.ingest.importing import merge
from exitbench.results.ingest.ingest import ingest, rebuild
from exitbench.results.ingest.snapshot import write_snapshot
from exitbench.results.maintenance.gc import TRACES, Garbage, find_garbage, remove_garbage
from exitbench.results.maintenance.integrity import check, require_whole_spool
from exitbench.results.spool.attempts import AttemptWriter, latest_status, read_status, scan_spool
from exitbench.results.spool.heartbeat import OWNER_FILE

Json = dict[str, Any]


def old(path: Path) -> None:
    for entry in (*path.rglob("*"), path):
        os.utime(entry, (0, 0))


@pytest.fixture(scope="module")
def littered(example: ModuleType, tokens: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a runs folder with a killed rebuild and six attempts at one cell.

    In order, they were killed, ok, quarantined, failed, ok and failed.
    """
    folder = tmp_path_factory.mktemp("littered")
    spool, path = folder / "spool", folder / "exitbench.duckdb"
    cell = example.cell_json(example.MODELS[0], example.TASKS[0], example.FULL, "quality")

    def attempt(status: str) -> AttemptWriter:
        with AttemptWriter(spool, cell, example.ENV) as writer:
            writer.write("tokens", tokens)
            writer.finish(status)
        return writer

    killed = AttemptWriter(spool, cell, example.ENV)
    (killed.path / OWNER_FILE).unlink()
    old(killed.path)
    attempt("ok")
    (attempt("ok").path / "tokens.parquet").unlink()
    for status in ("failed", "ok", "failed"):
        attempt(status)
    ingest(spool, path)
    (folder / ".exitbench.duckdb.abc").mkdir()
    old(folder / ".exitbench.duckdb.abc")
    return folder


@pytest.fixture
def runs(littered: Path, tmp_path: Path) -> Path:
    """Return a copy of `littered` that a test may change."""
    return Path(shutil.copytree(littered, tmp_path, dirs_exist_ok=True))


@pytest.fixture
def running(runs: Path, cell: Json, env: Json) -> AttemptWriter:
    writer = AttemptWriter(runs / "spool", cell, env)
    old(writer.path)
    return writer


@pytest.fixture
def dead_pid() -> int:
    """The id of a process that has ended."""
    with subprocess.Popen(["true"]) as process:
        pass
    return process.pid


def execute(runs: Path, sql: str) -> None:
    with open_database(runs / "exitbench.duckdb", read_only=False) as opened, opened.engine.begin() as connection:
        connection.exec_driver_sql(sql)


def find(runs: Path, *, superseded: bool = False, traces: bool = False) -> list[Garbage]:
    return find_garbage(runs / "spool", runs / "exitbench.duckdb", superseded=superseded, traces=traces)


def kinds(garbage: list[Garbage]) -> Counter[str]:
    return Counter(item.kind for item in garbage)


def is_whole(runs: Path) -> bool:
    return check(runs / "spool", runs / "exitbench.duckdb").problems == ()


def test_leftovers_of_killed_processes_are_found_and_removed(runs: Path, running: AttemptWriter) -> None:
    before = rows_by_table(runs / "exitbench.duckdb")
    garbage = find(runs)
    assert kinds(garbage) == {"killed attempt": 1, "quarantined attempt": 1, "leftover": 1}
    assert all(item.path.exists() for item in garbage)
    remove_garbage(garbage, runs / "exitbench.duckdb")
    assert not any(item.path.exists() for item in garbage)
    assert running.path.exists()
    assert find(runs) == []
    assert is_whole(runs)
    rebuild(runs / "spool", runs / "exitbench.duckdb")
    assert rows_by_table(runs / "exitbench.duckdb") == before


def test_superseded_attempts_are_removed_from_spool_and_database(runs: Path) -> None:
    states = latest_status(runs / "spool")
    garbage = [item for item in find(runs, superseded=True) if item.kind == "superseded attempt"]
    assert len(garbage) == 2
    remove_garbage(garbage, runs / "exitbench.duckdb")
    assert latest_status(runs / "spool") == states
    assert len([attempt for attempt in scan_spool(runs / "spool") if attempt.finished]) == 2
    assert is_whole(runs)
    before = rows_by_table(runs / "exitbench.duckdb")
    assert (len(before["attempt"]), len(before["token_exit"])) == (2, 3)
    rebuild(runs / "spool", runs / "exitbench.duckdb")
    assert rows_by_table(runs / "exitbench.duckdb") == before


def superseded(runs: Path) -> list[Path]:
    return [item.path for item in find(runs, superseded=True) if item.kind == "superseded attempt"]


def good_attempts(runs: Path) -> list[Path]:
    """Return the folders of the two successful attempts."""
    return [a.path for a in scan_spool(runs / "spool") if a.finished and read_status(a).status == "ok"]


def test_a_damaged_attempt_supersedes_nothing(runs: Path) -> None:
    first, latest = good_attempts(runs)
    (latest / "tokens.parquet").write_bytes(b"")
    assert superseded(runs) == []
    rebuild(runs / "spool", runs / "exitbench.duckdb", forget=True)
    assert first.name in str(rows_by_table(runs / "exitbench.duckdb")["attempt"])


@pytest.mark.parametrize("sql", ["DELETE FROM token_exit", "UPDATE attempt SET spool_sha256 = 'x'"])
def test_attempt_that_disagrees_with_its_database_rows_supersedes_nothing(sql: str, runs: Path) -> None:
    execute(runs, sql)
    assert superseded(runs) == []


def test_finding_superseded_attempts_requires_a_database(runs: Path) -> None:
    (runs / "exitbench.duckdb").unlink()
    with pytest.raises(UserError, match=r"exitbench\.duckdb"):
        find(runs, superseded=True)
    assert find(runs) != []


def test_superseded_attempts_contained_in_an_import_are_kept(runs: Path, tmp_path: Path) -> None:
    target = tmp_path / "there"
    with open_database(runs / "exitbench.duckdb") as database:
        write_snapshot(database.engine, tmp_path / "exported")
    merge(tmp_path / "exported", target / "spool", target / "exitbench.duckdb")
    merge(runs / "spool", target / "spool", target / "exitbench.duckdb")
    assert len(superseded(runs)) == 2
    assert superseded(target) == []


@pytest.mark.parametrize(
    "name", [".importing-{pid}", ".import-abc", "vocabularies/.0123-{pid}", "imports/.new-{pid}", "trainings/.x-{pid}"]
)
def test_partial_folder_is_removed_only_if_old_and_its_process_is_gone(name: str, runs: Path, dead_pid: int) -> None:
    def unfinished_file(pid: int) -> Path:
        folder = runs / "spool" / name.format(pid=pid)
        folder.mkdir(parents=True)
        (folder / "source.duckdb").write_bytes(bytes(1000))
        old(folder)
        return folder

    folder = unfinished_file(dead_pid)
    before = len(find(runs))
    os.utime(folder / "source.duckdb")
    assert len(find(runs)) == before - 1
    old(folder)
    (item,) = [item for item in find(runs) if item.path == folder]
    assert (item.kind, item.size_bytes) == ("leftover", 1000)
    remove_garbage([item], runs / "exitbench.duckdb")
    assert not folder.exists()
    if "{pid}" in name:
        running = unfinished_file(os.getpid())
        assert running not in [item.path for item in find(runs)]


def test_partially_copied_file_is_removed(runs: Path, dead_pid: int) -> None:
    file = runs / "spool" / f".importing-{dead_pid}"
    file.write_bytes(bytes(10))
    old(file)
    (item,) = [item for item in find(runs) if item.path == file]
    remove_garbage([item], runs / "exitbench.duckdb")
    assert (item.size_bytes, file.exists()) == (10, False)


def test_traces_are_removed_if_the_database_has_every_row(runs: Path) -> None:
    before, states = rows_by_table(runs / "exitbench.duckdb"), latest_status(runs / "spool")
    garbage = [item for item in find(runs, traces=True) if item.kind == "traces"]
    assert len(garbage) == 2  # those of failed attempts are in no database
    remove_garbage(garbage, runs / "exitbench.duckdb")
    assert sum(1 for _ in (runs / "spool").glob("??/*/*/tokens.parquet")) == 2
    assert rows_by_table(runs / "exitbench.duckdb") == before
    assert latest_status(runs / "spool") == states
    assert is_whole(runs)
    assert kinds(find(runs, traces=True))["traces"] == 0
    assert ingest(runs / "spool", runs / "exitbench.duckdb").quarantined == ()
    with pytest.raises(UserError, match="removed the traces of 2 attempts"):
        require_whole_spool(runs / "spool", runs / "exitbench.duckdb")
    rebuild(runs / "spool", runs / "exitbench.duckdb")  # as --force does
    after = rows_by_table(runs / "exitbench.duckdb")
    assert (after["attempt"], after["token_exit"]) == (before["attempt"], [])


@pytest.mark.parametrize(
    "change", ["DELETE FROM token_exit WHERE position = 1", "UPDATE attempt SET spool_sha256 = 'x'"]
)
def test_traces_that_disagree_with_their_database_rows_are_kept(runs: Path, change: str) -> None:
    execute(runs, change)
    assert kinds(find(runs, traces=True))["traces"] == 0


def test_tokens_of_given_texts_are_kept_for_later_comparisons(
    choice_spool: Path, choice_database: Path, tmp_path: Path
) -> None:
    shutil.copytree(choice_spool, tmp_path / "spool")
    shutil.copyfile(choice_database, tmp_path / "exitbench.duckdb")
    assert kinds(find(tmp_path, traces=True))["traces"] == 0


def test_damaged_traces_are_kept(runs: Path) -> None:
    for path in (runs / "spool").glob("??/*/*/tokens.parquet"):
        path.write_bytes(path.read_bytes()[:-1])
    assert kinds(find(runs, traces=True))["traces"] == 0


def test_traces_of_every_cell_kind_can_be_removed(few_spool: Path, few_database: Path, tmp_path: Path) -> None:
    spool = Path(shutil.copytree(few_spool, tmp_path / "spool"))
    path = Path(shutil.copyfile(few_database, tmp_path / "exitbench.duckdb"))
    remove_garbage(find_garbage(spool, path, superseded=False, traces=True), path)
    remaining = {file.stem for file in spool.glob("??/*/*/*.parquet")}
    assert remaining & {"samples", "metrics"} and not remaining & set(TRACES)
    assert check(spool, path).problems == ()
