"""Fixtures of a cell, of rows for its attempts, and of all rows of the small example."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest

from exitbench.results.spool.schema import TABLES

sys.path.insert(0, str(Path(__file__).parent))  # for the module `stored_rows`

from stored_rows import RowsByTable, rows_by_table


@pytest.fixture
def cell(example: ModuleType) -> dict[str, Any]:
    """Return the content of a quality cell's cell.json."""
    return example.cell_json(example.MODELS[0], example.TASKS[0], example.FULL, "quality")


@pytest.fixture
def env(example: ModuleType) -> dict[str, Any]:
    """Return the content of env.json."""
    return example.ENV


@pytest.fixture(scope="session")
def few_rows(few_database: Path) -> RowsByTable:
    """Return the rows of `few_database`."""
    return rows_by_table(few_database)


@pytest.fixture(scope="session")
def tokens() -> pa.Table:
    """Return three tokens of one document."""
    rows = [
        {
            "doc_key": "a",
            "position": position,
            "token_id": 7,
            "token_kind": None,
            "exit_layer": 2,
            "blocks_run": 2,
            "head_rows": 100,
            "score": 0.5,
            "reason": "threshold",
        }
        for position in (1, 2, 3)
    ]
    return pa.Table.from_pylist(rows, schema=TABLES["tokens"])
