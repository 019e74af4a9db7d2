"""Damaged database files: every command suggests a rebuild, and a rebuild restores every row."""

import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from stored_rows import rows_by_table

from exitbench.results.database.connection import DamagedDatabase, open_database
from exitbench.results.ingest.ingest import ingest, rebuild
from exitbench.results.side_records.derived import Rescore, record_rescore

HEADERS = 3 * 4096

KILLED_WRITER = """
import os, sys
from pathlib import Path
from exitbench.results.database.connection import open_database
from exitbench.results.ingest.load import SpoolLoader
database = open_database(Path(sys.argv[1]), read_only=False)
SpoolLoader(Path(sys.argv[2]), None).load(database.engine)
os.kill(os.getpid(), 9)
"""


@pytest.fixture
def path(few_database: Path, tmp_path: Path) -> Path:
    """Return an undamaged copy of the small example database."""
    return shutil.copyfile(few_database, tmp_path / "exitbench.duckdb")


def write(path: Path) -> None:
    open_database(path, read_only=False).close()


def overwrite(path: Path, start: int, size: int) -> None:
    """Overwrite bytes with random ones.

    A constant would not do: DuckDB's checksum misses equal changes of equal words, as in a column with one value.
    """
    with path.open("r+b") as file:
        file.seek(start)
        file.write(random.Random(start).randbytes(size))


def test_database_truncated_anywhere_suggests_a_rebuild(path: Path, few_spool: Path) -> None:
    before, content = rows_by_table(path), path.read_bytes()
    rng = random.Random(5)
    for size in (0, 12, 100, 4096, 12288, *(rng.randrange(int(0.9 * len(content))) for _ in range(6))):
        for action in (rows_by_table, write):
            path.write_bytes(content[:size])
            with pytest.raises(DamagedDatabase, match="exitbench db rebuild"):
                action(path)
    rebuild(few_spool, path)
    assert rows_by_table(path) == before


def test_overwritten_block_is_never_read_as_rows(path: Path, few_spool: Path) -> None:
    before, content = rows_by_table(path), path.read_bytes()
    part = (len(content) - HEADERS) // 8
    offered = 0
    for index in range(8):
        path.write_bytes(content)
        overwrite(path, HEADERS + index * part, part)
        try:
            assert rows_by_table(path) == before  # the blocks are free
            ingest(few_spool, path)
        except DamagedDatabase:
            offered += 1
    assert offered > 1
    rebuild(few_spool, path)
    assert rows_by_table(path) == before


@pytest.fixture(scope="module")
def killed(few_spool: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a database and its write-ahead log, which a killed writer left; tests copy it."""
    path = tmp_path_factory.mktemp("killed") / "exitbench.duckdb"
    write(path)
    writer = subprocess.run([sys.executable, "-c", KILLED_WRITER, path, few_spool], check=False)
    assert writer.returncode == -signal.SIGKILL
    return path.parent


@pytest.fixture
def log(killed: Path, tmp_path: Path) -> Path:
    """Return the write-ahead log of a database whose writer was killed; it contains the rows of every attempt."""
    shutil.copytree(killed, tmp_path, dirs_exist_ok=True)
    log = tmp_path / "exitbench.duckdb.wal"
    assert log.stat().st_size > 50_000
    return log


def test_rows_lost_by_a_killed_writer_are_ingested_again(log: Path, few_spool: Path) -> None:
    path = log.with_suffix("")
    content, database = log.read_bytes(), path.read_bytes()
    expected = rows_by_table(path)
    rng = random.Random(6)
    for size in (0, rng.randrange(len(content)), len(content) - 1):
        path.write_bytes(database)
        log.write_bytes(content[:size])
        ingest(few_spool, path)
        assert rows_by_table(path) == expected, size


def test_overwritten_write_ahead_log_suggests_a_rebuild(log: Path, few_spool: Path) -> None:
    """If the length in an entry points beyond the end of the write-ahead log, DuckDB takes the log for truncated."""
    path = log.with_suffix("")
    content, database, expected = log.read_bytes(), path.read_bytes(), rows_by_table(path)
    offered = 0
    for part in range(1, 7):
        for action in (rows_by_table, write):
            path.write_bytes(database)
            log.write_bytes(content)
            overwrite(log, part * len(content) // 7, 64)
            try:
                action(path)
            except DamagedDatabase as error:
                assert "exitbench db rebuild" in str(error)
                offered += 1
            else:
                ingest(few_spool, path)
                assert rows_by_table(path) == expected
    assert offered > 6
    rebuild(few_spool, path)
    assert not log.exists()
    assert rows_by_table(path) == expected


def test_database_damage_does_not_quarantine_valid_rescores(
    path: Path, few_spool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_database(path) as opened:
        (attempt,) = opened.query("SELECT attempt_id FROM sample LIMIT 1")["attempt_id"].to_pylist()
        samples = opened.query("SELECT doc_key, scores, statistics FROM sample WHERE attempt_id = ?", [attempt])
        query = (
            "SELECT * EXCLUDE (attempt_id, ordinal, scored_at) REPLACE ('later' AS metric_version) FROM metric LIMIT 1"
        )
        metrics = opened.query(query)
    record_rescore(tmp_path / "spool", Rescore(attempt, "later", samples, metrics))
    with monkeypatch.context() as patched:
        corrupt = "SELECT error('Corrupt database file')"
        patched.setattr("exitbench.results.side_records.derived.insert_rows", lambda c, *_: c.exec_driver_sql(corrupt))
        with pytest.raises(DamagedDatabase):
            ingest(tmp_path / "spool", path)
    assert list((tmp_path / "spool" / "rescores").glob("*/*/DONE"))
    assert ingest(tmp_path / "spool", path).quarantined == ()
    assert len(rows_by_table(path)["sample_rescore"]) == len(samples)
