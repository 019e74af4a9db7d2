"""Fixtures of results over enough documents to confirm a small loss."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from exitbench.reports import tables
from exitbench.reports.frame import Frame, Row


@pytest.fixture(scope="session")
def front_database(example: ModuleType, database_of: Callable[[Any], Path]) -> Path:
    """Return a read-only database: one model, two tasks, 300 documents; full depth, static, random, a sweep."""
    return database_of(example.FRONT)


@pytest.fixture(scope="session")
def results(front_database: Path, rows_of: Callable[..., Frame]) -> tuple[Row, ...]:
    """Return the rows of the results table."""
    return rows_of(front_database, tables, "summary").rows


@pytest.fixture(scope="session")
def calibrations(front_database: Path, rows_of: Callable[..., Frame]) -> tuple[Row, ...]:
    """Return the rows of the table of calibrated thresholds."""
    return rows_of(front_database, tables, "calibrations").rows
