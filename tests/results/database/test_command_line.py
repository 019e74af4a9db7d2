"""A database is more than our own library can read: DuckDB's command line, of an older version, reads all of it."""

import subprocess
import sysconfig
from pathlib import Path

import pytest

from exitbench.results.database.connection import open_database
from exitbench.results.ingest.ingest import ingest


def _ask(path: Path, sql: str) -> str:
    command = Path(sysconfig.get_path("scripts")) / "duckdb"
    done = subprocess.run([command, "-readonly", "-csv", "-noheader", path, sql], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def path(example_spool: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("database") / "exitbench.duckdb"
    ingest(example_spool, path)
    return path


def test_every_view_can_be_asked_with_the_command_line_alone(path: Path) -> None:
    views = _ask(path, "SELECT view_name FROM duckdb_views() WHERE NOT internal").split()
    assert len(views) > 20
    with open_database(path) as database:
        for view in views:
            (row,) = database.query(f"SELECT count(*) AS n FROM (FROM {view})").to_pylist()
            # Every column is computed: counted alone, most would not be.
            assert _ask(path, f"SELECT count(*) FROM (FROM {view} ORDER BY ALL)").strip() == str(row["n"]), view
