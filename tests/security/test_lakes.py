"""Third-party lakes: logs and Parquet files are only data, checked before a row is read; no file outside is reached."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from exitbench.results.tables import SCHEMA_VERSION

pytest.importorskip("deltalake", reason="deltalake is not installed (pip install 'exitbench[lake]')")

Ask = Callable[..., tuple[int, str, str]]
Change = Callable[[dict[str, Any]], Any]

COUNT = "SELECT count(*), count(score) FROM token_exit"
PART = "part-00000-00000000-0000-0000-0000-000000000000-c000.zstd.parquet"


@pytest.fixture
def lake(few_lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of the lake to attack, in `tmp_path`, which becomes the working directory."""
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(few_lake, tmp_path / "lake"))


def table_of(lake: Path, table: str = "token_exit") -> Path:
    """Return the folder of a table."""
    return lake / f"schema={SCHEMA_VERSION}" / table


def files_of(lake: Path, table: str = "token_exit") -> list[Path]:
    """Return the Parquet files of a table."""
    return sorted(table_of(lake, table).rglob("*.parquet"))


def change_log(lake: Path, action: str, change: Change, table: str = "token_exit") -> None:
    """Change the first action of the given kind in a table's log."""
    for path in sorted(table_of(lake, table).glob("_delta_log/*.json")):
        actions = [json.loads(line) for line in path.read_text().splitlines()]
        for action_record in actions:
            if action in action_record:
                change(action_record[action])
                path.write_text("\n".join(map(json.dumps, actions)))
                return
    raise AssertionError(action)


def change_rows(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    """Replace the table in a Parquet file."""
    pq.write_table(change(pq.read_table(path, partitioning=None)), path)


def set_column(name: str, values: Any) -> Callable[[pa.Table], pa.Table]:
    """Return a function that replaces a column."""
    return lambda table: table.set_column(table.column_names.index(name), name, values(table))


def schema(change: Callable[[list[dict[str, Any]]], Any]) -> Change:
    """Return a function that changes the fields of a table's schema."""

    def changed(metadata: dict[str, Any]) -> None:
        fields_json = json.loads(metadata["schemaString"])
        change(fields_json["fields"])
        metadata["schemaString"] = json.dumps(fields_json)

    return changed


def refusal(ask: Ask, lake: Path) -> str:
    """Return the error message of a query on the lake."""
    code, _, error = ask("sql", COUNT, "--lake", lake)
    assert code == 2
    return error


@pytest.mark.parametrize(
    "path",
    [
        "../../../outside.parquet",
        "/etc/passwd",
        "file:///etc/passwd",
        "s3://elsewhere/x.parquet",
        f"attempt_id=..%2F..%2Foutside/{PART}",
        f"attempt_id=../{PART}",
        f"cell_id=x/{PART}",
        PART,
        "read_text.parquet",
    ],
)
def test_delta_log_with_foreign_file_paths_is_refused(lake: Path, ask: Ask, path: str) -> None:
    change_log(lake, "add", lambda entry: entry.update(path=path))
    assert "has other files (" in refusal(ask, lake)


@pytest.mark.parametrize(
    ("action", "change", "message"),
    [
        ("metaData", schema(lambda fields: fields.pop()), "other columns"),
        ("metaData", schema(lambda fields: fields[2].update(type="string")), "other columns"),
        (
            "metaData",
            schema(lambda fields: fields.append({**fields[1], "name": 'x" FROM read_text('})),
            "other columns",
        ),
        ("metaData", lambda entry: entry.update(partitionColumns=[]), "other partitions|cannot be read"),
        ("metaData", lambda entry: entry["configuration"].update({"delta.constraints.a": "1 = 1"}), "other properties"),
        ("metaData", lambda entry: entry.update(schemaString="[" * 100_000), "cannot be read"),
        (
            "protocol",
            lambda entry: entry.update(readerFeatures=["deletionVectors"], minReaderVersion=3),
            "features|cannot",
        ),
        ("protocol", lambda entry: entry.update(minReaderVersion=99), "cannot be read"),
    ],
)
def test_delta_table_with_unexpected_metadata_is_refused(
    lake: Path, ask: Ask, action: str, change: Change, message: str
) -> None:
    change_log(lake, action, change)
    error = refusal(ask, lake)
    assert any(words in error for words in message.split("|")), error
    assert "token_exit" in error


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"add": 7}'])
def test_damaged_delta_log_error_names_the_table(lake: Path, ask: Ask, content: bytes) -> None:
    for path in table_of(lake).glob("_delta_log/*.json"):
        path.write_bytes(content)
    assert "token_exit" in refusal(ask, lake)


def test_oversized_delta_log_is_refused(lake: Path, ask: Ask) -> None:
    with (table_of(lake) / "_delta_log" / f"{999:020}.json").open("wb") as file:
        file.truncate(1 << 30)
    assert "its log has more than" in refusal(ask, lake)


@pytest.mark.parametrize("name", ["_last_checkpoint", f"{3:020}.checkpoint.parquet", f"{0:020}.{9:020}.compacted.json"])
def test_delta_log_with_checkpoints_is_refused(lake: Path, ask: Ask, name: str) -> None:
    (table_of(lake) / "_delta_log" / name).write_text("{}")
    assert "writes no checkpoints" in refusal(ask, lake)


@pytest.mark.parametrize(
    ("table", "change", "message"),
    [
        ("attempt", set_column("cell_id", lambda table: pa.array(["0" * 64] * len(table))), "cell_id"),
        ("attempt", set_column("attempt_id", lambda table: pa.array(["x"] * len(table))), "do not fit|no id"),
        ("attempt", lambda table: table.drop_columns("cell_id"), "do not fit"),
        ("metric", set_column("value", lambda table: pa.array(["not a number"] * len(table))), "do not fit"),
        ("cell", set_column("params", lambda table: pa.array(["{"] * len(table))), "do not fit"),
    ],
)
def test_invalid_rows_of_small_tables_are_refused(
    lake: Path, ask: Ask, table: str, change: Callable[[pa.Table], pa.Table], message: str
) -> None:
    change_rows(files_of(lake, table)[0], change)
    error = refusal(ask, lake)
    assert any(words in error for words in message.split("|")), error


@pytest.mark.parametrize(
    "change",
    [lambda table: table.drop_columns("score"), set_column("score", lambda table: pa.array(["x"] * len(table)))],
)
def test_parquet_file_with_other_columns_is_refused(
    lake: Path, ask: Ask, change: Callable[[pa.Table], pa.Table]
) -> None:
    for path in files_of(lake):
        change_rows(path, change)
    assert "score" in refusal(ask, lake)


@pytest.mark.parametrize("keep", [0, 100, -1])
@pytest.mark.parametrize("table", ["token_exit", "attempt"])
def test_truncated_parquet_file_error_names_the_table(lake: Path, ask: Ask, table: str, keep: int) -> None:
    for path in files_of(lake, table):
        path.write_bytes(path.read_bytes()[:keep])
    assert table in refusal(ask, lake)


@pytest.mark.parametrize("which", ["file", "folder", "log", "pipe"])
def test_links_and_special_files_are_refused(lake: Path, ask: Ask, few_lake: Path, which: str) -> None:
    path, same = files_of(lake)[0], files_of(few_lake)[0]
    if which == "file":
        path.unlink()
        path.symlink_to(same)
    elif which == "folder":
        shutil.rmtree(path.parent)
        path.parent.symlink_to(same.parent)
    elif which == "log":
        shutil.rmtree(table_of(lake) / "_delta_log")
        (table_of(lake) / "_delta_log").symlink_to(table_of(few_lake) / "_delta_log")
    else:
        os.mkfifo(table_of(lake) / "_delta_log" / f"{999:020}.json")
    assert "is a link or a special file" in refusal(ask, lake)


def test_files_outside_the_delta_log_are_not_opened(lake: Path, ask: Ask) -> None:
    expected = ask("sql", COUNT, "--lake", lake)
    assert expected[0] == 0
    (files_of(lake)[0].parent / PART).write_bytes(b"no Parquet at all")
    (lake / "notes.txt").write_text("{")
    assert ask("sql", COUNT, "--lake", lake) == expected


@pytest.mark.parametrize("query", ["FROM read_text('{outside}')", "FROM '{outside}'", "FROM read_csv('/etc/passwd')"])
def test_query_cannot_read_files_outside_the_lake(lake: Path, ask: Ask, tmp_path: Path, query: str) -> None:
    outside = tmp_path / "outside.txt"
    outside.write_text("secret")
    code, answer, _ = ask("sql", query.format(outside=outside), "--lake", lake, "--format", "csv")
    assert code == 2
    assert "secret" not in answer


def test_python_api_cannot_write_through_a_lake(lake: Path) -> None:
    import exitbench as eb
    from exitbench.errors import UserError

    with eb.open_results(lake) as results:
        for refused in (
            "COPY (SELECT 1) TO 'x.csv'",
            "DELETE FROM attempt",
            "SET enable_external_access = true",
            "INSTALL httpfs",
        ):
            with pytest.raises(UserError, match="failed"):
                results.sql(refused)
    assert not (lake.parent / "x.csv").exists()


@pytest.mark.parametrize("version", [SCHEMA_VERSION + 3, 24])
def test_lake_of_another_schema_version_is_refused(lake: Path, ask: Ask, version: int) -> None:
    (lake / f"schema={SCHEMA_VERSION}").rename(lake / f"schema={version}")
    assert f"no lake of schema {SCHEMA_VERSION}; it has 'schema={version}'" in refusal(ask, lake)
