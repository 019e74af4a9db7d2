"""Lakes of others: manifests and Parquet files are data, checked before a row is read; nothing outside is reached."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from exitbench.results.database.connection import open_database
from exitbench.results.lake.export import export_lake
from exitbench.results.lake.places import place_of
from exitbench.results.tables import SCHEMA_VERSION

Ask = Callable[..., tuple[int, str, str]]
Change = Callable[[dict[str, Any]], Any]

COUNT = "SELECT count(*), count(score) FROM token_exit"


@pytest.fixture(scope="module")
def whole(few_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake of the example."""
    lake = tmp_path_factory.mktemp("whole") / "lake"
    with open_database(few_database) as database:
        export_lake(database.duck, place_of(str(lake)))
    return lake


@pytest.fixture
def lake(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, to be attacked; commands run beside it."""
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(whole, tmp_path / "lake"))


def manifest_of(lake: Path, table: str = "token_exit") -> Path:
    """The manifest of an attempt with rows of a table."""
    manifests = sorted(lake.glob("schema=*/manifests/attempt/*.json"))
    return next(path for path in manifests if table in json.loads(path.read_text())["files"])


def tell(path: Path, change: Change) -> None:
    """Change what a manifest says."""
    told = json.loads(path.read_text())
    change(told)
    path.write_text(json.dumps(told))


def file_of(lake: Path, table: str = "token_exit") -> Path:
    """The file of a table that the same manifest names."""
    return next(lake.glob(f"schema=*/table={table}/**/attempt_id={manifest_of(lake, table).stem}/*.parquet"))


def swap(lake: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    """Put another file in a file's place, and let the manifest say that it is the one."""
    path, manifest = file_of(lake), manifest_of(lake)
    table = change(pq.read_table(path, partitioning=None))
    pq.write_table(table, path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    about = {"rows": table.num_rows, "bytes": path.stat().st_size, "sha256": digest}
    tell(manifest, lambda told: told["files"]["token_exit"].update(about))
    path.rename(path.with_name(f"{digest[:32]}.parquet"))


def first_row(table: str, **values: Any) -> Change:
    return lambda told: told["rows"][table][0].update(values)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda told: told.update(format="other"), "key 'format'"),
        (lambda told: told.update(schema_version=SCHEMA_VERSION + 1), f"is of schema {SCHEMA_VERSION + 1}"),
        (lambda told: told.update(kind="view; DROP TABLE attempt"), "kind is"),
        (lambda told: told.update(key=["20990101T000000000000Z-00000000"]), "manifest of another attempt"),
        (lambda told: told.pop("rows"), "'rows' is missing"),
        (lambda told: told["rows"].update({"view_source": []}), "view_source"),
        (first_row("attempt", **{'x" FROM read_text(': 1}), "Allowed: attempt_id"),
        (first_row("attempt", started_at="COPY (SELECT 1) TO 'written.csv'"), "do not fit"),
        (first_row("attempt", cell_id="0" * 64), "cell_id"),
        (first_row("metric", value="not a number"), "do not fit"),
        (first_row("metric", attempt_id="20990101T000000000000Z-00000000"), "row of another attempt"),
        (first_row("cell", method=7), "text method"),
        (lambda told: told["files"].update({"../../secret": {}}), "files has"),
        (lambda told: told["files"]["token_exit"].update(sha256="../" * 20), "64 hexadecimal digits"),
        (lambda told: told["files"]["token_exit"].update(rows=10**15), "claims"),
        (lambda told: told["files"]["token_exit"].update(bytes=-1), "bytes"),
        (lambda told: told["files"]["token_exit"].update(bytes=10), "is not what was exported: it has"),
        (lambda told: told["files"]["token_exit"].update(sha256="0" * 64), "is missing|is not there"),
    ],
)
def test_a_manifest_says_only_what_one_can(lake: Path, ask: Ask, change: Change, said: str) -> None:
    tell(manifest_of(lake), change)
    code, _, error = ask("sql", COUNT, "--lake", lake)
    assert code == 2
    assert any(words in error for words in said.split("|")), error
    assert not (lake.parent / "written.csv").exists()


def test_a_torn_manifest_is_named(lake: Path, ask: Ask) -> None:
    path = manifest_of(lake)
    path.write_bytes(path.read_bytes()[:-40])
    code, _, error = ask("sql", COUNT, "--lake", lake)
    assert code == 2
    assert path.name in error
    assert "torn" in error


@pytest.mark.parametrize("keep", [0, 100, -1])
def test_a_torn_file_is_named(lake: Path, ask: Ask, keep: int) -> None:
    path = file_of(lake)
    path.write_bytes(path.read_bytes()[:keep])
    code, _, error = ask("sql", COUNT, "--lake", lake)
    assert code == 2
    assert path.name in error
    assert "is not what was exported" in error


def test_changed_bytes_of_a_small_file_are_seen(lake: Path, ask: Ask) -> None:
    path = file_of(lake)
    content = bytearray(path.read_bytes())
    content[10] ^= 1
    path.write_bytes(content)
    code, _, error = ask("sql", COUNT, "--lake", lake)
    assert code == 2
    assert "SHA-256" in error


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda table: table.drop_columns("score"), "column score is 'missing'"),
        (lambda table: table.append_column("extra", table["score"]), "'extra' too many"),
        (
            lambda table: table.set_column(table.column_names.index("score"), "score", table["reason"]),
            "column score is",
        ),
    ],
)
def test_columns_are_the_schemas(lake: Path, ask: Ask, change: Callable[[pa.Table], pa.Table], said: str) -> None:
    swap(lake, change)
    code, _, error = ask("sql", COUNT, "--lake", lake)
    assert code == 2
    assert said in error


def test_no_link_is_followed(lake: Path, ask: Ask, whole: Path) -> None:
    path = file_of(lake)
    path.unlink()
    path.symlink_to(file_of(whole))
    code, _, error = ask("sql", COUNT, "--lake", lake)
    assert code == 2
    assert "is a link" in error
    folder = path.parent
    shutil.rmtree(folder)
    folder.symlink_to(file_of(whole).parent)
    assert ask("sql", COUNT, "--lake", lake)[0] == 2


def test_what_no_manifest_names_is_not_opened(lake: Path, ask: Ask) -> None:
    expected = ask("sql", COUNT, "--lake", lake)[1]
    beside = file_of(lake).parent
    (beside / "foreign.parquet").write_bytes(b"no Parquet at all")
    os.mkfifo(beside / "pipe.parquet")
    (lake / f"schema={SCHEMA_VERSION}" / "manifests" / "strange").mkdir()
    (lake / f"schema={SCHEMA_VERSION}" / "manifests" / "strange" / "x.json").write_text("{")
    assert ask("sql", COUNT, "--lake", lake) == (0, expected, "")
    assert "1 other file, which no manifest names, not read" in ask("status", "--lake", lake)[1]


@pytest.mark.parametrize(
    "query",
    [
        "FROM read_text('{outside}')",
        "FROM read_csv('exitbench-lake://../outside.txt')",
        "FROM read_parquet('exitbench-lake://../../outside.txt')",
        "FROM read_text('exitbench-lake:///etc/passwd')",
        "FROM '{outside}'",
    ],
)
def test_a_query_reaches_nothing_else(lake: Path, ask: Ask, tmp_path: Path, query: str) -> None:
    outside = tmp_path / "outside.txt"
    outside.write_text("secret")
    code, answer, _ = ask("sql", query.format(outside=outside), "--lake", lake, "--format", "csv")
    assert code == 2 or len(answer.splitlines()) == 1  # only names of columns
    assert "secret" not in answer


@pytest.mark.parametrize("query", ["COPY (SELECT 1) TO 'x.csv'", "COPY (SELECT 1) TO 'exitbench-lake://x.csv'"])
def test_python_writes_nothing_either(lake: Path, query: str) -> None:
    import exitbench as eb
    from exitbench.errors import UserError

    with eb.open_results(lake) as results:
        for refused in (query, "DELETE FROM attempt", "SET enable_external_access = true", "INSTALL httpfs"):
            with pytest.raises(UserError, match="failed"):
                results.sql(refused)
    assert not (lake.parent / "x.csv").exists()


def test_a_lake_of_another_schema_is_told(lake: Path, ask: Ask) -> None:
    (lake / f"schema={SCHEMA_VERSION}").rename(lake / "schema=24")
    code, _, error = ask("sql", COUNT, "--lake", lake)
    assert code == 2
    assert f"has results of schema 24; this version of ExitBench reads {SCHEMA_VERSION} only. Export the" in error
