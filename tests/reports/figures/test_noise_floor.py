"""A speed-up is inside the noise floor unless its interval is beyond that of full depth timed against itself, and 1."""

from importlib.resources import files
from pathlib import Path
from types import ModuleType

import duckdb
import pyarrow as pa
import pytest

from exitbench.reports import figures, tables
from exitbench.reports.registry import discover
from exitbench.results.database.connection import open_database

FLOOR = (0.98, 1.02)
VIEWS_SQL = (files("exitbench.results.database") / "views.sql").read_text("utf-8")


@pytest.fixture(scope="module")
def views(small_database: Path) -> dict[str, pa.Table]:
    """Return the tables that the queries read: one row of the frontier, no published results, and the other views
    whole.
    """
    names = ("runs", "cell", "dataset_artifact", "paired", "pareto", "calibrations", "qc")
    with open_database(small_database) as database:
        views_by_name = {name: database.query(f"SELECT * FROM {name}") for name in names}
        views_by_name["published"] = database.query("SELECT * FROM published LIMIT 0")
        views_by_name["view"] = database.query("SELECT * FROM frontier WHERE execution = 'real' LIMIT 1")
    return views_by_name


@pytest.mark.parametrize(("package", "name"), [(figures, "frontier"), (tables, "summary")])
@pytest.mark.parametrize(
    ("interval", "floor", "is_full_depth", "inside"),
    [
        ((1.10, 1.20), FLOOR, False, False),
        ((1.01, 1.20), FLOOR, False, True),
        ((0.90, 0.99), FLOOR, False, True),
        ((0.90, 0.97), FLOOR, False, False),
        ((0.90, 1.20), FLOOR, False, True),
        ((0.99, 1.20), (0.95, 0.98), False, True),
        ((0.90, 1.01), (1.02, 1.05), False, True),
        ((1.00, 1.00), FLOOR, True, False),
        ((None, None), (None, None), False, False),
    ],
)
def test_speedup_is_inside_the_noise_floor_unless_its_interval_is_beyond_it(
    package: ModuleType,
    name: str,
    interval: tuple[float | None, float | None],
    floor: tuple[float | None, float | None],
    is_full_depth: bool,
    inside: bool,
    views: dict[str, pa.Table],
) -> None:
    sql = next(source.sql for source in discover(package) if source.name == name)
    connection = duckdb.connect()
    connection.execute("CREATE MACRO share_kept(value, full_value, lower_is_better) AS value / full_value")
    connection.execute(next(part for part in VIEWS_SQL.split(";\n\n") if "MACRO inside_noise" in part))
    for table, rows in views.items():
        connection.register(table, rows)
    connection.execute(
        """CREATE TABLE frontier AS SELECT * REPLACE (
            $low::DOUBLE AS speedup_low, $high::DOUBLE AS speedup_high,
            $aa_low::DOUBLE AS aa_low, $aa_high::DOUBLE AS aa_high, $full::BOOLEAN AS is_full_depth
        ) FROM view""",
        {"low": interval[0], "high": interval[1], "aa_low": floor[0], "aa_high": floor[1], "full": is_full_depth},
    )
    (row,) = connection.sql(sql).to_arrow_table().to_pylist()
    assert row["inside_noise_floor"] is inside
