"""A lake contains the rows of its databases, also after concurrent exports and killed exporters."""

import re
import shutil
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import duckdb
import pytest
from stored_rows import RowsByTable, rows_by_table

from exitbench.results.database.connection import open_database
from exitbench.results.ingest.ingest import ingest
from exitbench.results.lake import reading, tables
from exitbench.results.lake.export import export_lake
from exitbench.results.lake.reading import open_lake
from exitbench.results.queries import saved_query
from exitbench.results.spool.attempts import scan_spool

deltalake = pytest.importorskip("deltalake", reason="deltalake is not installed (pip install 'exitbench[lake]')")

EXPORTERS = Path(__file__).with_name("exporters.py")
SIGKILL = -9

QUERIES = ("best_settings", "what_to_use", "block_curves", "exit_by_position", "signal_quality", "speed_beyond_noise")


def files(lake: Path) -> dict[str, int]:
    """Return the modification time of every file, by path."""
    return {str(path.relative_to(lake)): path.stat().st_mtime_ns for path in lake.rglob("*") if path.is_file()}


def exported(how: str, database: Path, lake: Path, count: int) -> list[int]:
    """Run exporters.py and return the exit codes of its processes."""
    command = [sys.executable, str(EXPORTERS), how, str(database), str(lake), str(count)]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "Traceback" not in process.stderr, process.stderr
    return [int(code) for code in process.stdout.split()]


def test_a_lake_has_every_row_of_the_database(few_lake: Path, few_rows: RowsByTable) -> None:
    with open_lake(str(few_lake)) as lake:
        assert rows_by_table(lake) == few_rows
    assert sum(map(len, few_rows.values())) > 1000 and few_rows["quality_difference"]


def test_saved_queries_give_equal_rows_on_lake_and_database(few_lake: Path, few_database: Path) -> None:
    wrong = []
    with open_lake(str(few_lake)) as lake, open_database(few_database) as database:
        for query in map(saved_query, QUERIES):
            local_rows, its = (opened.rows(query.sql, query.defaults)[1] for opened in (database, lake))
            if rounded(local_rows) != rounded(its):
                wrong.append(query.name)
    assert not wrong


def rounded(rows: list[tuple[Any, ...]]) -> list[str]:
    """Return rows as texts, without the last digits of their numbers, which depend on the order of summation."""
    return sorted(re.sub(r"(\d\.\d{6})\d+(e-?\d+)?", r"\1", repr(row)) for row in rows)


def test_exporting_again_writes_nothing(few_lake: Path, few_database: Path) -> None:
    before = files(few_lake)
    with open_database(few_database) as database:
        exported = export_lake(database.duck, str(few_lake))
    assert exported.added == 0
    assert exported.existing > 0
    assert files(few_lake) == before


def test_later_export_adds_new_attempts(
    few_spool: Path, few_database: Path, few_rows: RowsByTable, tmp_path: Path
) -> None:
    with open_database(few_database) as database:
        part = "dense_rank() OVER (ORDER BY model_id, data_id) % 2"  # as shards: a model on a task is on one machine
        parts = f"SELECT attempt_id, {part} FROM attempt JOIN cell USING (cell_id)"
        part_of = dict(database.duck.execute(parts).fetchall())
    halves = [[attempt for attempt in scan_spool(few_spool) if part_of[attempt.attempt_id] == part] for part in (0, 1)]
    assert all(halves)
    for number, half in enumerate(halves):
        for attempt in half:
            shutil.copytree(attempt.path, tmp_path / str(number) / attempt.path.relative_to(few_spool))
        ingest(tmp_path / str(number), tmp_path / f"{number}.duckdb")
        with open_database(tmp_path / f"{number}.duckdb") as database:
            assert export_lake(database.duck, str(tmp_path / "lake")).added == len(half)
    with open_lake(str(tmp_path / "lake")) as lake:
        assert rows_by_table(lake) == few_rows


@pytest.mark.parametrize("count", [4, pytest.param(10, marks=pytest.mark.exhaustive)])
def test_concurrent_exports_lose_no_rows(
    count: int, fewer_database: Path, fewer_rows: RowsByTable, tmp_path: Path
) -> None:
    assert exported("together", fewer_database, tmp_path / "lake", count) == [0] * count
    with open_lake(str(tmp_path / "lake")) as lake:
        assert rows_by_table(lake) == fewer_rows


def test_table_that_another_exporter_is_creating_does_not_exist_yet(
    fewer_database: Path, fewer_rows: RowsByTable, tmp_path: Path
) -> None:
    log = Path(tables.table_url(str(tmp_path), "attempt"), "_delta_log")
    log.mkdir(parents=True)
    (log / f"_commit_{uuid.uuid4()}.json.tmp").touch()
    assert tables.open_table(str(tmp_path), "attempt") is None
    with open_database(fewer_database) as database:
        export_lake(database.duck, str(tmp_path))
    with open_lake(str(tmp_path)) as lake:
        assert rows_by_table(lake) == fewer_rows


@pytest.mark.parametrize("count", [5, pytest.param(10, marks=pytest.mark.exhaustive)])
def test_killed_exports_leave_only_complete_attempts(
    count: int, few_database: Path, few_rows: RowsByTable, tmp_path: Path
) -> None:
    assert exported("killed", few_database, tmp_path / "lake", count) == [SIGKILL] * count
    with open_lake(str(tmp_path / "lake")) as lake:
        lake_rows = rows_by_table(lake)
    attempts = {row.split("'")[1] for row in lake_rows["attempt"]}
    assert 0 < len(attempts) < len(few_rows["attempt"])
    for table in ("token_exit", "sample", "probe_token", "metric"):
        local_rows = [row for row in few_rows[table] if row.split("'")[1] in attempts]
        assert lake_rows[table] == local_rows, table
    with open_database(few_database) as database:
        export_lake(database.duck, str(tmp_path / "lake"))
    with open_lake(str(tmp_path / "lake")) as lake:
        assert rows_by_table(lake) == few_rows


def test_table_is_empty_if_no_attempt_of_it_is_complete(few_lake: Path) -> None:
    table = tables.open_table(str(few_lake), "probe_token")
    assert table is not None and table.files
    assert duckdb.sql(reading._select(duckdb.default_connection(), table, set())).fetchall() == []


@pytest.mark.parametrize(
    ("query", "table"),
    [
        ("SELECT count(*) FROM token_trace WHERE {}", "token_exit"),
        ("SELECT avg(stable_from) FROM probe_trace WHERE {}", "probe_token"),
        ("SELECT avg(p1) FROM layer_trace WHERE {}", "probe_token"),
    ],
)
def test_query_opens_only_files_of_the_requested_runs(
    query: str, table: str, few_database: Path, few_lake: Path, tmp_path: Path
) -> None:
    lake = Path(shutil.copytree(few_lake, tmp_path / "lake"))
    (folder,) = lake.glob(f"schema=*/{table}")
    first, *files = deltalake.DeltaTable(folder).file_uris()  # DuckDB opens the first to see its columns
    with open_database(few_database) as database:
        names = f"FROM run_names WHERE attempt_id = '{Path(first).parent.name.partition('=')[2]}'"
        model, task = database.duck.execute(f"SELECT model, task_label {names}").fetchall()[0]
        condition = f"model = '{model}' AND task_label = '{task}'"
        expected = database.duck.execute(query.format(condition)).fetchall()
        runs = f"SELECT attempt_id FROM run_names WHERE {condition}"
        needed = {attempt for (attempt,) in database.duck.execute(runs).fetchall()}
    with open_lake(str(lake)) as opened:
        other_files = [file for file in files if not any(f"attempt_id={attempt}/" in file for attempt in needed)]
        for file in other_files:
            Path(file.removeprefix("file://")).write_bytes(b"no Parquet")
        assert opened.duck.execute(query.format(condition)).fetchall() == expected
    assert other_files


def test_non_redistributable_texts_are_not_exported(fewer_database: Path, tmp_path: Path) -> None:
    licensed = tmp_path / "licensed.duckdb"
    shutil.copyfile(fewer_database, licensed)
    with duckdb.connect(str(licensed)) as duck:
        duck.execute("UPDATE dataset_artifact SET source = 'hub'")
    with open_database(licensed) as database:
        tasks = {task for (task,) in database.duck.execute("SELECT DISTINCT task FROM dataset_artifact").fetchall()}
        exported = export_lake(database.duck, str(tmp_path / "none"), redistributable=())
        export_lake(database.duck, str(tmp_path / "all"), redistributable=tasks)
    assert exported.texts_left_out_of
    with open_lake(str(tmp_path / "none")) as none, open_lake(str(tmp_path / "all")) as every:
        texts = "SELECT count(*) FROM sample WHERE output_text <> ''"
        assert none.duck.execute(texts).fetchall() < every.duck.execute(texts).fetchall()


def test_lake_table_is_readable_as_a_plain_delta_table(few_lake: Path, few_rows: RowsByTable) -> None:
    """Polars, Spark and Trino read it in this way: as a Delta table with the partition as a column."""
    (folder,) = few_lake.glob("schema=*/token_exit")
    table = deltalake.DeltaTable(folder).to_pyarrow_dataset().to_table(columns=["attempt_id", "exit_layer"])
    assert table.num_rows == len(few_rows["token_exit"])
