"""A run that the report exports as a suite is planned as the same cells."""

from pathlib import Path

from exitbench.harness.planning.plan import make_plan
from exitbench.harness.planning.suite import load_suite
from exitbench.reports.front import read_front
from exitbench.reports.front.suite_toml import FOLDER, suite_toml
from exitbench.results.database.connection import open_database
from exitbench.results.ingest.ingest import ingest


def test_suite_exported_from_a_run_plans_the_same_cells(finished: Path, worded_model: Path, tmp_path: Path) -> None:
    ingest(finished / "spool", tmp_path / "exitbench.duckdb")
    with open_database(tmp_path / "exitbench.duckdb") as database:
        exports = read_front(database).exports
        timed = database.query("SELECT count(*) AS n FROM runs WHERE kind = 'timing'")["n"].to_pylist()
    assert {row["method"] for row in exports} == {"full", "calm-softmax", "calm-classifier", "random"}
    kinds = []
    for row in exports:
        text = suite_toml(row, f"again-{row['method']}")
        assert text is not None and FOLDER in text, "a database does not know where somebody's checkpoint lies"
        suite = tmp_path / "suite.toml"
        suite.write_text(text.replace(FOLDER, str(worded_model)))
        plan = make_plan(load_suite(suite), finished / "spool", tmp_path / "models", None)
        planned = {cell.item.cell.cell_id: cell for group in plan.groups for cell in group.cells}
        assert row["cell_id"] in planned
        assert {cell.state for cell in planned.values()} == {"done"}, "cells of any other id would be new"
        kinds += [cell.item.cell.kind for cell in planned.values()]
    assert kinds.count("timing") == timed[0] == 1
