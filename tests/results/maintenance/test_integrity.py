"""`db check`: every kind of damage to spool or database is named, and nothing else."""

import json
import shutil
from pathlib import Path

import duckdb
import pytest

from exitbench.errors import UserError
from exitbench.results.database.connection import open_database
from exitbench.results.ingest.ingest import ingest, rebuild
from exitbench.results.maintenance.integrity import check, require_whole_spool
from exitbench.results.side_records.derived import Rescore, record_rescore
from exitbench.results.spool.attempts import free_tables, read_attempt, read_status, scan_spool


@pytest.fixture(scope="session")
def intact(example_spool: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a runs folder with its database and a spool of some cells, one of which was rescored."""
    runs = tmp_path_factory.mktemp("whole")
    for prefix in sorted(example_spool.iterdir())[:8]:
        shutil.copytree(prefix, runs / "spool" / prefix.name)
    ingest(runs / "spool", runs / "exitbench.duckdb")
    with open_database(runs / "exitbench.duckdb") as opened:
        (attempt,) = opened.query("SELECT attempt_id AS a FROM sample ORDER BY a LIMIT 1")["a"].to_pylist()
        samples = opened.query("SELECT doc_key, scores, statistics FROM sample WHERE attempt_id = ?", [attempt])
        metrics = opened.query("SELECT * EXCLUDE (attempt_id, ordinal, scored_at) FROM metric LIMIT 1")
    record_rescore(runs / "spool", Rescore(attempt, "later", samples, metrics))
    ingest(runs / "spool", runs / "exitbench.duckdb")
    return runs


@pytest.fixture
def runs(intact: Path, tmp_path: Path) -> Path:
    """Return a copy of `intact` that a test may damage."""
    return Path(shutil.copytree(intact, tmp_path / "runs"))


def problems(runs: Path) -> tuple[str, ...]:
    return check(runs / "spool", runs / "exitbench.duckdb").problems


def traced(runs: Path) -> Path:
    """Return the folder of a successful attempt with answers."""
    attempts = (a for a in scan_spool(runs / "spool") if a.finished and read_status(a).status == "ok")
    return next(attempt.path for attempt in attempts if (attempt.path / "samples.parquet").exists())


def change(runs: Path, sql: str) -> None:
    with duckdb.connect(runs / "exitbench.duckdb") as connection:
        connection.execute(sql.format(id=traced(runs).name))


def test_intact_spool_and_database_have_no_problems(runs: Path) -> None:
    calls: list[tuple[int, int]] = []
    report = check(runs / "spool", runs / "exitbench.duckdb", lambda *counts: calls.append(counts))
    assert report.problems == ()
    finished = [attempt for attempt in scan_spool(runs / "spool") if attempt.finished]
    assert report.attempts == len(finished)
    assert calls[-1] == (len(finished), len(finished))
    assert report.files == sum(len(read_attempt(attempt.path).digests) for attempt in finished)
    with open_database(runs / "exitbench.duckdb") as opened:
        names = opened.query("SELECT table_name AS t FROM duckdb_tables()")["t"].to_pylist()
        assert report.rows == sum(opened.query(f"FROM {name}").num_rows for name in names)


@pytest.mark.parametrize("name", ["tokens.parquet", "samples.parquet", "cell.json", "env.json", "status.json", "DONE"])
def test_modified_file_is_reported(runs: Path, name: str) -> None:
    path = traced(runs) / name
    path.write_bytes(path.read_bytes()[:-20])
    (problem,) = problems(runs)
    assert str(path) in problem


def test_modified_digest_list_is_reported(runs: Path) -> None:
    done_file = traced(runs) / "DONE"
    digests = json.loads(done_file.read_text())
    del digests["tokens.parquet"]
    done_file.write_text(json.dumps(digests))
    named = problems(runs)
    assert all("exitbench db rebuild" in problem for problem in named)
    assert ["DONE: is not what" in named[0], "other digests of tokens.parquet" in named[1], len(named)] == [
        True,
        True,
        3,
    ]


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("DELETE FROM token_exit WHERE attempt_id = '{id}' AND position = 1", "token_exit has "),
        ("DELETE FROM metric WHERE attempt_id = '{id}' AND ordinal = 0", "metric has "),
        ("UPDATE attempt SET spool_sha256 = 'x' WHERE attempt_id = '{id}'", "is not what the database was filled from"),
        ("UPDATE attempt_file SET sha256 = 'x' WHERE attempt_id = '{id}' AND name = 'env.json'", "digests of env.json"),
        (
            "INSERT INTO token_exit SELECT * REPLACE ('nobody' AS attempt_id) FROM token_exit LIMIT 3",
            "token_exit: 3 rows",
        ),
        ("UPDATE cell SET model_id = 'nobody'", "of a model_id that model_artifact does not have, such as nobody"),
        ("UPDATE attempt SET env_id = 'nobody'", "of a env_id that environment does not have"),
    ],
)
def test_rows_that_disagree_with_their_files_are_reported(runs: Path, sql: str, message: str) -> None:
    change(runs, sql)
    (problem,) = problems(runs)
    assert message in problem
    assert "exitbench db rebuild" in problem


def test_rebuild_mends_rows_that_disagree_with_their_files(runs: Path) -> None:
    change(runs, "UPDATE cell SET model_id = 'nobody'")
    assert problems(runs)
    rebuild(runs / "spool", runs / "exitbench.duckdb")
    assert problems(runs) == ()


def test_duplicate_row_is_reported(runs: Path) -> None:
    change(runs, "INSERT INTO token_exit FROM token_exit WHERE attempt_id = '{id}' AND position = 1 LIMIT 1")
    twice, more = problems(runs)
    assert f"1 row more than once, such as attempt_id {traced(runs).name}, doc_key " in twice
    assert "token_exit has" in more


def test_attempt_missing_from_spool_or_database_is_reported(runs: Path) -> None:
    folder = traced(runs)
    folder.rename(runs / "away")
    (problem,) = problems(runs)
    assert f"1 attempt that the spool lacks, such as {folder.name}" in problem
    with pytest.raises(
        UserError, match=rf"is not replaced: it has 1 attempt .*{folder.name}\. `exitbench export` .*--force"
    ):
        rebuild(runs / "spool", runs / "exitbench.duckdb")
    rebuild(runs / "spool", runs / "exitbench.duckdb", forget=True)
    (runs / "away").rename(folder)
    (problem,) = problems(runs)
    assert problem == f"{folder}: is not in the database; the next run adds it."


def test_damaged_rescore_is_reported(runs: Path) -> None:
    (path,) = (runs / "spool" / "rescores").glob("*/*/samples.parquet")
    path.write_bytes(path.read_bytes()[:-20])
    (problem,) = problems(runs)
    assert str(path) in problem


def test_overwritten_database_blocks_are_reported(runs: Path) -> None:
    path = runs / "exitbench.duckdb"
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(12288)
        file.write(bytes(size - 12288))
    (problem,) = problems(runs)
    assert "is damaged" in problem
    assert "exitbench db rebuild" in problem


def test_removed_traces_are_checked_against_their_recorded_row_count(runs: Path) -> None:
    folder = traced(runs)
    rows = sum(batch.num_rows for batch in read_attempt(folder).batches("tokens"))
    free_tables(folder, {"tokens": rows})
    assert not (folder / "tokens.parquet").exists()
    assert problems(runs) == ()
    with pytest.raises(UserError, match=r"removed the traces of 1 attempt,.*--force"):
        require_whole_spool(runs / "spool", runs / "exitbench.duckdb")
    with duckdb.connect(runs / "exitbench.duckdb") as connection:
        connection.execute("DELETE FROM token_exit WHERE attempt_id = ?", [folder.name])
    (problem,) = problems(runs)
    assert f"token_exit has 0 rows of it, its file {rows}" in problem
