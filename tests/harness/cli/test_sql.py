"""`exitbench sql`: queries, output formats, and that only reading is possible."""

import contextlib
import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from exitbench.errors import UserError
from exitbench.harness.cli.commands import sql
from exitbench.harness.cli.commands.rows import FORMATS
from exitbench.harness.cli.commands.sql import MAX_SCREEN_ROWS
from exitbench.harness.cli.main import main
from exitbench.results.database.answers import answer
from exitbench.results.database.connection import open_database
from exitbench.results.database.schema_doc import described_views
from exitbench.results.queries import query_names

Command = Callable[..., Any]

MANY = "SELECT range AS a, 'text ' || range AS b FROM range(25000)"
# A reader's connection takes these: they stay within it, or have nothing to do there.
HARMLESS = {"CHECKPOINT", "BEGIN", "VACUUM", "PREPARE q AS DELETE FROM cell", "CREATE TEMP TABLE t AS SELECT 1"}
LONG_S = 300.0
"""Longer than anything takes on a busy machine."""
ENDLESS = "SELECT count(*) FROM range(10000000) AS a, range(100000) AS b WHERE a.range * b.range % 1000003 = -1"


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def exitbench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Return a function that runs one command in the test's folder."""
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: Done(main(arguments), *capsys.readouterr())


@pytest.fixture
def ask(exitbench: Command, example_database: Path) -> Command:
    """Return a function that runs `exitbench sql` on the example's database."""
    return lambda *arguments: exitbench("sql", "--database", str(example_database), *arguments)


def _left(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("arguments", [("SELECT '\udcff'",), ("SELECT $a", "--set", "a=\udcff")])
def test_an_argument_that_is_not_utf8_is_refused(ask: Command, arguments: tuple[str, ...]) -> None:
    """Python passes such bytes to a program as lone surrogates."""
    completed = ask(*arguments)
    assert (completed.returncode, completed.stdout) == (2, "")
    assert "holds a byte that is not UTF-8. Allowed: text in UTF-8." in completed.stderr


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_standard_input_that_is_not_utf8_is_refused(ask: Command, monkeypatch: pytest.MonkeyPatch, errors: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"SELECT '\xff'"), "utf-8", errors))
    completed = ask("-")
    assert (completed.returncode, completed.stdout) == (2, "")
    assert completed.stderr == "exitbench: The query holds a byte that is not UTF-8. Allowed: text in UTF-8.\n"


# ------------------------------------------------------------------------------------------ nothing but reading


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("ATTACH '{folder}/other.duckdb'", "ATTACH is refused"),
        ("COPY (SELECT 1) TO '{folder}/out.csv'", "COPY is refused"),
        ("COPY cell FROM '{folder}/secret'", "COPY is refused"),
        ("EXPORT DATABASE '{folder}/all'", "EXPORT is refused"),
        ("INSTALL httpfs", "LOAD is refused"),
        ("LOAD httpfs", "LOAD is refused"),
        ("PRAGMA enable_logging", "PRAGMA is refused"),
        ("SET enable_external_access = true", "SET is refused"),
        ("RESET enable_external_access", "SET is refused"),
        ("USE memory", "SET is refused"),
        ("CALL enable_logging(storage_path = '{folder}/logs')", "CALL is refused"),
        ("CHECKPOINT", "CALL is refused"),
        ("BEGIN", "TRANSACTION is refused"),
        ("PREPARE q AS DELETE FROM cell", "PREPARE is refused"),
        ("EXECUTE q", "EXECUTE is refused"),
        ("DELETE FROM cell", "DELETE is refused: the database is read-only here. Allowed: SELECT, EXPLAIN."),
        ("INSERT INTO view_source VALUES ('x')", "INSERT is refused"),
        ("UPDATE metric SET value = 0", "UPDATE is refused"),
        ("DROP VIEW frontier", "DROP is refused"),
        ("CREATE TEMP TABLE t AS SELECT 1", "CREATE is refused"),
        ("VACUUM", "VACUUM is refused"),
        ("WITH gone AS (DELETE FROM cell RETURNING cell_id) SELECT * FROM gone", "DELETE is refused"),
        ("EXPLAIN ANALYZE DELETE FROM cell", "DELETE is refused"),
        ("EXPLAIN ANALYZE COPY (SELECT 1) TO '{folder}/out.csv'", "COPY is refused"),
        ("FROM enable_logging(storage_path = '{folder}/logs')", "The query failed"),
        ("FROM force_checkpoint()", "The query failed"),
        ("FROM query('DELETE FROM cell')", "The query failed"),
        ("FROM query('COPY (SELECT 1) TO ''{folder}/out.csv''')", "The query failed"),
        ("FROM read_csv('/etc/passwd')", "file system operations are disabled"),
        ("FROM read_text('{folder}/secret')", "file system operations are disabled"),
        ("FROM read_blob('{folder}/secret')", "file system operations are disabled"),
        ("FROM read_json('{folder}/secret')", "file system operations are disabled"),
        ("FROM read_parquet('{folder}/secret')", "file system operations are disabled"),
        ("FROM read_duckdb('{folder}/secret')", "file system operations are disabled"),
        ("FROM sniff_csv('{folder}/secret')", "file system operations are disabled"),
        ("FROM '{folder}/secret'", "The query failed"),
        ("FROM glob('{folder}/*')", "file system operations are disabled"),
        ("FROM read_text('http://127.0.0.1/')", "file system operations are disabled"),
        ("FROM duckdb_secrets()", "file system operations are disabled"),
        ("SELECT getenv('HOME')", "The query failed"),
        ("SELECT * FROM arguments", "The query failed"),
        ("SELECT 1; DROP TABLE cell", "2 statements were given; exactly one is allowed."),
        ("SELEC 1", "syntax error"),
        ("SELECT nothing FROM runs", 'column "nothing" not found'),
    ],
)
def test_invalid_queries_and_those_that_write_or_read_other_files_are_refused(
    query: str, says: str, ask: Command, example_database: Path, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("a,b\n1,2\n")
    before = example_database.read_bytes()
    completed = ask(query.format(folder=tmp_path))
    assert (completed.returncode, completed.stdout) == (2, ""), completed
    assert says in completed.stderr
    # The connection is harmless by itself as well: nothing hangs on the statement's kind being recognised.
    with open_database(example_database) as database, suppress(UserError):
        database.query(query.format(folder=tmp_path))
        assert query in HARMLESS
    assert _left(tmp_path) == {"secret"}
    assert example_database.read_bytes() == before


# ------------------------------------------------------------------------------------------ formats


@pytest.mark.parametrize("form", ["csv", "json", "parquet"])
def test_out_file_has_the_rows_of_the_query(form: str, ask: Command, tmp_path: Path) -> None:
    completed = ask(MANY, "--out", f"rows.{form}")
    assert (completed.returncode, completed.stdout, completed.stderr) == (0, "", f"rows.{form}: 25000 rows\n")
    path = tmp_path / f"rows.{form}"
    readers: dict[str, Callable[[], list[tuple[int, str]]]] = {
        "csv": lambda: [(int(row["a"]), row["b"]) for row in csv.DictReader(path.read_text().splitlines())],
        "json": lambda: [(row["a"], row["b"]) for row in json.loads(path.read_text())],
        "parquet": lambda: [(row["a"], row["b"]) for row in parquet.read_table(path).to_pylist()],
    }
    assert readers[form]() == [(n, f"text {n}") for n in range(25000)]
    assert _left(tmp_path) == {f"rows.{form}"}


def test_values_outside_pythons_range_are_printed_as_duckdb_text(ask: Command, tmp_path: Path) -> None:
    query = (
        "SELECT DATE 'infinity' AS a, TIMESTAMP '290000-01-01' AS b, [DATE '-infinity'] AS c, DATE '2020-01-02' AS d "
        "UNION ALL SELECT DATE '2020-01-02', NULL, [DATE '2020-01-02'], NULL"
    )
    rows = json.loads(ask(query, "--format", "json").stdout)
    assert rows == [
        {"a": "infinity", "b": "290000-01-01 00:00:00", "c": "[-infinity]", "d": "2020-01-02"},
        {"a": "2020-01-02", "b": None, "c": ["2020-01-02"], "d": None},
    ]
    assert "infinity,290000-01-01 00:00:00,[-infinity],2020-01-02\n" in ask(query, "--format", "csv").stdout
    assert "infinity" in ask(query).stdout
    assert ask(query, "--out", str(tmp_path / "rows.parquet")).returncode == 0
    for form in FORMATS:
        assert ask("FROM test_all_types()", "--format", form).returncode == 0, form


def test_parquet_keeps_types_and_lists(ask: Command, tmp_path: Path) -> None:
    ask("SELECT 1::SMALLINT AS a, [0.5::FLOAT, NULL] AS b, NULL::VARCHAR AS c", "--out", "x", "--format", "parquet")
    table = parquet.read_table(tmp_path / "x")
    assert table.schema.types == [pa.int16(), pa.list_(table.schema.field("b").type.value_field), pa.string()]
    assert table.to_pylist() == [{"a": 1, "b": [0.5, None], "c": None}]


def test_json_output_is_valid_for_nan_infinity_and_big_integers(ask: Command) -> None:
    completed = ask(
        "SELECT 'nan'::DOUBLE AS a, ['inf'::FLOAT, 1] AS b, sum(2) AS c, '2026-01-02'::DATE AS d", "--format", "json"
    )
    assert json.loads(completed.stdout) == [{"a": None, "b": [None, 1], "c": 2, "d": "2026-01-02"}]
    assert ask("SELECT 1 AS a WHERE false", "--format", "json").stdout == "[]\n"


@pytest.mark.parametrize("form", ["csv", "json", "parquet"])
def test_duplicate_column_names_are_numbered_in_every_format(form: str, ask: Command, tmp_path: Path) -> None:
    path = tmp_path / f"rows.{form}"
    assert ask("SELECT 1 AS a, 2 AS a, 3 AS a_1, 4 AS a", "--out", path.name).returncode == 0
    readers: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "csv": lambda: [{name: int(n) for name, n in row.items()} for row in csv.DictReader(path.open())],
        "json": lambda: json.loads(path.read_text()),
        "parquet": lambda: parquet.read_table(path).to_pylist(),
    }
    assert readers[form]() == [{"a": 1, "a_2": 2, "a_1": 3, "a_3": 4}]


def test_type_not_supported_by_parquet_is_refused(ask: Command, tmp_path: Path) -> None:
    completed = ask("SELECT INTERVAL 1 DAY AS i", "--out", "rows.parquet")
    assert (completed.returncode, _left(tmp_path)) == (2, set())
    assert completed.stderr.startswith("exitbench: rows.parquet cannot be written as parquet: ")
    assert ask("SELECT INTERVAL 1 DAY AS i", "--out", "rows.csv").returncode == 0


def test_existing_out_file_is_kept_without_force(ask: Command, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("mine")
    completed = ask("SELECT 1 AS a", "--out", "rows.csv")
    assert completed.returncode == 2 and "is there already" in completed.stderr
    assert (tmp_path / "rows.csv").read_text() == "mine"
    assert ask("SELECT 1 AS a", "--out", "rows.csv", "--force").returncode == 0
    assert (tmp_path / "rows.csv").read_text() == "a\n1\n"


@pytest.mark.parametrize("form", ["csv", "json", "parquet"])
def test_failing_query_keeps_the_existing_out_file_and_leaves_no_partial_file(
    form: str, ask: Command, tmp_path: Path
) -> None:
    (tmp_path / "rows").write_text("mine")
    query = "SELECT CASE WHEN range = 24000 THEN error('broke') ELSE range END AS a FROM range(25000)"
    completed = ask(query, "--out", "rows", "--format", form, "--force")
    assert completed.returncode == 2 and "broke" in completed.stderr
    assert (tmp_path / "rows").read_text() == "mine"
    assert _left(tmp_path) == {"rows"}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--out", "no/rows.csv"), "no/rows.csv cannot be written: No such file or directory"),
        (("--out", "rows.xlsx"), "--out rows.xlsx: which format? Add --format csv, json or parquet."),
        (("--out", "rows.txt", "--format", "table"), "which format?"),
        (("--format", "parquet"), "Add --out FILE"),
    ],
)
def test_invalid_out_file_or_format_is_refused(
    arguments: tuple[str, ...], says: str, ask: Command, tmp_path: Path
) -> None:
    completed = ask("SELECT 1 AS a", *arguments)
    assert (completed.returncode, completed.stdout) == (2, "")
    assert says in completed.stderr
    assert not _left(tmp_path)


def test_the_database_itself_is_never_replaced(ask: Command, example_database: Path) -> None:
    completed = ask("SELECT 1", "--out", str(example_database), "--format", "csv", "--force")
    assert completed.returncode == 2 and "is the database itself" in completed.stderr


def test_table_is_limited_to_the_first_rows_with_a_note(ask: Command) -> None:
    completed = ask(MANY)
    assert len(completed.stdout.splitlines()) == 2 + MAX_SCREEN_ROWS
    assert completed.stderr == f"The first {MAX_SCREEN_ROWS} rows; --all prints every one, --out FILE saves them.\n"
    completed = ask(f"{MANY} LIMIT {MAX_SCREEN_ROWS}")
    assert (len(completed.stdout.splitlines()), completed.stderr) == (2 + MAX_SCREEN_ROWS, "")
    assert len(ask(MANY, "--all").stdout.splitlines()) == 2 + 25000


class Terminal(io.StringIO):
    """A stream that is a terminal and collects its text."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("columns", "shown"),
    [
        (54, [" a  b", f"--  {'-' * 50}", f" 1  {'x' * 50}", "22  y"]),
        (44, [" a  b", f"--  {'-' * 40}", f" 1  {'x' * 39}…", "22  y"]),
        (43, ["-- 1 --", "a: 1", f"b: {'x' * 50}", "-- 2 --", "a: 22", "b: y"]),
    ],
    ids=["fits", "cut", "a line each"],
)
def test_table_fits_the_terminal_width(columns: int, shown: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    terminal, pipe = Terminal(), io.StringIO()
    for out in (terminal, pipe):
        FORMATS["table"](["a", "b"], [[1, "x" * 50], [22, "y"]], out)
    assert terminal.getvalue().splitlines() == shown
    assert "x" * 50 in pipe.getvalue()


LONG = "entropy-and-cosine cosine=0.5, threshold="
CELLS = st.builds(lambda head, tail: LONG[:head] + tail, st.integers(0, len(LONG)), st.text("abc01.", max_size=60))


@given(st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=12, unique=True), st.integers(8, 200))
def test_distinct_rows_stay_distinct_at_any_terminal_width(rows: list[tuple[str, str]], columns: int) -> None:
    terminal = Terminal()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(columns))
        FORMATS["table"](["method", "note"], rows, terminal)
    lines = terminal.getvalue().splitlines()
    if lines[0].startswith("--"):  # a line a value
        shown = list(zip(lines[1::3], lines[2::3], strict=True))
    else:
        width = len(lines[1].split("  ")[0])
        shown = [(line[:width], line[width:]) for line in lines[2:]]
    assert len(set(shown)) == len(rows)


def test_parameters_at_the_end_of_a_long_name_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "48")
    terminal = Terminal()
    FORMATS["table"](["method", "value"], [[f"{LONG}{n}", n] for n in (0.1, 0.2, 0.3)], terminal)
    assert [line.split("…")[1].split()[-2:] for line in terminal.getvalue().splitlines()[2:]] == [
        ["threshold=0.1", "0.1"],
        ["threshold=0.2", "0.2"],
        ["threshold=0.3", "0.3"],
    ]


def test_a_wide_table_without_rows_shows_its_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "5")
    terminal = Terminal()
    FORMATS["table"](["one", "two"], [], terminal)
    assert terminal.getvalue() == "one  two\n---  ---\n"


def test_large_results_are_streamed(example_database: Path) -> None:
    pool = pa.total_allocated_bytes()
    with open_database(example_database) as database, answer(database, "FROM range(1000000000)", {}) as result:
        assert next(result.batches).num_rows > 0
    assert pa.total_allocated_bytes() - pool < 1 << 20


# ------------------------------------------------------------------------------------------ saved queries, parameters


def test_saved_queries_are_listed_and_run_by_name(ask: Command) -> None:
    listed = ask("--queries").stdout
    assert all(f"@{name}\n    " in listed for name in query_names())
    assert "    --set agreement=0.99: share of tokens" in listed
    completed = ask("@hop_exit", "--format", "json")
    assert {row["token_kind"] for row in json.loads(completed.stdout)} == {"hop1", "hop2"}


def test_query_parameters_use_the_default_unless_set(ask: Command) -> None:
    rows = {
        share: json.loads(ask("@threshold_for_agreement", "--format", "json", *share).stdout)
        for share in ((), ("--set", "agreement=0.99"), ("--set", "agreement=0"))
    }
    assert rows[()] == rows["--set", "agreement=0.99"]
    assert {row["threshold"] for row in rows["--set", "agreement=0"]} == {0.05}


@pytest.mark.parametrize(
    ("text", "expected"),
    [("7", 7), ("0.5", 0.5), ("true", True), ("null", None), ("world-t5", "world-t5"), ("a=b", "a=b"), ("", "")],
)
def test_query_parameters_are_parsed_by_their_literal_type(text: str, expected: Any, ask: Command) -> None:
    completed = ask("SELECT $x AS x", "--set", f"x={text}", "--format", "json")
    assert json.loads(completed.stdout) == [{"x": expected}]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("SELECT $b, $a",), "The query needs --set a=VALUE, --set b=VALUE."),
        (("SELECT $model", "--set", "modl=1"), "--set modl: the query has no parameter $modl. Did you mean 'model'?"),
        (("SELECT 1", "--set", "a=1"), "The query has no parameters."),
        (("SELECT $a", "--set", "a"), "--set a: not NAME=VALUE."),
        (("SELECT $a", "--set", "a=1", "--set", "a=2"), "--set a: is given more than once."),
        (("SELECT 1", "--force"), "--force: only goes with --out."),
        (("--views", "SELECT 1"), "--views: takes neither a query nor its options; given: query."),
        (
            ("--explain-view", "runs", "--set", "a=1", "--all"),
            "--explain-view: takes neither a query nor its",
        ),
        (("--queries", "--out", "x.csv"), "--queries: takes neither a query nor its options; given: out."),
        (("@hop_exits",), "There is no saved query 'hop_exits'. Did you mean 'hop_exit'?"),
        (("--all",), "There is no query."),
    ],
)
def test_invalid_parameters_and_option_combinations_are_refused(
    arguments: tuple[str, ...], says: str, ask: Command
) -> None:
    completed = ask(*arguments)
    assert (completed.returncode, completed.stdout) == (2, "")
    assert says in completed.stderr


# ------------------------------------------------------------------------------------------ views


def test_views_are_listed_with_a_description_without_a_database(exitbench: Command) -> None:
    completed = exitbench("sql", "--views")
    lines = completed.stdout.splitlines()
    assert [line.split()[0] for line in lines] == [view.name for view in described_views()]
    assert all(line.endswith(".") and len(line.split()) > 3 for line in lines)


def test_a_view_is_explained_by_comment_columns_and_sql(exitbench: Command, example_database: Path) -> None:
    with open_database(example_database) as database:
        comments = database.query("SELECT view_name, comment FROM duckdb_views() WHERE NOT internal").to_pylist()
        for row in comments:
            shown = exitbench("sql", "--explain-view", row["view_name"]).stdout
            assert shown.startswith(row["comment"])
            assert f"CREATE VIEW {row['view_name']} AS\n" in shown and shown.endswith(";\n")
            for name in database.query(f"FROM {row['view_name']} LIMIT 0").column_names:
                assert f"\n  {name} " in shown


def test_an_unknown_view_is_refused_with_a_suggestion(exitbench: Command) -> None:
    completed = exitbench("sql", "--explain-view", "frontierr")
    assert completed.returncode == 2 and "There is no view 'frontierr'. Did you mean 'frontier'?" in completed.stderr


# ------------------------------------------------------------------------------------------ waiting, Ctrl-C


def test_sql_waits_for_a_locked_database_and_names_the_locking_process(
    exitbench: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "exitbench.duckdb"
    open_database(path, read_only=False).close()
    script = f"import duckdb; c = duckdb.connect({str(path)!r}); print('open', flush=True); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", script], **pipes) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "open\n"

        def opened(path: Path, **how: Any) -> Any:
            if not how:  # the long wait, after the word
                holder.kill()
            return open_database(path, **how)

        monkeypatch.setattr(sql, "open_database", opened)
        completed = exitbench("sql", "--database", str(path), "SELECT 1 AS a")
    assert (completed.returncode, completed.stdout) == (0, "a\n-\n1\n")
    assert completed.stderr == f"{path} is in use by process {holder.pid}; waiting up to 10 s.\n"


def reads(process: int, path: Path) -> bool:
    """Return whether a process has a file open."""
    for descriptor in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            if os.readlink(descriptor) == str(path.resolve()):
                return True
    return False


@pytest.mark.parametrize("out", [(), ("--out", "rows.csv")])
def test_ctrl_c_ends_a_long_query_at_once_with_130(
    out: tuple[str, ...], example_database: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "exitbench.harness.cli.main", "sql"]
    command += ["--database", str(example_database), ENDLESS, *out]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as asked:
        try:
            deadline = time.monotonic() + LONG_S
            while not reads(asked.pid, example_database):
                assert asked.poll() is None and time.monotonic() < deadline
                time.sleep(0.05)
            time.sleep(0.5)
            assert asked.poll() is None
            os.kill(asked.pid, signal.SIGINT)
            stdout, stderr = asked.communicate(timeout=LONG_S)  # the query would take hours
            assert (asked.returncode, stdout, stderr) == (130, "", "")
        finally:
            asked.kill()
    assert not _left(tmp_path)


def test_query_of_a_snapshot_leaves_no_temporary_files(few_snapshot: Path, tmp_path: Path) -> None:
    """The console script ends its process without Python's own clean-up at exit."""
    console = "from exitbench.harness.cli.main import console; console()"
    query = [sys.executable, "-c", console, "sql", "--snapshot", str(few_snapshot), "SELECT count(*) > 0 FROM runs"]
    asked = subprocess.run(query, env=os.environ | {"TMPDIR": str(tmp_path)}, capture_output=True, text=True)
    assert (asked.returncode, asked.stdout.split()[-1]) == (0, "True"), asked.stderr
    assert not _left(tmp_path)
