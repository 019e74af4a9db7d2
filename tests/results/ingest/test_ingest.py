"""Ingest reads every finished attempt once, completely or not at all, independently of the other attempts."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from stored_rows import query_rows

from exitbench.results.database.connection import open_database
from exitbench.results.ingest.ingest import ingest, rebuild
from exitbench.results.ingest.load import SpoolLoader
from exitbench.results.spool.attempts import (
    Attempt,
    AttemptRecord,
    AttemptWriter,
    read_attempt,
    read_status,
    scan_spool,
)
from exitbench.results.spool.schema import SCHEMA_VERSION, TABLES

Json = dict[str, Any]
Write = Callable[..., AttemptWriter]


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    return tmp_path / "spool"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "exitbench.duckdb"


@pytest.fixture
def write(spool: Path, cell: Json, env: Json, tokens: pa.Table) -> Write:
    """Return a function that writes an attempt, with three tokens by default; keyword arguments change its cell."""

    def write_attempt(status: str = "ok", tables: dict[str, pa.Table] | None = None, **changes: Any) -> AttemptWriter:
        with AttemptWriter(spool, {**cell, **changes}, env) as writer:
            for name, rows in (tables or {"tokens": tokens}).items():
                writer.write(name, rows)
            writer.finish(status, exit_code=3)
        return writer

    return write_attempt


def rewrite(attempt: Path, name: str, changes: Json) -> None:
    """Change keys of an attempt's JSON file, and the file's digest in DONE."""
    (attempt / name).write_text(json.dumps({**json.loads((attempt / name).read_text()), **changes}))
    digests = json.loads((attempt / "DONE").read_text())
    digests[name] = hashlib.sha256((attempt / name).read_bytes()).hexdigest()
    (attempt / "DONE").write_text(json.dumps(digests))


def _query(path: Path, sql: str) -> list[Json]:
    with open_database(path) as database:
        return query_rows(database, sql)


def test_token_rows_join_to_attempt_cell_model_dataset_and_environment(
    write: Write, spool: Path, path: Path, cell: Json, env: Json
) -> None:
    writer = write()
    report = ingest(spool, path)
    assert (report.added, report.skipped, report.unfinished, report.quarantined) == (1, 0, 0, ())
    (row,) = _query(
        path,
        """
        SELECT attempt_id, method, params, model_artifact.name AS model, weights_sha256, task, data_sha256, git_commit,
               packages, cpu, exit_code, identity, count(token_exit.position) AS tokens
        FROM attempt JOIN cell USING (cell_id) JOIN model_artifact USING (model_id)
        JOIN dataset_artifact USING (data_id) JOIN environment USING (env_id) JOIN hardware USING (hw_id)
        JOIN token_exit USING (attempt_id) GROUP BY ALL
        """,
    )
    assert json.loads(row.pop("identity")) == cell["identity"]
    assert json.loads(row.pop("packages")) == env["environment"]["packages"]
    assert row == {
        "attempt_id": writer.attempt_id,
        "method": "full",
        "params": "{}",
        "model": cell["model"]["name"],
        "weights_sha256": cell["model"]["weights_sha256"],
        "task": cell["task"]["name"],
        "data_sha256": cell["task"]["data_sha256"],
        "git_commit": env["environment"]["git_commit"],
        "cpu": env["hardware"]["cpu"],
        "exit_code": 3,
        "tokens": 3,
    }


def test_repeated_ingest_adds_only_new_attempts(write: Write, spool: Path, path: Path) -> None:
    write()
    ingest(spool, path)
    write()
    report = ingest(spool, path)
    assert (report.added, report.skipped) == (1, 1)
    assert _query(path, "SELECT count(*) AS n, count(DISTINCT attempt_id) AS a FROM token_exit") == [{"n": 6, "a": 2}]
    assert _query(path, "SELECT count(*) AS n FROM cell") == [{"n": 1}]


def test_unfinished_attempts_are_ingested_once_finished(
    write: Write, spool: Path, path: Path, cell: Json, env: Json, tokens: pa.Table
) -> None:
    writer = AttemptWriter(spool, cell, env)
    writer.write("tokens", tokens)
    assert ingest(spool, path).unfinished == 1
    writer.finish("ok")
    assert ingest(spool, path).added == 1


def test_a_failed_attempt_is_a_row_without_traces(write: Write, spool: Path, path: Path) -> None:
    write("oom")
    assert ingest(spool, path).added == 1
    assert _query(path, "SELECT status, (SELECT count(*) FROM token_exit) AS n FROM attempt") == [
        {"status": "oom", "n": 0}
    ]


@pytest.mark.parametrize("name", ["tokens.parquet", "cell.json", "DONE"])
def test_damaged_attempt_is_quarantined_and_the_others_are_ingested(
    write: Write, spool: Path, path: Path, name: str
) -> None:
    torn = write()
    good = write()
    content = (torn.path / name).read_bytes()[:100]
    (torn.path / name).write_bytes(content)
    report = ingest(spool, path)
    assert report.added == 1
    (message,) = report.quarantined
    assert str(torn.path / name) in message
    assert _query(path, "SELECT attempt_id FROM attempt") == [{"attempt_id": good.attempt_id}]
    quarantined = spool / "quarantine" / torn.cell_id / torn.attempt_id
    assert (quarantined / name).read_bytes() == content
    assert str(quarantined) in message
    assert (quarantined / "WHY.txt").read_text(encoding="utf-8").strip() in message
    assert [attempt.attempt_id for attempt in scan_spool(spool)] == [good.attempt_id]
    assert ingest(spool, path).quarantined == ()


def test_restored_damaged_attempt_is_quarantined_again(write: Write, spool: Path, path: Path) -> None:
    torn = write()
    (torn.path / "DONE").write_text("x")
    backup = spool.parent / "copy"
    shutil.copytree(torn.path, backup)
    ingest(spool, path)
    shutil.copytree(backup, torn.path)
    assert len(ingest(spool, path).quarantined) == 1
    assert len(list((spool / "quarantine" / torn.cell_id).iterdir())) == 2


@pytest.mark.parametrize("name", ["lr=0.1", "r[1]", "star*", "what?", "it's here"])
def test_spool_path_may_contain_glob_and_partition_characters(
    write: Write, spool: Path, path: Path, name: str, tokens: pa.Table
) -> None:
    """DuckDB reads paths as patterns, and a folder name with = as a column's value."""
    write()
    place = spool.parent / name
    shutil.copytree(spool, place / "spool")
    # What the pattern would match besides has twice the tokens.
    sibling = spool.parent / {"r[1]": "r1", "star*": "starfish", "what?": "whats"}.get(name, "other")
    write(tables={"tokens": pa.concat_tables([tokens, tokens])})
    shutil.copytree(spool, sibling / "spool")
    assert ingest(place / "spool", path).quarantined == ()
    assert _query(path, "SELECT count(*) AS n FROM token_exit") == [{"n": 3}]


@pytest.mark.parametrize("version", [SCHEMA_VERSION - 1, 99])
def test_attempt_of_another_schema_version_is_left_in_the_spool(
    write: Write, spool: Path, path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("exitbench.results.spool.attempts.SCHEMA_VERSION", version)
        other_attempt = write()
    (message,) = ingest(spool, path).quarantined
    assert f"another version of ExitBench (spool schema {version}); this one reads {SCHEMA_VERSION} only" in message
    assert other_attempt.path.exists()
    assert (
        read_status(Attempt(other_attempt.cell_id, other_attempt.attempt_id, other_attempt.path, finished=True)).status
        == "ok"
    )


def _sample(**changes: Any) -> pa.Table:
    row = {"doc_key": "a", "output_text": "t", "output_ids": [1], "n_prompt": 1, "n_output": 1, "stop_reason": "eos"}
    return pa.Table.from_pylist([{**row, "scores": "{}", "statistics": "{}", **changes}], schema=TABLES["samples"])


@pytest.mark.parametrize(
    "samples",
    [pa.concat_tables([_sample(), _sample()]), _sample(scores="{")],
    ids=["one document twice", "scores that are no JSON"],
)
def test_attempt_with_an_invalid_table_is_rolled_back_completely(
    write: Write, spool: Path, path: Path, tokens: pa.Table, samples: pa.Table
) -> None:
    broken = write(tables={"tokens": tokens, "samples": samples})
    report = ingest(spool, path)
    (message,) = report.quarantined
    assert str(broken.path) in message
    for table in ("attempt", "cell", "environment", "token_exit", "sample"):
        assert _query(path, f"SELECT count(*) AS n FROM {table}") == [{"n": 0}], table


def test_rows_shared_with_a_valid_attempt_survive_a_rollback(write: Write, spool: Path, path: Path) -> None:
    write(tables={"samples": pa.concat_tables([_sample(), _sample()])})
    write()
    assert ingest(spool, path).added == 1
    assert _query(path, "SELECT count(*) AS n FROM runs") == [{"n": 1}]


@pytest.mark.parametrize("changes", [{"seed": "many"}, {"batch_size": None}, {"depends_on": 3}])
def test_cell_with_a_value_of_the_wrong_type_is_quarantined(
    write: Write, spool: Path, path: Path, changes: Json
) -> None:
    broken = write()
    rewrite(broken.path, "cell.json", changes)
    write(cell_id="0" * 64)
    report = ingest(spool, path)
    assert report.added == 1
    assert [str(broken.path) in message for message in report.quarantined] == [True]


def test_cell_has_the_names_of_its_latest_attempt_in_any_ingest_order(write: Write, spool: Path, path: Path) -> None:
    late = write(suite="early")
    hidden = spool.parent / "hidden"
    late.path.rename(hidden)
    write(suite="latest")
    ingest(spool, path)
    hidden.rename(late.path)
    assert ingest(spool, path).added == 1
    assert _query(path, "SELECT suite FROM cell") == [{"suite": "latest"}]
    rebuild(spool, path)
    assert _query(path, "SELECT suite FROM cell") == [{"suite": "latest"}]


def test_attempts_are_comparable_only_on_the_same_machine(spool: Path, path: Path, cell: Json, env: Json) -> None:
    other = {**env, "hardware": {**env["hardware"], "threads": 1}}
    for used in (env, other, env):
        with AttemptWriter(spool, cell, used) as writer:
            writer.finish("ok")
    ingest(spool, path)
    ids = [row["comparable_id"] for row in _query(path, "SELECT comparable_id FROM attempt ORDER BY attempt_id")]
    assert ids[0] == ids[2] != ids[1]


def test_progress_counts_every_attempt(write: Write, spool: Path, path: Path) -> None:
    for _ in range(101):
        write("failed", tables={})
    calls: list[tuple[int, int]] = []
    ingest(spool, path, lambda count, total: calls.append((count, total)))
    assert calls == [(100, 101), (101, 101)]


def test_metrics_keep_the_order_they_were_written_in(write: Write, spool: Path, path: Path) -> None:
    names = ["f1", "em", "a", "token_match"]
    rows = [{"metric": name, "metric_version": "1", "role": "task", "value": 1.0, "n": 1} for name in names]
    table = pa.Table.from_pylist(rows, schema=TABLES["metrics"])
    write(tables={"metrics": table})
    ingest(spool, path)
    assert _query(path, "SELECT metric FROM metric ORDER BY ordinal") == [{"metric": name} for name in names]


def test_setting_id_ignores_upstream_cells_calibration_and_timing(
    write: Write, spool: Path, path: Path, cell: Json
) -> None:
    local_columns = ("probe_cell_id", "scores_cell_id", "fit_cell_id", "calibration", "timing")
    for index, added in enumerate(({}, {name: "x" for name in local_columns}, {"dtype": "bfloat16"})):
        write(cell_id=f"{index:064}", identity={**cell["identity"], **added})
    ingest(spool, path)
    ids = [row["setting_id"] for row in _query(path, "SELECT setting_id FROM cell ORDER BY cell_id")]
    assert ids[0] == ids[1] != ids[2]


def test_all_row_groups_of_a_file_are_ingested(
    spool: Path, path: Path, cell: Json, env: Json, tokens: pa.Table
) -> None:
    with AttemptWriter(spool, cell, env) as writer:
        for _ in range(4):
            writer.write("tokens", tokens)
        writer.finish("ok")
    ingest(spool, path)
    assert _query(path, "SELECT count(*) AS n FROM token_exit") == [{"n": 12}]


def test_stored_times_are_utc(write: Write, spool: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter(["2026-01-01T02:00:00.500000+02:00", "2026-01-01T00:00:02+00:00"])
    monkeypatch.setattr("exitbench.results.spool.attempts._utc_now", lambda: next(moments))
    write()
    ingest(spool, path)
    (row,) = _query(path, "SELECT started_at::VARCHAR AS at, seconds FROM runs")
    assert row == {"at": "2026-01-01 00:00:00.5", "seconds": 1.5}


def test_interrupted_load_does_not_check_attempts_twice(
    write: Write, spool: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(5):
        write()
    checked: list[Path] = []

    def counting(folder: Path) -> AttemptRecord:
        checked.append(folder)
        return read_attempt(folder)

    monkeypatch.setattr("exitbench.results.ingest.load._GROUP_ATTEMPTS", 1)
    monkeypatch.setattr("exitbench.results.ingest.load.read_attempt", counting)
    loader = SpoolLoader(spool)
    turns = 0
    while not loader.finished:
        with open_database(path, read_only=False) as database:
            loader.load(database.engine, until=lambda: True)
        turns += 1
    assert (turns, loader.report.added) == (5, 5)
    assert sorted(checked) == sorted(attempt.path for attempt in scan_spool(spool))


def test_large_attempt_is_loaded_as_a_separate_group(
    write: Write, spool: Path, path: Path, tokens: pa.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    for copies in (1, 2_000, 1, 1):
        write(tables={"tokens": pa.concat_tables([tokens] * copies)})
    small, large, *_ = (sum(f.stat().st_size for f in a.path.glob("*.parquet")) for a in scan_spool(spool))
    assert small < large
    monkeypatch.setattr("exitbench.results.ingest.load._GROUP_BYTES", 2 * small)
    loader = SpoolLoader(spool)
    added = []
    while not loader.finished:
        with open_database(path, read_only=False) as database:
            loader.load(database.engine, until=lambda: True)
        added.append(loader.report.added)
    assert added == [1, 2, 4]
