"""Fixtures of the lake tests: `few_database` as a lake, and the rows of a database or a lake, for comparison."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from exitbench.results.database.connection import Database, open_database
from exitbench.results.database.tables import declared_tables, quoted
from exitbench.results.ingest.ingest import ingest
from exitbench.results.lake.export import export_lake
from exitbench.results.spool.attempts import scan_spool

Rows = dict[str, list[str]]


def rows(database: Database) -> Rows:
    """Return the sorted rows of every table except `schema_version`, which has the date of creation."""
    names = [name for name in declared_tables() if name != "schema_version"]
    return {name: sorted(map(repr, database.duck.execute(f"FROM {quoted(name)}").fetchall())) for name in names}


@pytest.fixture(scope="session")
def rows_by_table() -> Callable[[Database], Rows]:
    """Return a function that gives the rows of a database or a lake by table."""
    return rows


@pytest.fixture(scope="session")
def few_rows(few_database: Path) -> Rows:
    """Return the sorted rows of `few_database`, by table."""
    with open_database(few_database) as database:
        return rows(database)


@pytest.fixture(scope="session")
def part_of_few(few_spool: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """Return a function that makes the database of every n-th attempt of `few_spool`."""

    def make(n: int) -> Path:
        folder = tmp_path_factory.mktemp("part")
        for attempt in list(scan_spool(few_spool))[::n]:
            shutil.copytree(attempt.path, folder / "spool" / attempt.path.relative_to(few_spool))
        ingest(folder / "spool", folder / "exitbench.duckdb")
        return folder / "exitbench.duckdb"

    return make


@pytest.fixture(scope="session")
def fewer_database(part_of_few: Callable[[int], Path]) -> Path:
    """Return the database of a third of `few_spool`, for tests in which many processes export all of it."""
    return part_of_few(3)


@pytest.fixture(scope="session")
def fewer_rows(fewer_database: Path) -> Rows:
    """Return the sorted rows of `fewer_database`, by table."""
    with open_database(fewer_database) as database:
        return rows(database)


@pytest.fixture(scope="session")
def few_lake(few_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return `few_database` exported as a lake, which tests must not change."""
    pytest.importorskip("deltalake", reason="deltalake is not installed (pip install 'exitbench[lake]')")
    lake = tmp_path_factory.mktemp("few-lake") / "lake"
    with open_database(few_database) as database:
        export_lake(database.duck, str(lake))
    return lake
