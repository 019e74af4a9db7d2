"""Saved queries give the same answers for a score and for an error of 100 minus the score."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from stored_rows import query_rows

from exitbench.results.database.connection import Database
from exitbench.results.queries import query_names, saved_query

Opener = Callable[[Path], AbstractContextManager[Database]]

SCORES = {
    *("value", "ci_low", "ci_high", "full_value", "reference_value", "mean_value", "score", "full_score"),
    *("delta", "value_more", "our_value", "our_ci_low", "our_ci_high"),
}
"""Columns whose numbers are scores, errors or differences of them."""
OTHERWISE = {"best_settings", "what_to_use"}
"""Losses there are a share of full depth's score, or of its error."""


@pytest.fixture(scope="module")
def scores(example_database: Path, open_computed: Opener) -> Iterator[Database]:
    with open_computed(example_database) as opened:
        yield opened


@pytest.fixture(scope="module")
def errors(errors_database: Path, open_computed: Opener) -> Iterator[Database]:
    with open_computed(errors_database) as opened:
        yield opened


def test_score_and_error_have_opposite_deltas_and_equal_gains(scores: Database, errors: Database) -> None:
    query = "SELECT cell_id, delta, gain FROM frontier WHERE delta IS NOT NULL ORDER BY cell_id"
    better, turned = scores.query(query).to_pylist(), errors.query(query).to_pylist()
    assert [row["delta"] for row in turned] == pytest.approx([-row["delta"] for row in better])
    assert [row["gain"] for row in turned] == pytest.approx([row["gain"] for row in better])
    assert min(row["gain"] for row in turned) < 0


@pytest.mark.parametrize("name", sorted({*query_names()} - OTHERWISE))
def test_saved_query_gives_equal_rows_for_score_and_error(scores: Database, errors: Database, name: str) -> None:
    expected = [{column: near(value) for column, value in row.items()} for row in rows(scores, name)]
    assert rows(errors, name) == expected


def test_fastest_within_loss_is_the_same_run_for_score_and_error(scores: Database, errors: Database) -> None:
    fastest = [rows(scores, "fastest_within_loss", loss=loss) for loss in (0, 40, 80)]
    assert [rows(errors, "fastest_within_loss", loss=loss) for loss in (0, 40, 80)] == fastest
    assert fastest[0] != fastest[1] != fastest[2]


def rows(database: Database, name: str, **parameters: float) -> list[dict[str, Any]]:
    """Return the rows of a query without their scores."""
    query = saved_query(name)
    answer = query_rows(database, query.sql, {**query.defaults, **parameters})
    return [{column: value for column, value in row.items() if column not in SCORES} for row in answer]


def near(value: Any) -> Any:
    """Return a float as a value that equals it up to rounding, and any other value unchanged."""
    return pytest.approx(value, rel=1e-9, abs=1e-9) if isinstance(value, float) else value
