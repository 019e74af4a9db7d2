"""Snapshots: rows are unchanged after import, licensed texts are left out, and damage or contradictions are refused."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest
from stored_rows import imported_rows

from exitbench.errors import UserError
from exitbench.results.database.catalogue import ATTEMPT
from exitbench.results.database.connection import Database, open_database
from exitbench.results.ingest import snapshot
from exitbench.results.ingest.manifest import MANIFEST, Manifest
from exitbench.results.ingest.snapshot import load_snapshot, write_snapshot
from exitbench.results.queries import saved_query
from exitbench.results.tables import SCHEMA_VERSION


@pytest.fixture
def snapshot_folder(few_snapshot: Path, tmp_path: Path) -> Path:
    """Return a copy of the example's snapshot that a test may change."""
    return Path(shutil.copytree(few_snapshot, tmp_path / "taken"))


@pytest.fixture
def empty(tmp_path: Path) -> Database:
    return open_database(tmp_path / "other.duckdb", read_only=False)


@pytest.mark.parametrize("name", ["a=1", "r[1]", "star*", "it's one"])
def test_special_characters_in_a_snapshot_path_are_literal(
    name: str, snapshot_folder: Path, empty: Database, tmp_path: Path
) -> None:
    for other in ("r1", "starring"):
        shutil.copytree(snapshot_folder, tmp_path / other)
        damage(tmp_path / other / "attempt.parquet")
    with empty:
        added = load_snapshot(empty.engine, snapshot_folder.rename(tmp_path / name))
        attempts = imported_rows(empty)["attempt"]
        assert len(attempts) == len(set(attempts)) == added


def test_snapshot_hides_home_folder_paths(few_database: Path, tmp_path: Path) -> None:
    copy = shutil.copy(few_database, tmp_path / "copy.duckdb")
    with duckdb.connect(str(copy)) as connection:
        connection.execute("UPDATE attempt SET log_tail = 'File \"/home/grace/x.py\"', reason = NULL")
    with open_database(Path(copy)) as database:
        write_snapshot(database.engine, tmp_path / "taken")
    written = pq.read_table(tmp_path / "taken" / "attempt.parquet", columns=["log_tail", "reason"])
    assert set(written["log_tail"].to_pylist()) == {'File "~/x.py"'}
    assert set(written["reason"].to_pylist()) == {None}


def test_the_manifest_counts_and_digests_every_table(snapshot_folder: Path) -> None:
    manifest = json.loads((snapshot_folder / MANIFEST).read_text())
    assert manifest["schema_version"] == SCHEMA_VERSION
    assert {path.stem for path in snapshot_folder.glob("*.parquet")} == set(manifest["tables"])
    for name, table in manifest["tables"].items():
        path = snapshot_folder / f"{name}.parquet"
        assert table["rows"] == pq.read_metadata(path).num_rows
        assert table["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert manifest["tables"]["attempt"]["rows"] > 0


def test_a_database_filled_from_a_snapshot_has_the_same_rows(
    snapshot_folder: Path, empty: Database, few_database: Path
) -> None:
    with open_database(few_database) as database:
        expected = imported_rows(database)
    with empty:
        assert load_snapshot(empty.engine, snapshot_folder) == len(expected["attempt"])
        assert imported_rows(empty) == expected
        assert load_snapshot(empty.engine, snapshot_folder) == 0
        assert imported_rows(empty) == expected


def test_large_tables_are_written_in_row_groups_with_every_row(
    few_database: Path, few_snapshot: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "_BATCH_ROWS", 10)
    monkeypatch.setattr(snapshot, "_GROUP_BYTES", 2_000)
    with open_database(few_database) as database:
        write_snapshot(database.engine, tmp_path / "again")
    for table in ("token_exit", "sample"):
        assert pq.read_metadata(tmp_path / "again" / f"{table}.parquet").num_row_groups > 1
        assert pq.read_metadata(few_snapshot / f"{table}.parquet").num_row_groups == 1
        expected = pq.read_table(few_snapshot / f"{table}.parquet")
        assert pq.read_table(tmp_path / "again" / f"{table}.parquet") == expected


def test_snapshot_bytes_do_not_depend_on_row_order(few_database: Path, snapshot_folder: Path, tmp_path: Path) -> None:
    copy = shutil.copy(few_database, tmp_path / "reversed.duckdb")
    with duckdb.connect(str(copy)) as connection:
        for table in ("token_exit", "document_exit", "probe_token"):
            connection.execute(f"CREATE TEMP TABLE other AS FROM {table}; DELETE FROM {table}")
            connection.execute(f"INSERT INTO {table} FROM other ORDER BY rowid DESC; DROP TABLE other")
    with open_database(Path(copy)) as database:
        write_snapshot(database.engine, tmp_path / "again")
    assert (tmp_path / "again" / MANIFEST).read_bytes() == (snapshot_folder / MANIFEST).read_bytes()


@pytest.fixture
def licensed(example_database: Path, tmp_path: Path) -> Database:
    """Return the example database as if SAMSum and SQuAD had been read from local files, whose texts are not shared."""
    path = tmp_path / "licensed.duckdb"
    shutil.copyfile(example_database, path)
    database = open_database(path, read_only=False)
    with database.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE dataset_artifact SET source = 'local' WHERE task IN ('samsum', 'squad')")
        connection.exec_driver_sql("UPDATE sample SET input_text = 'read', gold_text = 'right'")  # as of an encoder
        connection.exec_driver_sql("INSERT INTO token_text VALUES ('0123', 7, '_the', true)")
        connection.exec_driver_sql(
            "INSERT INTO prompt_token SELECT DISTINCT attempt_id, doc_key, 1, 7 FROM probe_token"  # as if recorded
        )
    return database


def test_answers_without_exported_token_ids_are_not_called_identical(
    licensed: Database, empty: Database, tmp_path: Path
) -> None:
    query = saved_query("first_divergence").sql
    with licensed:
        task_labels = set(licensed.query(query)["task_label"].to_pylist())
        write_snapshot(licensed.engine, tmp_path / "taken", ())
    with empty:
        load_snapshot(empty.engine, tmp_path / "taken")
        assert set(empty.query(query)["task_label"].to_pylist()) == task_labels - {"squad", "samsum"} != task_labels


@pytest.mark.parametrize(
    ("redistributable", "expected_omissions"), [((), {"samsum", "squad"}), (("squad",), {"samsum"}), (None, set())]
)
def test_texts_of_non_redistributable_data_are_left_out(
    redistributable: tuple[str, ...] | None,
    expected_omissions: set[str],
    licensed: Database,
    empty: Database,
    tmp_path: Path,
) -> None:
    with licensed:
        report = write_snapshot(licensed.engine, tmp_path / "taken", redistributable)
    assert set(report.texts_left_out_of) == expected_omissions
    of_task = "JOIN attempt USING (attempt_id) JOIN cell USING (cell_id) JOIN dataset_artifact USING (data_id)"
    with empty:
        load_snapshot(empty.engine, tmp_path / "taken")
        texts = empty.query(f"SELECT DISTINCT task FROM sample {of_task} WHERE output_text = ''")["task"].to_pylist()
        inputs = empty.query(
            f"SELECT DISTINCT task FROM sample {of_task} WHERE input_text IS NULL AND gold_text IS NULL"
        )
        golds = empty.query(f"SELECT DISTINCT task FROM probe_token {of_task} WHERE gold_token_id IS NULL")
        prompts = empty.query(f"SELECT DISTINCT task FROM prompt_token {of_task} WHERE token_id IS NULL")
        logs = empty.query("SELECT count(*) AS n FROM attempt WHERE log_tail IS NOT NULL")
        ids = empty.query(f"SELECT DISTINCT task FROM sample {of_task} WHERE len(output_ids) < n_output")
        token_texts = empty.query("SELECT count(*) AS n FROM token_text WHERE tokenizer_sha256 = '0123'")
        traced = empty.query(f"SELECT DISTINCT task FROM token_exit {of_task} WHERE token_id IS NOT NULL")
    assert set(texts) == set(golds["task"].to_pylist()) == set(ids["task"].to_pylist()) == expected_omissions
    assert set(inputs["task"].to_pylist()) == expected_omissions
    assert set(prompts["task"].to_pylist()) == expected_omissions
    assert token_texts["n"].to_pylist() == [0 if expected_omissions else 1]
    assert set(traced["task"].to_pylist()) >= expected_omissions
    assert logs["n"].to_pylist() == [
        0 if "squad" in expected_omissions else 1
    ]  # the failing cell of the example is SQuAD's


@pytest.mark.parametrize("redistributable", [(), None])
def test_given_token_ids_are_left_out_together_with_their_texts(
    redistributable: tuple[str, ...] | None, licensed: Database, empty: Database, tmp_path: Path
) -> None:
    keeps_all = redistributable is None
    with licensed:
        with licensed.engine.begin() as connection:  # as of texts that a task gives
            connection.exec_driver_sql("UPDATE token_exit SET choice = 1 WHERE position > 1")
            connection.exec_driver_sql("UPDATE probe_token SET choice = 1 WHERE position > 1")
        write_snapshot(licensed.engine, tmp_path / "taken", redistributable)
    with empty:
        load_snapshot(empty.engine, tmp_path / "taken")
        for table in ("token_exit", "probe_token"):
            _, rows = empty.rows(
                "SELECT task IN ('samsum', 'squad'), choice IS NOT NULL, count(token_id) > 0, "
                f"count(token_id) IN (0, count(*)) FROM {table} JOIN attempt USING (attempt_id) "
                "JOIN cell USING (cell_id) JOIN dataset_artifact USING (data_id) GROUP BY 1, 2 ORDER BY 1, 2"
            )
            assert rows == [
                (False, False, True, True),
                (False, True, True, True),
                (True, False, True, True),
                (True, True, keeps_all, True),
            ], table


def test_existing_folder_is_not_overwritten(snapshot_folder: Path, few_database: Path) -> None:
    with open_database(few_database) as database, pytest.raises(UserError, match="exists already"):
        write_snapshot(database.engine, snapshot_folder)


def test_a_full_disk_leaves_no_folder(few_database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Path] = []

    def write_two(_duck: Any, _query: str, path: Path, _names_paths: object) -> int:
        if len(written) == 2:
            raise OSError(28, "No space left on device")
        path.write_bytes(b"")
        written.append(path)
        return 0

    monkeypatch.setattr(snapshot, "_write_table", write_two)
    (tmp_path / "out").mkdir()
    with open_database(few_database) as database, pytest.raises(UserError, match="No space left on device"):
        write_snapshot(database.engine, tmp_path / "out" / "taken")
    assert len(written) == 2
    assert list((tmp_path / "out").iterdir()) == []


def damage(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1] + b"x")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda folder: damage(folder / "metric.parquet"), "metric.parquet: was changed after it was written"),
        (lambda folder: (folder / "cell.parquet").unlink(), "cell.parquet: is missing"),
        (lambda folder: (folder / MANIFEST).write_text('{"format": "other"}'), "format is 'other'"),
        (lambda folder: (folder / MANIFEST).write_text("{"), "is not JSON"),
    ],
)
def test_damaged_snapshot_is_refused_and_no_row_is_added(
    change: Callable[[Path], None], says: str, snapshot_folder: Path, empty: Database
) -> None:
    change(snapshot_folder)
    with empty:
        with pytest.raises(UserError, match=says):
            load_snapshot(empty.engine, snapshot_folder)
        assert not any(imported_rows(empty).values())


def test_attempt_with_conflicting_files_is_refused_and_nothing_is_added(snapshot_folder: Path, empty: Database) -> None:
    with empty:
        load_snapshot(empty.engine, snapshot_folder)
        with empty.engine.begin() as connection:
            (attempt_id,) = connection.exec_driver_sql("SELECT min(attempt_id) FROM attempt").one()
            connection.exec_driver_sql("DELETE FROM attempt WHERE attempt_id > (SELECT min(attempt_id) FROM attempt)")
            connection.execute(ATTEMPT.update().values(spool_sha256="0" * 64))
        with pytest.raises(UserError, match=f"already here with different files: 1 attempt, such as {attempt_id}"):
            load_snapshot(empty.engine, snapshot_folder)
        assert len(imported_rows(empty)["attempt"]) == 1


@pytest.mark.parametrize("version", [SCHEMA_VERSION + 1, 22, "1", None])
def test_a_snapshot_of_another_schema_is_refused(snapshot_folder: Path, version: object) -> None:
    manifest = json.loads((snapshot_folder / MANIFEST).read_text())
    (snapshot_folder / MANIFEST).write_text(json.dumps({**manifest, "schema_version": version}))
    with pytest.raises(UserError, match=f"schema_version is '{version}'; .* reads {SCHEMA_VERSION} only"):
        Manifest.read(snapshot_folder)
