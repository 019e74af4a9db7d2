"""Importing results: all rows arrive once and survive a rebuild, and contradictions are refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from stored_rows import imported_rows

from exitbench.errors import UserError
from exitbench.results.database.catalogue import ATTEMPT, CELL
from exitbench.results.database.connection import open_database
from exitbench.results.ingest.importing import kind_of, merge
from exitbench.results.ingest.ingest import ingest, rebuild
from exitbench.results.ingest.manifest import Manifest
from exitbench.results.ingest.snapshot import write_snapshot
from exitbench.results.side_records.derived import TAG_SCHEMA, Rescore, record_rescore, record_tags
from exitbench.results.spool.attempts import free_tables, scan_spool


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    return tmp_path / "here" / "spool"


@pytest.fixture
def path(spool: Path) -> Path:
    return spool.parent / "exitbench.duckdb"


def snapshot_of(path: Path, folder: Path) -> Path:
    """A snapshot of a database."""
    with open_database(path) as database:
        write_snapshot(database.engine, folder)
    return folder


@pytest.fixture
def imported(few_snapshot: Path, few_database: Path, spool: Path, path: Path) -> Path:
    """Return an imported snapshot in the spool; the database has its rows."""
    folder = Path(shutil.copytree(few_snapshot, spool / "imports" / "0123456789abcdef"))
    shutil.copyfile(few_database, path)
    return folder


@pytest.fixture(params=["spool", "snapshot"])
def source(request: pytest.FixtureRequest, few_spool: Path, few_snapshot: Path) -> Path:
    """Return the example as a spool and as a snapshot, the two forms that can be imported."""
    return few_spool if request.param == "spool" else few_snapshot


def test_import_source_kind_is_detected_from_content(few_spool: Path, few_snapshot: Path, benchmarks: Path) -> None:
    assert [kind_of(folder) for folder in (few_spool, few_snapshot, benchmarks)] == ["spool", "snapshot", "benchmarks"]


@pytest.mark.parametrize("content", ["ours", "another program's", "another schema"])
def test_importing_a_database_is_refused_with_the_export_command(
    content: str, few_database: Path, tmp_path: Path, spool: Path, path: Path
) -> None:
    other = tmp_path / "results.json"  # by its content, whatever its name
    if content == "another program's":
        with duckdb.connect(str(other)) as connection:
            connection.execute("CREATE TABLE t (x INTEGER)")
    else:
        shutil.copyfile(few_database, other)
    if content == "another schema":
        with duckdb.connect(str(other)) as connection:
            connection.execute("UPDATE schema_version SET version = 10000")
    before = other.read_bytes()
    says = rf"^{other} is a database, .* `exitbench export FOLDER --database results\.json`, and import that folder\.$"
    with pytest.raises(UserError, match=says):
        merge(other, spool, path)
    assert other.read_bytes() == before
    assert not spool.exists()


@pytest.mark.parametrize(
    ("content", "says"), [(None, "does not exist"), ("{}", "is nothing that"), ("", "is nothing that")]
)
def test_unsupported_import_source_is_refused(
    content: str | None, says: str, tmp_path: Path, spool: Path, path: Path
) -> None:
    if content is not None:
        (tmp_path / "source").write_text(content)
    with pytest.raises(UserError, match=f"{says}.* Allowed: a spool folder"):
        merge(tmp_path / "source", spool, path)
    assert not spool.exists()


def test_importing_a_runs_folder_suggests_its_spool(few_spool: Path, spool: Path, path: Path) -> None:
    with pytest.raises(UserError, match=f"Did you mean {few_spool}"):
        merge(few_spool.parent, spool, path)


def test_import_adds_every_row_once_and_survives_a_rebuild(
    source: Path, spool: Path, path: Path, few_database: Path
) -> None:
    expected = imported_rows(few_database)
    report = merge(source, spool, path)
    assert (report.added, report.existing, report.problems) == (len(expected["attempt"]), 0, ())
    assert imported_rows(path) == expected
    report = merge(source, spool, path)
    assert (report.added, report.existing, report.problems) == (0, len(expected["attempt"]), ())
    rebuild(spool, path)
    assert imported_rows(path) == expected
    assert [entry.name for entry in spool.iterdir() if entry.name.startswith(".")] == []


VERSION = "qa-2(other)"


@pytest.fixture(scope="module")
def rescored(few_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the example in which two attempts also have scores of another metric version, and tags."""
    path = Path(shutil.copyfile(few_database, tmp_path_factory.mktemp("rescored") / "rescored.duckdb"))
    with open_database(path, read_only=False) as database, database.engine.begin() as connection:
        two = "WHERE attempt_id IN (SELECT DISTINCT attempt_id FROM metric ORDER BY 1 LIMIT 2)"
        renamed = f"'{VERSION}' AS metric_version, TIMESTAMP '2026-05-05' AS scored_at"
        connection.exec_driver_sql(
            "INSERT INTO sample_rescore BY NAME "
            f"SELECT attempt_id, doc_key, scores, statistics, {renamed} FROM sample {two}"
        )
        connection.exec_driver_sql(f"INSERT INTO metric SELECT * REPLACE ({renamed}) FROM metric {two}")
        tags = "SELECT attempt_id, doc_key, position, 'NOUN' AS upos, 'tagger' AS tagger"
        connection.exec_driver_sql(f"INSERT INTO token_tag {tags} FROM token_exit {two}")
    return path


@pytest.fixture(scope="module")
def rescored_snapshot(rescored: Path) -> Path:
    return snapshot_of(rescored, rescored.parent / "snapshot")


@pytest.mark.usefixtures("imported")
def test_new_metric_versions_of_known_attempts_are_imported(
    rescored: Path, rescored_snapshot: Path, spool: Path, path: Path
) -> None:
    expected, source = imported_rows(rescored), rescored_snapshot
    report = merge(source, spool, path)
    assert (report.added, report.existing, report.rescored) == (0, len(expected["attempt"]), 2)
    assert imported_rows(path) == expected
    assert merge(source, spool, path).rescored == 0
    imports = sorted((spool / "imports").iterdir(), key=lambda folder: Manifest.read(folder).rows["attempt"])
    assert [Manifest.read(folder).rows["attempt"] for folder in imports] == [0, len(expected["attempt"])]
    for name, folder in zip(("0" * 16, "1" * 16), imports, strict=True):  # scores are read before their attempts
        folder.rename(folder.with_name(name))
    rebuild(spool, path)
    assert imported_rows(path) == expected


def test_rescores_and_tags_are_imported_with_a_spool(few_spool: Path, tmp_path: Path, spool: Path, path: Path) -> None:
    copy_some(few_spool, spool, every=4)
    other = tmp_path / "other"
    shutil.copytree(spool, other)
    attempt = next(entry for entry in scan_spool(other) if (entry.path / "samples.parquet").exists())
    samples, metrics = (pq.read_table(attempt.path / f"{name}.parquet") for name in ("samples", "metrics"))
    column = metrics.schema.get_field_index("metric_version")
    metrics = metrics.set_column(column, metrics.schema.field(column), [[VERSION] * len(metrics)])
    record_rescore(other, Rescore(attempt.attempt_id, VERSION, samples, metrics))
    tags = pa.Table.from_pylist([{"doc_key": "a", "position": 1, "upos": "NOUN"}], schema=TAG_SCHEMA)
    record_tags(other, attempt.attempt_id, "tagger", tags)
    report = merge(other, spool, path)
    assert (report.added, report.rescored, report.problems) == (0, 1, ())
    rows_here = imported_rows(path)
    assert len(rows_here["sample_rescore"]) == len(samples)
    assert len(rows_here["token_tag"]) == 1
    assert merge(other, spool, path).rescored == 0


def test_imported_scores_of_removed_attempts_are_left_out(
    few_spool: Path, rescored_snapshot: Path, spool: Path, path: Path
) -> None:
    shutil.copytree(few_spool, spool)
    merge(rescored_snapshot, spool, path)
    with open_database(path) as database:
        (removed, _stored) = database.query(
            f"SELECT DISTINCT attempt_id AS a FROM metric WHERE metric_version = '{VERSION}'"
        )["a"].to_pylist()
    shutil.rmtree(next(attempt.path for attempt in scan_spool(spool) if attempt.attempt_id == removed))
    rebuild(spool, path, forget=True)
    tables, rows_here = ("metric", "sample_rescore", "token_tag", "attempt"), imported_rows(path)
    assert not any(removed in row for name in tables for row in rows_here[name])
    assert any(VERSION in row for row in rows_here["metric"])


def copy_some(few_spool: Path, spool: Path, every: int) -> int:
    attempts = list(scan_spool(few_spool))[::every]
    for attempt in attempts:
        shutil.copytree(attempt.path, spool / attempt.path.relative_to(few_spool))
    return len(attempts)


def test_existing_attempts_are_not_imported_again(
    source: Path, spool: Path, path: Path, few_spool: Path, few_database: Path
) -> None:
    here = copy_some(few_spool, spool, every=3)  # not yet in a database
    expected = imported_rows(few_database)
    report = merge(source, spool, path)
    assert (report.added, report.existing) == (len(expected["attempt"]) - here, here)
    assert imported_rows(path) == expected
    for imported in (spool / "imports").glob("*"):
        with duckdb.connect() as connection:
            (count,) = connection.execute(f"SELECT count(*) FROM '{imported}/attempt.parquet'").fetchone() or (None,)
        assert count == report.added
    rebuild(spool, path)
    assert imported_rows(path) == expected


def test_attempt_with_conflicting_files_aborts_the_import(
    source: Path, spool: Path, path: Path, few_spool: Path
) -> None:
    copy_some(few_spool, spool, every=4)
    attempt = next(scan_spool(spool))
    done_file = attempt.path / "DONE"
    done_file.write_text(json.dumps(json.loads(done_file.read_text()), indent=4))  # as valid, and not the same
    ingest(spool, path)
    before = imported_rows(path)
    with pytest.raises(UserError, match=f"already here with different files: 1 attempt, such as {attempt.attempt_id}"):
        merge(source, spool, path)
    assert imported_rows(path) == before


def test_damaged_and_unfinished_attempts_are_not_imported(
    few_spool: Path, spool: Path, path: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    copy_some(few_spool, other, every=4)
    damaged, unfinished, *intact = scan_spool(other)
    (damaged.path / "cell.json").write_text("{}")
    (unfinished.path / "DONE").unlink()
    report = merge(other, spool, path)
    assert report.added == len(intact)
    (problem,) = report.problems
    assert str(damaged.path) in problem
    assert not (spool / damaged.path.relative_to(other)).exists()


def test_attempt_without_traces_is_refused_with_advice_to_import_a_snapshot(
    few_spool: Path, spool: Path, path: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    copy_some(few_spool, other, every=2)
    attempt = next(entry for entry in scan_spool(other) if (entry.path / "tokens.parquet").exists())
    free_tables(attempt.path, {"tokens": 40})
    (problem,) = merge(other, spool, path).problems
    assert "its tokens were removed by `exitbench gc`. Import a snapshot of the database that has them" in problem


def test_local_unfinished_attempt_is_not_overwritten_by_an_import(
    few_spool: Path, spool: Path, path: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    copy_some(few_spool, spool, every=8)
    copy_some(few_spool, other, every=4)
    attempt = next(scan_spool(spool))
    (attempt.path / "DONE").unlink()
    report = merge(other, spool, path)
    (problem,) = report.problems
    assert problem.startswith(f"{attempt.path}: the attempt is here without DONE")
    assert not (attempt.path / "DONE").exists()


def test_training_records_are_imported_with_the_attempts(
    few_spool: Path, spool: Path, path: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    copy_some(few_spool, other, every=5)
    (other / "trainings" / ("a" * 64)).mkdir(parents=True)
    (other / "trainings" / ("a" * 64) / "card.json").write_text('{"recipe": {"name": "small"}}')
    (other / "trainings" / ("a" * 64) / "training_log.csv").write_text("step,block,metric,value\n10,,loss_nats,2.5\n")
    merge(other, spool, path)
    assert len(imported_rows(path)["training_log"]) == 1


def test_latest_attempt_names_its_cell_whether_local_or_imported(
    tmp_path: Path, spool: Path, path: Path, few_spool: Path
) -> None:
    other = tmp_path / "other.duckdb"
    attempt = next(scan_spool(few_spool))
    shutil.copytree(attempt.path, spool / attempt.path.relative_to(few_spool))
    ingest(spool, other)
    renamed = {"suite": "renamed", "described_by": "99990101T000000000000Z-00000000"}
    with open_database(other, read_only=False) as database, database.engine.begin() as connection:
        connection.execute(CELL.update().where(CELL.c.cell_id == attempt.cell_id).values(**renamed))
        (row,) = connection.execute(sa.select(ATTEMPT).where(ATTEMPT.c.attempt_id == attempt.attempt_id)).mappings()
        connection.execute(ATTEMPT.insert().values({**row, "attempt_id": renamed["described_by"]}))
    assert merge(snapshot_of(other, tmp_path / "renamed"), spool, path).existing == 1
    rebuild(spool, path)
    with open_database(path) as database:
        suites = database.query("SELECT suite FROM cell WHERE cell_id = ?", [attempt.cell_id])["suite"].to_pylist()
    assert suites == ["renamed"]


def test_a_damaged_import_is_left_out_of_a_rebuild_with_a_message(imported: Path, spool: Path, path: Path) -> None:
    (imported / "metric.parquet").write_bytes(b"torn")
    (problem,) = rebuild(spool, path, forget=True).quarantined
    assert "metric.parquet: was changed after it was written" in problem
    assert imported_rows(path)["attempt"] == []


def benchmark_json(median: float, when: str = "2026-01-02T03:04:05.000006+00:00", **stats: Any) -> dict[str, Any]:
    return {
        "machine_info": {"node": "test", "cpu": {"count": 2}},
        "commit_info": {"id": "0123", "dirty": False, "branch": "main"},
        "benchmarks": [
            {
                "group": None,
                "name": "test_ingest[5]",
                "fullname": "tests/benchmarks/test_ingest.py::test_ingest[5]",
                "params": {"n": 5},
                "param": "5",
                "extra_info": {"rows": 10},
                "options": {},
                "stats": {"median": median, "rounds": 3, **stats},
            }
        ],
        "datetime": when,
        "version": "5.3.1",
    }


@pytest.fixture
def benchmarks(tmp_path: Path) -> Path:
    path = tmp_path / "0001_perf.json"
    path.write_text(json.dumps(benchmark_json(0.5, data=[0.4, 0.5, 0.6])))
    return path


def test_repeated_benchmark_runs_are_stored_separately(benchmarks: Path, spool: Path, path: Path) -> None:
    assert merge(benchmarks, spool, path).added == 1
    assert merge(benchmarks, spool, path).added == 0
    benchmarks.write_text(json.dumps(benchmark_json(0.25, when="2026-01-03T03:04:05")))
    assert merge(benchmarks, spool, path).added == 1
    rebuild(spool, path)
    with open_database(path) as database:
        rows = database.query(
            "SELECT benchmark, median_s, data, git_commit, params ->> 'n' AS n, extra ->> 'rows' AS r, "
            "measured_at::VARCHAR AS at FROM perf_sample ORDER BY measured_at"
        ).to_pylist()
        runs = database.query("SELECT count(DISTINCT perf_run_id) AS n FROM perf_sample")["n"].to_pylist()
    name = "tests/benchmarks/test_ingest.py::test_ingest[5]"
    assert [tuple(row.values()) for row in rows] == [
        (name, 0.5, [0.4, 0.5, 0.6], "0123", "5", "10", "2026-01-02 03:04:05.000006"),
        (name, 0.25, [], "0123", "5", "10", "2026-01-03 03:04:05"),
    ]
    assert runs == [2]


@pytest.mark.parametrize("change", [{"datetime": "yesterday"}, {"benchmarks": [{}]}, {"benchmarks": 3}])
def test_files_of_another_benchmark_format_are_refused(
    change: dict[str, Any], tmp_path: Path, spool: Path, path: Path
) -> None:
    (tmp_path / "odd.json").write_text(json.dumps({**benchmark_json(1.0), **change}))
    with pytest.raises(UserError, match=r"odd\.json: is not a file of pytest-benchmark"):
        merge(tmp_path / "odd.json", spool, path)
    assert not (spool / "perf").exists()


def test_benchmarks_are_imported_with_a_snapshot(benchmarks: Path, spool: Path, path: Path, tmp_path: Path) -> None:
    merge(benchmarks, spool, path)
    target = tmp_path / "there"
    merge(snapshot_of(path, tmp_path / "exported"), target / "spool", target / "exitbench.duckdb")
    assert imported_rows(target / "exitbench.duckdb") == imported_rows(path)
