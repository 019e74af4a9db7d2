"""Fixtures of the lake tests: databases of a part of `few_spool`."""

import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from stored_rows import RowsByTable, rows_by_table

from exitbench.results.spool.attempts import scan_spool


@pytest.fixture(scope="session")
def part_of_few(
    example: ModuleType, few_spool: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[int], Path]:
    """Return a function that makes the database of every n-th attempt of `few_spool`."""

    def make(n: int) -> Path:
        folder = tmp_path_factory.mktemp("part")
        for attempt in list(scan_spool(few_spool))[::n]:
            shutil.copytree(attempt.path, folder / "spool" / attempt.path.relative_to(few_spool))
        return Path(example.ingested(folder))

    return make


@pytest.fixture(scope="session")
def fewer_database(part_of_few: Callable[[int], Path]) -> Path:
    """Return the database of a third of `few_spool`, for tests in which many processes export all of it."""
    return part_of_few(3)


@pytest.fixture(scope="session")
def fewer_rows(fewer_database: Path) -> RowsByTable:
    """Return the rows of `fewer_database`."""
    return rows_by_table(fewer_database)
