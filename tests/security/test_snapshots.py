"""Third-party snapshots: manifest and Parquet files are data and are checked before a row is read."""

import base64
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from exitbench.harness.cli.main import main
from exitbench.results.database.connection import open_database
from exitbench.results.ingest import importing
from exitbench.results.ingest.ingest import ingest
from exitbench.results.ingest.manifest import MANIFEST
from exitbench.results.tables import SCHEMA_VERSION

Ask = Callable[..., tuple[int, str, str]]
FolderContents = Callable[[Path], dict[str, str]]

# Written where the command runs, since a name of a file cannot have a slash.
COPY = "COPY (SELECT content FROM read_text('manifest.json')) TO 'written.csv'"
NAME = f"attempt BY NAME SELECT * FROM attempt WHERE false; {COPY}; --"


@pytest.fixture
def snapshot(few_snapshot: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of the snapshot to attack; commands run next to it."""
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(few_snapshot, tmp_path / "taken"))


@pytest.fixture(scope="module")
def refusing_runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a folder of runs that no test adds to."""
    runs = tmp_path_factory.mktemp("refusing") / "runs"
    assert ingest(runs / "spool", runs / "exitbench.duckdb").added == 0
    yield runs
    with open_database(runs / "exitbench.duckdb") as database:
        assert database.query("SELECT count(*) AS n FROM attempt")["n"].to_pylist() == [0]


def change_manifest(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change values in the manifest."""
    manifest = json.loads((folder / MANIFEST).read_text())
    replaced = change(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest if replaced is None else replaced))


def reseal(folder: Path, table: str, rows: int | None = None) -> None:
    """Update the manifest with the digest of a changed file."""
    path = folder / f"{table}.parquet"
    about = {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    change_manifest(
        folder, lambda manifest: manifest["tables"][table].update(about if rows is None else {**about, "rows": rows})
    )


def rewrite(folder: Path, table: str, change: Callable[[pa.Table], pa.Table], **options: Any) -> None:
    path = folder / f"{table}.parquet"
    changed = change(pq.read_table(path))
    pq.write_table(changed, path, **options)
    reseal(folder, table, len(changed))


def add_table(folder: Path, name: str) -> None:
    path = folder / f"{name}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(folder / "attempt.parquet", path)
    change_manifest(folder, lambda manifest: manifest["tables"].update({name: manifest["tables"]["attempt"]}))


def write_table(folder: Path, table: str, content: bytes) -> None:
    (folder / f"{table}.parquet").write_bytes(content)
    reseal(folder, table)


def replace_file(folder: Path, table: str, make: Callable[[Path], Any]) -> None:
    path = folder / f"{table}.parquet"
    path.rename(folder.parent / "elsewhere.parquet")
    make(path)


def as_type(table: pa.Table, name: str, column: Any) -> pa.Table:
    return table.set_column(table.column_names.index(name), name, column)


def filled(table: pa.Table, name: str, value: Any) -> pa.Table:
    return as_type(table, name, pa.array([value] * len(table), table.schema.field(name).type))


MANIFESTS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a table whose name ends a statement": (
        lambda folder: add_table(folder, NAME),
        "has a table 'attempt BY NAME SELECT * FROM attempt WHERE false; COPY",
    ),
    "a table outside": (lambda folder: add_table(folder, "../outside"), "has a table '../outside'"),
    "a table at an absolute place": (
        lambda folder: change_manifest(folder, lambda manifest: manifest["tables"].update({"/etc/hostname": {}})),
        "has a table '/etc/hostname', which no result database has",
    ),
    "a table that is called like a keyword": (lambda folder: add_table(folder, "select"), "has a table 'select'"),
    "a table with control characters in its name": (
        lambda folder: change_manifest(folder, lambda manifest: manifest["tables"].update({"\x1b[31m\u202e": {}})),
        r"has a table '\x1b[31m\u202e'",
    ),
    "no tables": (
        lambda folder: change_manifest(folder, lambda manifest: manifest.pop("tables") and None),
        "tables is not an object",
    ),
    "a list of tables": (
        lambda folder: change_manifest(folder, lambda manifest: manifest.update(tables=["attempt"])),
        "is not an object",
    ),
    "no attempts": (
        lambda folder: change_manifest(folder, lambda manifest: manifest["tables"].pop("attempt") and None),
        "lacks attempt, which every snapshot has",
    ),
    "a table that is a list": (
        lambda folder: change_manifest(folder, lambda manifest: manifest["tables"].update(attempt=[1])),
        "tables.attempt is not an object with rows and sha256",
    ),
    **{
        f"rows {rows!r}": (
            lambda folder, rows=rows: change_manifest(
                folder, lambda manifest: manifest["tables"]["attempt"].update(rows=rows)
            ),
            says,
        )
        for rows, says in (
            (-1, "tables.attempt.rows is '-1'. Allowed: a whole number from 0 on"),
            (True, "tables.attempt.rows is 'True'"),
            (1.5, "tables.attempt.rows is '1.5'"),
            (None, "tables.attempt.rows is 'None'"),
            (1, "rows; manifest.json says 1"),
            (10**15, "has 1000000000000000 rows in a file of"),
        )
    },
    **{
        f"digest {digest!r}": (
            lambda folder, digest=digest: change_manifest(
                folder, lambda manifest: manifest["tables"]["attempt"].update(sha256=digest)
            ),
            "tables.attempt.sha256 is",
        )
        for digest in (None, 7, "0" * 63, "A" * 64, ["0" * 64])
    },
    **{
        f"schema {version!r}": (
            lambda folder, version=version: change_manifest(
                folder, lambda manifest: manifest.update(schema_version=version)
            ),
            f"this version of ExitBench reads {SCHEMA_VERSION} only",
        )
        for version in (None, 0, -1, True, False, "4", [1], 1.0, {})
    },
    "a schema of the far future": (
        lambda folder: change_manifest(folder, lambda manifest: manifest.update(schema_version=10**300)),
        f"this version of ExitBench reads {SCHEMA_VERSION} only",
    ),
    "no format": (
        lambda folder: change_manifest(folder, lambda manifest: manifest.pop("format") and None),
        "format is 'None'",
    ),
    "a format with control characters": (
        lambda folder: change_manifest(folder, lambda manifest: manifest.update(format="\x1b]0;title\x07")),
        r"format is '\x1b]0;title\x07'",
    ),
    "labels that are none": (
        lambda folder: change_manifest(folder, lambda manifest: manifest.update(texts_left_out_of=[1])),
        "texts_left_out_of is not a list of labels",
    ),
    "a manifest that is a list": (
        lambda folder: change_manifest(folder, lambda manifest: [manifest]),
        "is not a JSON object",
    ),
    "a manifest that is large": (
        lambda folder: change_manifest(folder, lambda manifest: manifest.update(more="x" * 2_000_000)),
        "is larger than 1000000 bytes, the largest possible size of a manifest",
    ),
}

FILES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a link": (
        lambda folder: replace_file(folder, "hardware", lambda path: path.symlink_to("../elsewhere.parquet")),
        "hardware.parquet: is a link; only files are read",
    ),
    "a pipe": (lambda folder: replace_file(folder, "hardware", os.mkfifo), "hardware.parquet: is not a file"),
    "a folder": (lambda folder: replace_file(folder, "hardware", Path.mkdir), "hardware.parquet: is not a file"),
    "a device": (
        lambda folder: replace_file(folder, "hardware", lambda path: path.symlink_to("/dev/zero")),
        "hardware.parquet: is a link",
    ),
    "a file less": (lambda folder: (folder / "hardware.parquet").unlink(), "hardware.parquet: is missing"),
    "no Parquet": (lambda folder: write_table(folder, "hardware", b"x"), "hardware.parquet: cannot be read as Parquet"),
    "an empty file": (
        lambda folder: write_table(folder, "hardware", b""),
        "hardware.parquet: cannot be read as Parquet",
    ),
    "half a file": (
        lambda folder: write_table(folder, "cell", (folder / "cell.parquet").read_bytes()[: 1 << 10]),
        "cell.parquet: cannot be read as Parquet",
    ),
    "a footer of any length": (
        lambda folder: write_table(folder, "hardware", b"PAR1" + b"\xff" * 4 + b"PAR1"),
        "hardware.parquet: cannot be read as Parquet",
    ),
    "more rows than told": (
        lambda folder: reseal(folder, "hardware", 0),
        "hardware.parquet: has 1 rows; manifest.json says 0",
    ),
    "a column of another table": (
        lambda folder: rewrite(folder, "hardware", lambda rows: rows.append_column("seed", pa.array([1]))),
        "hardware.parquet has a column 'seed'. Allowed: hw_id",
    ),
    "a column whose name ends a statement": (
        lambda folder: rewrite(folder, "hardware", lambda rows: rows.append_column(f'x"; {COPY}; --', pa.array([1]))),
        "hardware.parquet has a column 'x\"; COPY",
    ),
    "a column twice": (
        lambda folder: rewrite(folder, "hardware", lambda rows: rows.append_column("HW_ID", pa.array(["a"]))),
        "hardware.parquet has a column 'HW_ID",
    ),
    "a column less that may not be NULL": (
        lambda folder: rewrite(folder, "attempt", lambda rows: rows.drop_columns(["status"])),
        "attempt.parquet has no column status",
    ),
    "a number for a text": (
        lambda folder: rewrite(folder, "hardware", lambda rows: as_type(rows, "hw_id", pa.array([1], pa.int64()))),
        "hardware.parquet: column hw_id is 'BIGINT', not VARCHAR",
    ),
    "a structure with quotes for a text": (
        lambda folder: rewrite(folder, "hardware", lambda rows: as_type(rows, "cpu", pa.array([{'a"; DROP': 1}]))),
        "hardware.parquet: column cpu is 'STRUCT(",
    ),
    "bytes that are no text": (
        lambda folder: rewrite(
            folder, "hardware", lambda rows: as_type(rows, "cpu", pa.array([b"\xff\xfe"], pa.binary()))
        ),
        "hardware.parquet: column cpu is 'BLOB', not VARCHAR",
    ),
    "a text that is no JSON": (
        lambda folder: rewrite(
            folder, "environment", lambda rows: as_type(rows, "packages", pa.array(["{"] * len(rows)))
        ),
        "cannot be imported: ",
    ),
    "a NULL where none may be": (
        lambda folder: rewrite(
            folder, "attempt", lambda rows: as_type(rows, "status", pa.array([None] * len(rows), pa.string()))
        ),
        "cannot be imported: ",
    ),
    "an attempt twice": (
        lambda folder: rewrite(folder, "attempt", lambda rows: pa.concat_tables([rows, rows])),
        "cannot be imported: ",
    ),
    "attempts without cells": (
        lambda folder: rewrite(folder, "cell", lambda rows: rows.slice(0, 0)),
        "rows of attempt refer to a cell_id that is missing in cell",
    ),
    "an attempt that is called like a folder": (
        lambda folder: rewrite(
            folder, "attempt", lambda rows: as_type(rows, "attempt_id", pa.array(["../../outside"] * len(rows)))
        ),
        "attempt.attempt_id '../../outside' is not an id in ExitBench's format",
    ),
    **{
        what: (lambda folder, row=row: rewrite(folder, row[0], lambda rows: filled(rows, *row[1:])), says)
        for what, row, says in (
            (
                "samples without attempts",
                ("sample", "attempt_id", "20200101T000000000000Z-00000000"),
                "rows of sample refer to a attempt_id that is missing in attempt",
            ),
            (
                "a cell that is called like a folder",
                ("cell", "cell_id", "../../outside"),
                "cell.cell_id '../../outside' is not an id in ExitBench's format",
            ),
            (
                "a status that none has",
                ("attempt", "status", "great"),
                "attempt.status has 'great'. Allowed: ok, failed",
            ),
            (
                "an exit after the last block",
                ("token_exit", "exit_layer", 30_000),
                "token_exit.exit_layer has '30000'. Allowed: 1 to the model's number of blocks",
            ),
            (
                "an exit before the first block",
                ("token_exit", "exit_layer", -5),
                "token_exit.exit_layer has '-5'",
            ),
            (
                "a list of exits with one before the first block",
                ("document_exit", "exit_layer", [1, 0]),
                "document_exit.exit_layer has '[1, 0]'",
            ),
            ("a position before the first", ("token_exit", "position", -1), "token_exit.position has '-1'"),
        )
    },
}


ALIKE = {
    *(
        "rows 1.5",
        "rows None",
        "digest 7",
        f"digest {['0' * 64]}",
        "schema 0",
        "schema False",
        "schema [1]",
        "schema {}",
    ),
    *("schema 1.0", "a table at an absolute place", "a list of tables", "a device", "a footer of any length"),
    "bytes that are no text",
}
"""Inputs that are refused by the same line as another one."""


@pytest.mark.parametrize(
    "what",
    [pytest.param(what, marks=pytest.mark.exhaustive if what in ALIKE else ()) for what in (*MANIFESTS, *FILES)],
)
def test_malformed_snapshot_is_not_imported(
    what: str,
    snapshot: Path,
    refusing_runs: Path,
    ask: Ask,
    folder_contents: FolderContents,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importing, "ingest", lambda *_: None)  # of an empty spool, before the snapshot is read
    attack, says = {**MANIFESTS, **FILES}[what]
    attack(snapshot)
    before = folder_contents(snapshot.parent)
    code, output, complained = ask("import", snapshot, "--runs", refusing_runs)
    assert (code, output) == (2, "")
    assert says in complained and "taken" in complained
    assert folder_contents(snapshot.parent).keys() == before.keys()
    assert not list((refusing_runs / "spool").rglob("*"))


IN_A_SPOOL = (
    "a table whose name ends a statement",
    "no attempts",
    "a pipe",
    "a table outside",
    "schema -1",
    "a column whose name ends a statement",
    "attempts without cells",
)


@pytest.mark.parametrize(
    ("command", "what"),
    [
        *((("db", "rebuild", "--force"), what) for what in IN_A_SPOOL),
        *((("db", "check"), what) for what in IN_A_SPOOL[:3]),
        *(pytest.param(("db", "check"), what, marks=pytest.mark.exhaustive) for what in IN_A_SPOOL[3:]),
    ],
    ids=lambda value: value if isinstance(value, str) else value[1],
)
def test_malformed_snapshot_in_a_spool_is_skipped_and_named(
    command: tuple[str, ...], what: str, snapshot: Path, runs: Path, ask: Ask, folder_contents: FolderContents
) -> None:
    attack, says = {**MANIFESTS, **FILES}[what]
    attack(snapshot)
    open_database(runs / "exitbench.duckdb", read_only=False).close()
    place = runs / "spool" / "imports" / "0123456789abcdef"
    place.parent.mkdir(parents=True)
    snapshot.rename(place)
    before = folder_contents(runs / "spool")
    code, output, complained = ask(*command, "--runs", runs)
    if command[1] == "rebuild" or what in MANIFESTS or what == "a pipe":  # `check` reads no rows
        assert code == 1 and says in output + complained and place.name in output + complained
    assert folder_contents(runs / "spool") == before
    assert not (Path.cwd() / "written.csv").exists()
    with open_database(runs / "exitbench.duckdb") as database:
        assert database.query("SELECT count(*) AS n FROM attempt")["n"].to_pylist() == [0]


@pytest.fixture(scope="module")
def odd_runs(few_snapshot: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of runs with an imported snapshot, which was odd in each way that a test below names."""
    folder = tmp_path_factory.mktemp("odd")
    odd = Path(shutil.copytree(few_snapshot, folder / "attempt_id=wrong" / "r[1]*?"))
    hostile = {
        b"ARROW:schema": base64.b64encode(b"\xff" * 64),
        b"pandas": b"{" * 1000,
        b"geo": b'{"version": "1.1.0", "primary_column": "x", "columns": {"x": {"encoding": "WKB"}}}',
        b"exitbench": b"\x1b[31m\xff",
    }
    rewrite(odd, "hardware", lambda rows: rows.replace_schema_metadata(hostile), store_schema=False)
    rewrite(odd, "sample", lambda rows: rows, row_group_size=1)
    (odd / "more.txt").write_text("secret")
    (odd / "link").symlink_to("/etc/hostname")
    assert main(["import", str(odd), "--runs", str(folder / "runs")]) == 0
    return folder / "runs"


@pytest.mark.parametrize(
    "query",
    [
        pytest.param("FROM hardware ORDER BY ALL", id="parquet metadata"),
        pytest.param("FROM sample ORDER BY ALL", id="one row group per row"),
        pytest.param("SELECT attempt_id FROM attempt ORDER BY ALL", id="folder names in the style of Hive"),
    ],
)
def test_snapshot_with_odd_files_is_imported_unchanged(query: str, odd_runs: Path, few_database: Path) -> None:
    with open_database(odd_runs / "exitbench.duckdb") as local, open_database(few_database) as source_database:
        rows = source_database.query(query).to_pylist()
        assert local.query(query).to_pylist() == rows != []


def test_files_outside_the_manifest_are_not_copied(odd_runs: Path) -> None:
    names = {path.name for path in (odd_runs / "spool").rglob("*")}
    assert "attempt.parquet" in names and not {"more.txt", "link"} & names


BENCHMARK = {
    "machine_info": {},
    "commit_info": {},
    "datetime": "2026-01-01T00:00:00",
    "benchmarks": [{"fullname": "a", "params": None, "extra_info": {}, "stats": {"median": 1.0}}],
}
ONE = BENCHMARK["benchmarks"][0]


@pytest.mark.parametrize(
    "change",
    [
        {"datetime": "9999-12-31T23:59:59-23:59"},
        {"datetime": 7},
        {"commit_info": [1]},
        {"commit_info": {"dirty": "x"}},
        {"machine_info": {"x": float("nan")}},
        {"benchmarks": [{**ONE, "fullname": "\ud800"}]},
        {"benchmarks": [{**ONE, "params": {"\ud800": 1}}]},
        {"benchmarks": [{**ONE, "stats": {"median": 10**400}}]},
        {"benchmarks": [{**ONE, "stats": {"median": 1.0, "data": {"a": 1}}}]},
        {"benchmarks": [{**ONE, "stats": None}]},
        {"benchmarks": [ONE, ONE]},
        {"benchmarks": {"a": 1}},
    ],
    ids=str,
)
def test_malformed_benchmark_files_are_refused(change: dict[str, Any], tmp_path: Path, runs: Path, ask: Ask) -> None:
    (tmp_path / "odd.json").write_text(json.dumps({**BENCHMARK, **change}))
    code, _, complained = ask("import", tmp_path / "odd.json", "--runs", runs)
    assert code == 2
    assert "odd.json: is not a file of pytest-benchmark" in complained or "odd.json: is not JSON" in complained
    assert not (runs / "spool" / "perf").exists()
