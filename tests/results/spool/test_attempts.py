"""The spool: written files can be verified, unfinished attempts do not count, and changed ones are refused."""

import errno
import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any, BinaryIO, Self

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from exitbench.errors import UserError
from exitbench.results.files.atomic import DamagedFile, SpoolError
from exitbench.results.files.regular import open_regular
from exitbench.results.spool.attempts import (
    AttemptWriter,
    attempt_status,
    latest_status,
    read_attempt,
    scan_spool,
)
from exitbench.results.spool.schema import FITTED_FILE, TABLES

Json = dict[str, Any]


@pytest.fixture
def finished(tmp_path: Path, cell: Json, env: Json, tokens: pa.Table) -> Path:
    """Return the folder of a finished attempt with tokens and a log, in the spool `tmp_path`."""
    with AttemptWriter(tmp_path, cell, env) as writer:
        writer.log_path.write_text("first\nlast\n")
        writer.write("tokens", tokens)
        writer.finish("ok", peak_rss_bytes=123)
    return writer.path


def test_folder_and_files_are_as_documented(finished: Path, tmp_path: Path, cell: Json) -> None:
    cell_id = cell["cell_id"]
    assert finished.parent == tmp_path / cell_id[:2] / cell_id
    assert {file.name for file in finished.iterdir()} == {
        "cell.json",
        "env.json",
        "status.json",
        "tokens.parquet",
        "log.txt",
        "DONE",
    }
    assert set(json.loads((finished / "DONE").read_text())) == {file.name for file in finished.iterdir()} - {"DONE"}


def test_attempt_is_read_back_as_written(finished: Path, cell: Json, env: Json, tokens: pa.Table) -> None:
    record = read_attempt(finished)
    assert (record.cell, record.env, record.tables) == (cell, env, ("tokens",))
    assert pa.concat_tables(record.batches("tokens")).equals(tokens)
    assert record.status["status"] == "ok"
    assert record.status["peak_rss_bytes"] == 123
    assert record.status["log_tail"] == "first\nlast"
    assert record.status["started_at"] < record.status["ended_at"]


def test_parquet_is_not_compressed_and_grows_with_each_write(
    tmp_path: Path, cell: Json, env: Json, tokens: pa.Table
) -> None:
    with AttemptWriter(tmp_path, cell, env) as writer:
        writer.write("tokens", tokens)
        writer.write("tokens", tokens)
        writer.finish("ok")
    metadata = pq.ParquetFile(writer.path / "tokens.parquet").metadata
    assert metadata.num_rows == 2 * tokens.num_rows
    assert metadata.row_group(0).column(0).compression == "UNCOMPRESSED"


def test_attempt_ids_sort_by_time(tmp_path: Path, cell: Json, env: Json) -> None:
    ids = []
    for _ in range(5):
        with AttemptWriter(tmp_path, cell, env) as writer:
            writer.finish("ok")
        ids.append(writer.attempt_id)
    assert ids == sorted(set(ids))
    assert [attempt.attempt_id for attempt in scan_spool(tmp_path)] == ids


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RuntimeError("no"), "failed"),
        (KeyboardInterrupt(), "interrupted"),
        (MemoryError("no"), "oom"),
        (type("OutOfMemoryError", (RuntimeError,), {})("no"), "oom"),
        (TimeoutError("no"), "timeout"),
    ],
)
def test_exception_determines_the_attempts_status(
    tmp_path: Path, cell: Json, env: Json, tokens: pa.Table, error: BaseException, status: str
) -> None:
    with pytest.raises(type(error)), AttemptWriter(tmp_path, cell, env) as writer:
        writer.write("tokens", tokens)
        raise error
    record = read_attempt(writer.path)
    assert record.status["status"] == status
    assert record.status["reason"].startswith(type(error).__name__)
    assert record.tables == ("tokens",)


def test_attempt_closed_without_finish_is_failed(tmp_path: Path, cell: Json, env: Json) -> None:
    with AttemptWriter(tmp_path, cell, env) as writer:
        pass
    assert read_attempt(writer.path).status["status"] == "failed"


def test_a_killed_process_leaves_an_unfinished_attempt(tmp_path: Path, cell: Json, env: Json) -> None:
    script = (
        "import json, os, signal, sys; from pathlib import Path\n"
        "from exitbench.results.spool.attempts import AttemptWriter\n"
        "cell, env = json.loads(sys.argv[2])\n"
        "with AttemptWriter(Path(sys.argv[1]), cell, env): os.kill(os.getpid(), signal.SIGKILL)"
    )
    ended = subprocess.run([sys.executable, "-c", script, str(tmp_path), json.dumps([cell, env])], check=False)
    assert ended.returncode == -9
    assert [attempt.finished for attempt in scan_spool(tmp_path)] == [False]
    assert latest_status(tmp_path)[cell["cell_id"]].status == "unfinished"


def test_finishing_twice_or_with_an_unknown_status_is_refused(tmp_path: Path, cell: Json, env: Json) -> None:
    with AttemptWriter(tmp_path, cell, env) as writer:
        with pytest.raises(SpoolError, match="Did you mean 'failed'"):
            writer.finish("fail")
        writer.finish("ok")
        with pytest.raises(SpoolError, match="already finished"):
            writer.finish("ok")


def test_latest_status_prefers_the_latest_finished_attempt(tmp_path: Path, cell: Json, env: Json) -> None:
    for status in ("ok", "failed"):
        with AttemptWriter(tmp_path, cell, env) as writer:
            writer.finish(status, "why")
    AttemptWriter(tmp_path, cell, env)
    latest = latest_status(tmp_path)
    assert list(latest) == [cell["cell_id"]]
    assert (latest[cell["cell_id"]].status, latest[cell["cell_id"]].path) == ("failed", writer.path)


def test_a_spool_that_does_not_exist_is_empty(tmp_path: Path) -> None:
    assert latest_status(tmp_path / "none") == {}


def test_a_spool_that_is_a_file_is_refused(tmp_path: Path, cell: Json, env: Json) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file"):
        list(scan_spool(tmp_path / "file"))
    with pytest.raises(UserError, match="file"):
        AttemptWriter(tmp_path / "file", cell, env)


@pytest.mark.parametrize("part", ["", "method", "model", "task"])
def test_a_missing_key_of_a_cell_is_named(tmp_path: Path, cell: Json, env: Json, part: str) -> None:
    broken = json.loads(json.dumps(cell))
    section = broken[part] if part else broken
    section.pop(next(iter(section)))
    with pytest.raises(SpoolError, match=rf"cell.json: key '{part}.*' is missing"):
        AttemptWriter(tmp_path, broken, env)


def test_a_part_of_a_cell_that_is_no_object_is_named(tmp_path: Path, cell: Json, env: Json) -> None:
    with pytest.raises(SpoolError, match=r"cell\.json: key 'identity' is 3, not an object"):
        AttemptWriter(tmp_path, {**cell, "identity": 3}, env)


def _corruptions() -> Iterator[Any]:
    def cut_parquet(path: Path) -> str:
        (path / "tokens.parquet").write_bytes((path / "tokens.parquet").read_bytes()[:-1])
        return "tokens.parquet.*SHA-256"

    def change_cell(path: Path) -> str:
        (path / "cell.json").write_text((path / "cell.json").read_text().replace("float32", "float16"))
        return "cell.json.*SHA-256"

    def lose_status(path: Path) -> str:
        (path / "status.json").unlink()
        return "status.json: is missing"

    def break_done(path: Path) -> str:
        (path / "DONE").write_text("{")
        return "DONE: is not JSON"

    def list_foreign_file(path: Path) -> str:
        digests = json.loads((path / "DONE").read_text())
        (path / "DONE").write_text(json.dumps({**digests, "../../secret": "0"}))
        return r"DONE: lists.*secret"

    yield from (cut_parquet, change_cell, lose_status, break_done, list_foreign_file)


@pytest.mark.parametrize("corrupt", _corruptions(), ids=lambda corrupt: corrupt.__name__)
def test_a_changed_attempt_is_refused_naming_the_file(finished: Path, corrupt: Any) -> None:
    message = corrupt(finished)
    with pytest.raises(SpoolError, match=message):
        read_attempt(finished)


def test_columns_of_other_integer_types_are_cast(tmp_path: Path, cell: Json, env: Json, tokens: pa.Table) -> None:
    wide = tokens.set_column(tokens.column_names.index("position"), "position", pa.array([1, 2, 3], pa.int64()))
    with AttemptWriter(tmp_path, cell, env) as writer:
        writer.write("tokens", wide.select(wide.column_names[::-1]))
        writer.finish("ok")
    assert pq.read_schema(writer.path / "tokens.parquet").remove_metadata().equals(TABLES["tokens"])


def _refused_tables() -> Iterator[Any]:
    tokens = pa.Table.from_pylist([dict.fromkeys(TABLES["tokens"].names)])
    probe = {name: [1] for name in TABLES["probe"].names if not pa.types.is_list(TABLES["probe"].field(name).type)}
    lists = {name: [[1, 2]] for name in TABLES["probe"].names if pa.types.is_list(TABLES["probe"].field(name).type)}
    names = {"doc_key": ["a"], "token_kind": ["b"]}
    uneven = pa.table({**probe, **names, **lists, "entropy": [[0.5]]})
    metric = {name: [1] for name in TABLES["metrics"].names} | {"metric": ["f1"], "metric_version": ["1"]}
    metric |= {"ci_method": ["b"], "role": ["task"]}
    token = {"doc_key": ["a"], "position": [1]}
    short = pa.table({**token, "score": [[0.5, float("nan")]], "emitted_id": [[7]]})
    yield pytest.param("scores", short, "'score' and 'emitted_id' differ in length", id="uneven scores")
    yield pytest.param("token", tokens, "no table 'token'. Did you mean 'tokens'", id="unknown table")
    yield pytest.param("tokens", tokens.drop_columns(["doc_key"]), "exactly one column 'doc_key'", id="missing column")
    yield pytest.param("tokens", tokens.append_column("scor", tokens["score"]), "unknown column 'scor'", id="unknown")
    yield pytest.param("tokens", tokens, "'doc_key' has 1 nulls", id="null")
    yield pytest.param("metrics", pa.table({**metric, "value": ["many"]}), "'value' .string. is not double", id="type")
    yield pytest.param("metrics", pa.table({**metric, "value": [float("nan")]}), "not finite", id="NaN")
    yield pytest.param("probe", uneven, "'top1_id' and 'entropy' differ in length", id="uneven lists")


@pytest.mark.parametrize(("table", "rows", "message"), _refused_tables())
def test_rows_violating_the_schema_are_refused(
    tmp_path: Path, cell: Json, env: Json, table: str, rows: pa.Table, message: str
) -> None:
    with AttemptWriter(tmp_path, cell, env) as writer:
        with pytest.raises(SpoolError, match=message):
            writer.write(table, rows)
        writer.finish("ok")


def test_nullable_columns_may_be_omitted(tmp_path: Path, cell: Json, env: Json, tokens: pa.Table) -> None:
    with AttemptWriter(tmp_path, cell, env) as writer:
        writer.write("tokens", tokens.drop_columns(["head_rows", "rejected"]))
        writer.finish("ok")
    (rows,) = read_attempt(writer.path).batches("tokens")
    assert rows["head_rows"].to_pylist() == rows["rejected"].to_pylist() == [None] * 3
    assert rows.drop_columns(["head_rows", "rejected"]).equals(tokens.drop_columns(["head_rows", "rejected"]))


def test_scores_of_unevaluated_gates_stay_nan(tmp_path: Path, cell: Json, env: Json) -> None:
    row = {"doc_key": "a", "position": 1, "score": [float("nan"), 0.5, float("nan")], "emitted_id": [-1, 7, -1]}
    with AttemptWriter(tmp_path, cell, env) as writer:
        writer.write("scores", pa.Table.from_pylist([row], schema=TABLES["scores"]))
        writer.finish("ok")
    (rows,) = read_attempt(writer.path).batches("scores")
    assert str(rows["score"].to_pylist()) == "[[nan, 0.5, nan]]"


def test_interrupted_repetition_keeps_the_previous_outcome(tmp_path: Path, cell: Json, env: Json) -> None:
    for status in ("failed", "ok", "interrupted"):
        with AttemptWriter(tmp_path, cell, env) as writer:
            writer.finish(status)
    assert latest_status(tmp_path)[cell["cell_id"]].status == "ok"
    AttemptWriter(tmp_path, cell, env)
    assert latest_status(tmp_path)[cell["cell_id"]].status == "ok"


def test_device_read_error_is_not_reported_as_damage(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken_device(path: Path) -> BinaryIO:
        if path.name != name:
            return open_regular(path)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("exitbench.results.files.atomic.open_regular", broken_device)
    name = "tokens.parquet"
    with pytest.raises(SpoolError, match=f"{name}: cannot be read: Input/output error") as raised:
        read_attempt(finished)
    assert not isinstance(raised.value, DamagedFile)


@pytest.mark.parametrize("name", ["tokens.parquet", "cell.json", "DONE"])
def test_symlink_in_place_of_a_file_is_damage(finished: Path, tmp_path: Path, name: str) -> None:
    (finished / name).rename(tmp_path / "moved")
    (finished / name).symlink_to(tmp_path / "moved")
    with pytest.raises(DamagedFile, match=f"{name}: is a link"):
        read_attempt(finished)


def test_attempt_status_of_one_cell_equals_latest_status(tmp_path: Path, cell: Json, env: Json) -> None:
    assert attempt_status(tmp_path, cell["cell_id"]) is None
    for status in ("ok", "failed"):
        with AttemptWriter(tmp_path, cell, env) as writer:
            writer.finish(status, "why")
    AttemptWriter(tmp_path, cell, env)
    assert attempt_status(tmp_path, cell["cell_id"]) == latest_status(tmp_path)[cell["cell_id"]]
    assert latest_status(tmp_path)[cell["cell_id"]].status == "failed"


def test_fitted_tensors_are_covered_by_the_attempts_digests(tmp_path: Path, cell: Json, env: Json) -> None:
    with AttemptWriter(tmp_path, cell, env) as writer:
        (writer.path / FITTED_FILE).write_bytes(b"tensors")
        writer.finish("ok")
    assert read_attempt(writer.path).tables == ()
    (writer.path / FITTED_FILE).write_bytes(b"others")
    with pytest.raises(SpoolError, match=rf"{FITTED_FILE}.*SHA-256"):
        read_attempt(writer.path)


def test_numbers_out_of_range_are_refused(tmp_path: Path, cell: Json, env: Json, tokens: pa.Table) -> None:
    deep = tokens.set_column(4, "exit_layer", pa.array([1, 2, 70_000]))
    with AttemptWriter(tmp_path, cell, env) as writer:
        with pytest.raises(SpoolError, match="'exit_layer'"):
            writer.write("tokens", deep)
        writer.finish("ok")


class _Clock(datetime):
    """Clock that goes back by an hour at every reading."""

    readings = 0

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Self:
        cls.readings += 1
        return cls(2026, 1, 2, 23 - cls.readings, tzinfo=tz)


def test_attempts_keep_their_order_when_the_clock_is_set_back(
    tmp_path: Path, cell: Json, env: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("exitbench.results.spool.attempts.datetime", _Clock)
    written = []
    for status in ("failed", "failed", "ok"):
        with AttemptWriter(tmp_path, cell, env) as writer:
            writer.finish(status)
        written.append(writer.attempt_id)
        record = read_attempt(writer.path)
        assert record.status["started_at"] <= record.status["ended_at"]
    assert sorted(written) == written
    assert latest_status(tmp_path)[cell["cell_id"]].status == "ok"
