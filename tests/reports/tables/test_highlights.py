"""The README's table: one setting per method, with the interval of its loss and a description of the data."""

import shutil
from pathlib import Path
from typing import Any

import duckdb

from exitbench.reports import tables
from exitbench.reports.frame import Frame
from exitbench.reports.registry import discover
from exitbench.reports.tables.columns import FilledTable, fill
from exitbench.results.database.connection import Database, open_database

(HIGHLIGHTS,) = (source for source in discover(tables) if source.name == "highlights")
ALLOWED_PERCENT = 5.0


def highlights(database: Database) -> tuple[Frame, FilledTable]:
    frame = Frame.query(database, HIGHLIGHTS.sql)
    return frame, fill(HIGHLIGHTS, frame)


def every_setting(database: Database, row: dict[str, Any]) -> list[dict[str, Any]]:
    """Return every timed setting on the model and task of the table, with its speed-up on the choosing documents."""
    rows = Frame.query(
        database,
        "SELECT f.*, p.choosing_loss_high_percent, m.value AS choosing_speedup FROM frontier AS f "
        "LEFT JOIN paired AS p USING (attempt_id) "
        "LEFT JOIN metric AS m ON m.attempt_id = f.timing_attempt_id AND m.metric = 'speedup_choosing'",
    ).rows
    same = ("model", "dtype", "device", "batch_size")
    (same_cell,) = (other for other in rows if other["cell_id"] == row["cell_id"])
    return [
        other
        for other in rows
        if other["execution"] == "real"
        and other["speedup"] is not None
        and not other["random_weights"]
        and other["task_label"] == same_cell["task_label"]
        and all(other[name] == same_cell[name] for name in same)
    ]


def test_each_method_is_shown_at_its_setting_chosen_on_choosing_documents(one_task_database: Path) -> None:
    with open_database(one_task_database) as database:
        frame, _ = highlights(database)
        setting_rows = every_setting(database, dict(frame.rows[0]))
    assert frame.rows[0]["is_full_depth"] and len(frame.rows) <= 10
    assert {row["method"] for row in frame.rows} <= {row["method"] for row in setting_rows}
    assert len({row["method"] for row in frame.rows}) == len(frame.rows)
    for row in frame.rows[1:]:
        same_method = [other for other in setting_rows if other["method"] == row["method"]]
        (same_cell,) = (other for other in same_method if other["cell_id"] == row["cell_id"])
        close = [other for other in same_method if (other["choosing_loss_high_percent"] or 0) <= ALLOWED_PERCENT]
        if close:
            assert same_cell["choosing_speedup"] == max(other["choosing_speedup"] for other in close)
        else:
            assert same_cell["choosing_loss_high_percent"] == min(
                other["choosing_loss_high_percent"] for other in same_method
            )


def test_difference_and_speed_are_those_of_the_confirming_documents(small_database: Path) -> None:
    with open_database(small_database) as database:
        frame, _ = highlights(database)
        paired = {row["cell_id"]: row for row in Frame.query(database, "FROM paired").rows}
        steps = {row["cell_id"]: row for row in Frame.query(database, "FROM pareto").rows}
    assert len(frame.rows) > 1
    for row in frame.rows[1:]:
        paired_row = paired[row["cell_id"]]
        assert row["delta"] == paired_row["confirming_delta"]
        assert (row["delta_low"], row["delta_high"]) == (
            paired_row["confirming_delta_low"],
            paired_row["confirming_delta_high"],
        )
        if row["cell_id"] in steps:
            assert row["speedup"] == steps[row["cell_id"]]["confirming_speedup"]


def test_table_of_a_limited_run_is_labeled_as_a_subset(small_database: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(small_database, tmp_path / "limited.duckdb"))
    with duckdb.connect(str(path)) as connection:
        connection.execute("UPDATE cell SET limited = true")
    with open_database(path) as database:
        _, table = highlights(database)
    assert "a part of the documents" in table.collapsed_values


def test_caption_states_data_source_and_model_size(small_database: Path) -> None:
    with open_database(small_database) as database:
        _, table = highlights(database)
    assert "Data: generated, a model of" in table.collapsed_values and "million parameters" in table.collapsed_values
    assert "Documents: " in table.collapsed_values
