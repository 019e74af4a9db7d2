"""Results of enough documents that a loss is shown to be small."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from exitbench.reports import tables
from exitbench.reports.frame import Frame, Row


@pytest.fixture(scope="session")
def front_database(example: ModuleType, database_of: Callable[[Any], Path]) -> Path:
    """One model on two tasks, 300 documents: full depth, static depths, random exits, three thresholds. Read only."""
    return database_of(example.FRONT)


@pytest.fixture(scope="session")
def results(front_database: Path, rows_of: Callable[..., Frame]) -> tuple[Row, ...]:
    """Rows of the results table."""
    return rows_of(front_database, tables, "summary").rows


@pytest.fixture(scope="session")
def calibrations(front_database: Path, rows_of: Callable[..., Frame]) -> tuple[Row, ...]:
    """Rows of the table of calibrated thresholds."""
    return rows_of(front_database, tables, "calibrations").rows
