"""Other versions and drivers of DuckDB can run every view and saved query.

DuckDB's own command line is installed with the tests. `nox -s engines` names others in EXITBENCH_ENGINES: executables,
and folders with the Python library.
"""

import csv
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

import duckdb
import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import registry

from exitbench.results.database.connection import Database, open_database
from exitbench.results.queries import query_names, saved_query

ENGINES: Final = (
    Path(sysconfig.get_path("scripts")) / "duckdb",
    *(Path(engine) for engine in os.environ.get("EXITBENCH_ENGINES", "").split(os.pathsep) if engine),
)
# Read as it stands by Python of another version of the library, which this process cannot load.
ASK_ALL = """
import csv, duckdb, sys
database = duckdb.connect(sys.argv[1], read_only=True)
database.execute("SET enable_progress_bar = false")  # it prints among the rows where a query takes two seconds
out = csv.writer(sys.stdout, lineterminator="\\n")
for statement in sys.stdin.read().split(";\\n"):
    if statement.strip():
        out.writerows(database.execute(statement).fetchall())
"""


@pytest.fixture(scope="module")
def queries(example_database: Path) -> Mapping[str, str]:
    """Return queries by name: whole views, and saved queries with their defaults."""
    with open_database(example_database) as database:
        views = database.query("SELECT view_name FROM duckdb_views() WHERE NOT internal")["view_name"].to_pylist()
    assert len(views) > 30
    saved = {f"@{name}": saved_query(name).with_defaults().strip().rstrip(";") for name in query_names()}
    return {view: f"FROM {view}" for view in views} | saved


@pytest.fixture(scope="module")
def expected(
    queries: Mapping[str, str],
    example_database: Path,
    open_computed: Callable[[Path], AbstractContextManager[Database]],
) -> Mapping[str, int]:
    with open_computed(example_database) as database:
        return {name: len(database.duck.execute(text).fetchall()) for name, text in queries.items()}


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_views_and_saved_queries_return_equal_row_counts_on_other_engines(
    engine: Path, queries: Mapping[str, str], expected: Mapping[str, int], example_database: Path
) -> None:
    # Every column is computed: counted alone, most would not be.
    script = "".join(
        f"SELECT '{name}' AS name, count(*) AS n FROM (SELECT * FROM (\n{text}\n) ORDER BY ALL);\n"
        for name, text in queries.items()
    )
    counts = (
        _ask_library(engine, example_database, script) if engine.is_dir() else _ask(engine, example_database, script)
    )
    assert {name: int(n) for name, n in csv.reader(counts.splitlines())} == expected


def _ask(engine: Path, path: Path, script: str) -> str:
    command = [engine, "-readonly", "-csv", "-noheader", "-bail", path]
    process = subprocess.run(command, input=script, capture_output=True, text=True)
    assert process.returncode == 0 and not process.stderr, process.stderr
    return process.stdout


def _ask_library(folder: Path, path: Path, script: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    command = [sys.executable, "-c", ASK_ALL, path]
    process = subprocess.run(command, input=script, capture_output=True, text=True, env=environment)
    assert process.returncode == 0, process.stderr
    return process.stdout


def test_every_view_column_has_a_comment_in_the_information_schema(example_database: Path) -> None:
    """Runs the queries of DBeaver and other JDBC tools: columns and comments from the information schema, and a page of
    rows.
    """
    with duckdb.connect(example_database, read_only=True) as database:
        columns = database.execute(
            'SELECT table_name, column_name, "COLUMN_COMMENT" FROM information_schema.columns AS c '
            "JOIN information_schema.tables AS t USING (table_schema, table_name) WHERE t.table_type = 'VIEW'"
        ).fetchall()
        assert len(columns) > 800
        assert not [(view, column) for view, column, comment in columns if not comment]
        for view in {view for view, *_ in columns}:
            database.execute(f'SELECT x.* FROM main."{view}" AS x LIMIT ?', [200]).fetchall()


def test_no_view_column_name_is_a_reserved_sql_keyword(example_database: Path) -> None:
    with duckdb.connect(example_database, read_only=True) as database:
        reserved = "SELECT keyword_name FROM duckdb_keywords() WHERE keyword_category IN ('reserved', 'type_function')"
        names = database.execute(
            "SELECT DISTINCT c.column_name FROM duckdb_columns() AS c "
            "JOIN duckdb_views() AS v ON v.view_oid = c.table_oid "
            f"WHERE NOT v.internal AND c.column_name IN ({reserved})"
        ).fetchall()
    assert names == []


def test_sqlalchemy_reflects_views_and_tables(example_database: Path) -> None:
    registry.register("duckdb.exitbench", "exitbench.results.database.dialect", "ExitBenchDialect")
    engine = sa.create_engine(f"duckdb+exitbench:///{example_database}")
    inspector = sa.inspect(engine)
    columns = {column["name"]: column for column in inspector.get_columns("frontier")}
    assert isinstance(columns["speedup"]["type"], sa.Double) and "time" in columns["speedup"]["comment"]
    frontier = sa.Table("frontier", sa.MetaData(), autoload_with=engine)
    everything = sa.MetaData()
    everything.reflect(engine, views=True)
    assert set(everything.tables) == {*inspector.get_view_names(), *inspector.get_table_names()}
    assert [column.name for column in everything.tables["sample"].primary_key] == ["attempt_id", "doc_key"]
    types = [column.type for table in everything.tables.values() for column in table.columns]
    assert not [thresholds for thresholds in types if isinstance(thresholds, sa.types.NullType)]
    with engine.connect() as connection:
        thresholds = connection.execute(sa.select(frontier.c.label).where(frontier.c.threshold == 0.6)).scalars().all()
        with pytest.raises(sa.exc.ProgrammingError, match="read-only"):
            connection.exec_driver_sql("DELETE FROM cell")
    engine.dispose()
    assert set(thresholds) == {"threshold=0.6"}
    with pytest.raises(sa.exc.NoSuchTableError):
        inspector.get_columns("fronteer")
