"""Opening, creating and rebuilding the database, and every way in which opening a file can fail."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest
from stored_rows import RowsByTable, rows_by_table

from exitbench.errors import UserError
from exitbench.results.database import access, catalogue, current
from exitbench.results.database.connection import open_database
from exitbench.results.database.current import views_script
from exitbench.results.database.tables import read_catalogue
from exitbench.results.ingest.ingest import rebuild
from exitbench.results.tables import SCHEMA_VERSION, schema_sql

VIEWS = {
    "runs",
    "failures",
    "metric_values",
    "frontier",
    "token_trace",
    "plain_probes",
    "probe_trace",
    "score_trace",
    "layer_trace",
    "exit_histogram",
    "exit_by_kind",
    "fit_curves",
    "calibrations",
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return an empty, up-to-date database."""
    path = tmp_path / "runs" / "exitbench.duckdb"
    open_database(path, read_only=False).close()
    return path


def test_a_new_database_has_every_documented_view_and_its_version(path: Path) -> None:
    with open_database(path) as opened:
        views = set(opened.query("SELECT view_name FROM duckdb_views() WHERE NOT internal")["view_name"].to_pylist())
        assert views >= VIEWS
        versions = opened.query("SELECT version FROM schema_version ORDER BY version")["version"].to_pylist()
        assert versions == [SCHEMA_VERSION]


def test_every_documented_view_starts_with_the_run_names_and_ends_with_params(path: Path) -> None:
    with open_database(path) as opened:
        *names, params = opened.query("FROM run_names LIMIT 0").column_names
        for view in VIEWS:
            columns = opened.query(f"FROM {view} LIMIT 0").column_names
            assert (columns[: len(names)], columns[-1]) == (names, params), view


WAYS_TO_OPEN: tuple[Callable[[Path], object], ...] = (
    open_database,
    lambda path: open_database(path, read_only=False),
    lambda path: rebuild(path.parent / "no spool", path),
    lambda path: rebuild(path.parent / "no spool", path, forget=True),
)


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM cell",
        "CREATE TABLE t (x INT)",
        "COPY (SELECT 1) TO '{folder}/out.csv'",
        "FROM read_text('{folder}/secret')",
        "ATTACH '{folder}/other.duckdb'",
        "SET enable_external_access = true",
    ],
)
def test_read_only_connection_can_neither_write_nor_access_other_files(
    path: Path, tmp_path: Path, statement: str
) -> None:
    (tmp_path / "secret").write_text("secret")
    with open_database(path) as opened, pytest.raises(UserError, match="The query failed"):
        opened.query(statement.format(folder=tmp_path))
    assert not (tmp_path / "out.csv").exists()


def test_queries_accept_parameters_and_report_unknown_tables(path: Path) -> None:
    with open_database(path) as opened:
        assert opened.query("SELECT $a + 1 AS b", {"a": 1}).to_pylist() == [{"b": 2}]
        with pytest.raises(UserError, match="nonsense"):
            opened.query("FROM nonsense")


def test_reading_a_missing_database_is_refused_and_creates_no_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="There is no database"):
        open_database(tmp_path / "none.duckdb")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("read_only", [False, True])
def test_a_path_with_a_question_mark_is_refused(path: Path, tmp_path: Path, read_only: bool) -> None:
    folder = tmp_path / "what?"
    folder.mkdir()
    if read_only:
        shutil.copy(path, folder / "x.duckdb")
    before = sorted(folder.iterdir())
    with pytest.raises(UserError, match=r"what\?/x\.duckdb: DuckDB does not support a path with \? in it"):
        open_database(folder / "x.duckdb", read_only=read_only)
    assert sorted(folder.iterdir()) == before


ADVICE = r"`exitbench db rebuild` rebuilds it from its spool\. .* by the version that created the database"


@pytest.mark.parametrize("version", [SCHEMA_VERSION + 1, 24])
def test_database_of_another_schema_is_refused_with_advice(path: Path, version: int) -> None:
    with duckdb.connect(path) as connection:
        connection.execute("UPDATE schema_version SET version = ?, tool = 'exitbench 9.9'", [version])
    content = path.read_bytes()
    says = rf"schema {version}, made by 'exitbench 9\.9'\); this one reads schema {SCHEMA_VERSION} only\. {ADVICE}"
    for read_only in (True, False):
        with pytest.raises(UserError, match=says):
            open_database(path, read_only)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("ALTER TABLE token_exit DROP COLUMN head_rows", "table token_exit has no column head_rows"),
        ("ALTER TABLE token_exit ADD COLUMN luck FLOAT", "table token_exit has a column 'luck'"),
        ("ALTER TABLE token_exit ALTER score TYPE DOUBLE", "column score is 'DOUBLE', not FLOAT"),
        ("DROP TABLE layer_pair", "has no table layer_pair"),
    ],
)
def test_tables_that_differ_from_their_declaration_are_refused_as_another_version(
    path: Path, change: str, says: str
) -> None:
    with duckdb.connect(path) as connection:
        for (view,) in connection.execute("SELECT view_name FROM duckdb_views() WHERE NOT internal").fetchall():
            connection.execute(f"DROP VIEW {view}")
        connection.execute(change)
    for read_only in (True, False):
        with pytest.raises(
            UserError, match=rf"{says}.* created by another version of ExitBench, or changed\. {ADVICE}"
        ):
            open_database(path, read_only)


def test_missing_views_are_refused_by_a_reader_and_created_by_a_writer(path: Path) -> None:
    with duckdb.connect(path) as connection:
        for (view,) in connection.execute("SELECT view_name FROM duckdb_views() WHERE NOT internal").fetchall():
            connection.execute(f"DROP VIEW {view}")
    content = path.read_bytes()
    with pytest.raises(UserError, match=r"has views of another version .* `exitbench db rebuild`"):
        open_database(path)
    assert path.read_bytes() == content
    open_database(path, read_only=False).close()
    with duckdb.connect(path, read_only=True) as connection:
        assert connection.execute("FROM runs").fetchall() == []


def test_changed_views_are_recreated_and_old_ones_dropped(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = views_script().replace("CREATE VIEW fit_curves", "CREATE VIEW curves_of_fits")
    script = before.replace("COMMENT ON VIEW fit_curves", "COMMENT ON VIEW curves_of_fits")
    monkeypatch.setattr(current, "views_script", lambda: script)
    monkeypatch.setattr(catalogue, "views_script", lambda: script)
    names = "SELECT view_name FROM duckdb_views() WHERE NOT internal"
    with duckdb.connect(path) as connection:
        old = {name for (name,) in connection.execute(names).fetchall()}
        connection.execute("CREATE VIEW of_an_old_version AS SELECT 42 AS answer")
    with open_database(path, read_only=False) as opened:
        assert set(opened.query(names)["view_name"].to_pylist()) == old - {"fit_curves"} | {"curves_of_fits"}


@pytest.mark.parametrize(
    ("columns", "other_columns"),
    [
        ("* EXCLUDE (a, b)", "* EXCLUDE (b, a)"),
        ("* REPLACE (least(a, 2) AS a, (b || ',)') AS b)", "* REPLACE ((b || ',)') AS b, least(a, 2) AS a)"),
    ],
)
def test_catalogue_ignores_the_stored_order_of_column_sets(columns: str, other_columns: str) -> None:
    views = []
    for text in (columns, other_columns):
        with duckdb.connect() as connection:
            connection.execute("CREATE TABLE t (a INTEGER, b VARCHAR, c INTEGER)")
            connection.execute(f"CREATE VIEW v AS SELECT {text}, c + 1 AS d FROM t")
            views.append(read_catalogue(connection, "memory").views)
    assert views[0] == views[1]


NOT_DUCKDB = {
    "short.txt": (b"hello\n", "a text file"),
    "long.txt": ("na\u00efve notes\n".encode() * 5000, "a text file"),
    "table.csv": (b"a,b\n1,2\n", "a CSV file"),
    "table.parquet": (b"PAR1" + bytes(50) + b"PAR1", "a Parquet file"),
    "other.sqlite": (b"SQLite format 3\0" + bytes(4080), "a SQLite database"),
    "noise": (bytes(range(256)) * 8, "not a DuckDB database"),
    "magic cut off": (bytes(8) + b"DUC", "not a DuckDB database"),
}


@pytest.mark.parametrize("name", NOT_DUCKDB)
def test_file_of_another_format_is_identified_and_never_replaced(name: str, tmp_path: Path) -> None:
    content, kind = NOT_DUCKDB[name]
    path = tmp_path / name
    path.write_bytes(content)
    for action in WAYS_TO_OPEN:
        with pytest.raises(UserError, match=kind) as refused:
            action(path)
        assert "rebuild" not in str(refused.value)
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


def test_non_regular_files_are_neither_opened_nor_replaced(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("nothing")
    for name, kind in (("folder", "a folder"), ("pipe", "a pipe"), ("link", "a link to a file that does not exist")):
        for action in WAYS_TO_OPEN[1 if name == "link" else 0 :]:
            with pytest.raises(UserError, match=kind):
                action(tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "link", "pipe"]


def test_rebuild_through_a_symlink_replaces_the_target_not_the_link(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.duckdb"
    link.symlink_to(path)
    before = path.stat().st_ino
    rebuild(tmp_path / "no spool", link)
    assert link.is_symlink() and path.stat().st_ino != before


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE theirs (x INTEGER)",
        "CREATE TABLE schema_version (version INTEGER, applied_at TIMESTAMP, tool VARCHAR)",
        "CREATE SCHEMA theirs; CREATE TABLE theirs.t (x INTEGER)",
        "CREATE SEQUENCE theirs",
        "CREATE MACRO theirs(x) AS x + 1",
        "CREATE TYPE theirs AS ENUM ('a')",
        "CREATE VIEW theirs AS SELECT 1",
    ],
)
def test_a_database_of_another_program_is_refused_and_left_alone(statement: str, tmp_path: Path) -> None:
    path = tmp_path / "other.duckdb"
    with duckdb.connect(path) as connection:
        connection.execute(statement)
    content = path.read_bytes()
    for action in WAYS_TO_OPEN:
        with pytest.raises(UserError, match="not one of ExitBench") as refused:
            action(path)
        assert "rebuild" not in str(refused.value)
    assert path.read_bytes() == content


def test_a_damaged_database_of_another_program_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.duckdb"
    with duckdb.connect(path) as connection:
        connection.execute("CREATE TABLE theirs AS SELECT range AS x FROM range(300000)")
    os.truncate(path, path.stat().st_size // 2)
    content = path.read_bytes()
    for action in WAYS_TO_OPEN:
        with pytest.raises(UserError, match=r"is damaged(.|\n)*it is not changed") as refused:
            action(path)
        assert "rebuild" not in str(refused.value)
    assert path.read_bytes() == content


@pytest.mark.parametrize("place", ["file/exitbench.duckdb", "file/deeper/exitbench.duckdb"])
def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file"):
        open_database(tmp_path / place, read_only=False)


def test_a_database_in_use_names_the_process_after_a_bounded_wait(path: Path) -> None:
    script = f"import duckdb; c = duckdb.connect({str(path)!r}); print('open', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdin is not None and holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        for read_only in (True, False):
            with pytest.raises(UserError, match=rf"in use by process {holder.pid}; waited 0.3 s"):
                open_database(path, read_only, wait_s=0.3)
        holder.stdin.close()
        open_database(path, wait_s=300).close()


def test_rebuild_restores_the_same_rows_and_leaves_no_temporary_files(
    few_spool: Path, few_database: Path, few_rows: RowsByTable, tmp_path: Path
) -> None:
    path = Path(shutil.copyfile(few_database, tmp_path / "exitbench.duckdb"))
    rebuild(few_spool, path)
    assert rows_by_table(path) == few_rows
    assert len(few_rows["attempt"]) > 10
    assert [file.name for file in tmp_path.iterdir() if not file.name.startswith(".")] == [path.name]
    assert not list(tmp_path.glob(".*/"))


def test_rebuild_refuses_to_lose_attempts_that_the_spool_cannot_restore(
    few_spool: Path, few_database: Path, few_rows: RowsByTable, tmp_path: Path
) -> None:
    spool = Path(shutil.copytree(few_spool, tmp_path / "spool"))
    path = Path(shutil.copyfile(few_database, tmp_path / "exitbench.duckdb"))
    done_file = next(spool.glob("*/*/*/DONE"))
    done_file.write_text("x")
    with pytest.raises(UserError, match=rf"not replaced: it has 1 attempt .*{done_file.parent.name}(.|\n)*DONE"):
        rebuild(spool, path)
    assert rows_by_table(path) == few_rows
    rebuild(spool, path, forget=True)
    assert len(rows_by_table(path)["attempt"]) == len(few_rows["attempt"]) - 1


def test_rebuilding_replaces_a_database_of_another_version(
    few_spool: Path, few_database: Path, few_rows: RowsByTable, tmp_path: Path
) -> None:
    path = Path(shutil.copyfile(few_database, tmp_path / "exitbench.duckdb"))
    with duckdb.connect(path) as connection:
        connection.execute("UPDATE schema_version SET version = 24, tool = 'exitbench 0.0.1'")
        connection.execute("ALTER TABLE token_exit DROP COLUMN head_rows")
    rebuild(few_spool, path)
    assert rows_by_table(path) == few_rows


def test_database_in_a_later_duckdb_storage_format_stays_writable(tmp_path: Path) -> None:
    path = tmp_path / "stored.duckdb"
    with duckdb.connect(str(path)) as connection:  # this DuckDB's own storage, which is later than ours
        connection.execute(schema_sql())
        connection.execute("INSERT INTO schema_version VALUES (?, now()::TIMESTAMP, 'test')", [SCHEMA_VERSION])
    with open_database(path, read_only=False) as opened:
        assert opened.query("SELECT count(*) AS n FROM runs")["n"].to_pylist() == [0]


def test_a_database_opens_in_a_notebook_without_widgets(path: Path) -> None:
    """DuckDB asks IPython whether it runs in a notebook. There, changing the progress bar needs ipywidgets."""
    code = """
import pathlib, sys, types
shell = types.SimpleNamespace(config={"IPKernelApp": {}})
sys.modules["IPython"] = types.SimpleNamespace(get_ipython=lambda: shell)
from exitbench.results.database.connection import open_database
from exitbench.results.database.current import views_script
from exitbench.results.files.duckdb_files import in_memory
in_memory().close()
open_database(pathlib.Path(sys.argv[1]), read_only=False).close()
"""
    process = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr


def test_progress_bar_is_disabled_on_every_connection(path: Path) -> None:
    """DuckDB draws a progress bar on standard output if Python runs no script file, as with ``-c`` and in notebooks."""
    script = """
import duckdb, pathlib, sys
from exitbench.results.database.connection import open_database
from exitbench.results.database.current import views_script
from exitbench.results.database.connection import sandbox
from exitbench.results.files.duckdb_files import in_memory
path, drawn = pathlib.Path(sys.argv[1]), "SELECT current_setting('enable_progress_bar')"
print(duckdb.connect().execute(drawn).fetchone()[0])
for read_only in (False, True):
    with open_database(path, read_only=read_only) as opened:
        print(opened.query(drawn).columns[0][0])
print(in_memory().execute(drawn).fetchone()[0], sandbox([], path.parent).execute(drawn).fetchone()[0])
"""
    words = [sys.executable, "-c", script, str(path)]
    process = subprocess.run(words, capture_output=True, text=True, check=True)
    assert process.stdout.lower().split() == ["true", *["false"] * 4]


# ------------------------------------------------------------------------------------------ marks of other processes


@pytest.fixture
def marked(path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a database as another process would have left it: this process forgets that it verified the file."""
    open_database(path, read_only=False).close()
    monkeypatch.setattr(access, "_verified", {})
    return path


def test_cleanly_written_database_is_marked_as_verified(marked: Path) -> None:
    assert access.is_verified(marked, current.version())


@pytest.mark.parametrize("what", ["changed", "another version", "others may write it", "others may write the mark"])
def test_verification_mark_is_ignored_if_file_version_or_permissions_differ(marked: Path, what: str) -> None:
    version = current.version()
    if what == "changed":
        os.utime(marked, ns=(0, marked.stat().st_mtime_ns))  # the time of the last change is another
    elif what == "another version":
        version = "0" * 64
    elif what == "others may write it":
        marked.chmod(0o666)
        access.leave_mark(marked, version)
    else:
        access.mark_of(marked).chmod(0o622)
    assert not access.is_verified(marked, version)


def test_corrupt_verification_mark_is_ignored(marked: Path) -> None:
    access.mark_of(marked).write_bytes(b"[" * 100_000)
    assert not access.is_verified(marked, current.version())


def test_reading_needs_neither_sqlalchemy_nor_pandas(marked: Path) -> None:
    script = "import sys; from exitbench.harness.cli.main import main; main(['sql', 'SELECT 1', '--database', {!r}]); "
    script += "print(sorted({{'sqlalchemy', 'pandas', 'matplotlib', 'torch'}} & set(sys.modules)))"
    process = subprocess.run([sys.executable, "-c", script.format(str(marked))], capture_output=True, text=True)
    assert process.stdout.splitlines()[-1] == "[]", process.stderr
