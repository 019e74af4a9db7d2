"""The README's table: of each method one setting, with the interval of what it loses, and of which data it is."""

from pathlib import Path
from typing import Any

from exitbench.reports import tables
from exitbench.reports.frame import Frame
from exitbench.reports.registry import discover
from exitbench.reports.tables.filled import FilledTable, fill
from exitbench.results.database.connection import Database, open_database

(HIGHLIGHTS,) = (source for source in discover(tables) if source.name == "highlights")
ALLOWED_PERCENT = 1.0


def made(database: Database) -> tuple[Frame, FilledTable]:
    frame = Frame.query(database, HIGHLIGHTS.sql)
    return frame, fill(HIGHLIGHTS, frame)


def every_setting(database: Database, row: dict[str, Any]) -> list[dict[str, Any]]:
    """All that was timed on the model and task of the table."""
    rows = Frame.query(
        database, "SELECT f.*, p.loss_high_percent FROM frontier AS f LEFT JOIN paired AS p USING (attempt_id)"
    ).rows
    same = ("model", "dtype", "device", "batch_size")
    (own,) = (other for other in rows if other["cell_id"] == row["cell_id"])
    return [
        other
        for other in rows
        if other["execution"] == "real"
        and other["speedup"] is not None
        and not other["random_weights"]
        and other["task_label"] == own["task_label"]
        and all(other[name] == own[name] for name in same)
    ]


def test_each_method_is_shown_at_its_fastest_setting_that_is_shown_to_lose_little(small_database: Path) -> None:
    with open_database(small_database) as database:
        frame, _ = made(database)
        known = every_setting(database, dict(frame.rows[0]))
    assert frame.rows[0]["is_full_depth"] and len(frame.rows) <= 10
    assert {row["method"] for row in frame.rows} <= {row["method"] for row in known}
    assert len({row["method"] for row in frame.rows}) == len(frame.rows)
    for row in frame.rows:
        others = [other for other in known if other["method"] == row["method"]]
        close = [other for other in others if (other["loss_high_percent"] or 0) <= ALLOWED_PERCENT]
        faster = [other for other in close if other["speedup_low"] > max(1, other["aa_high"] or 1)]
        if close:
            assert row["speedup"] == max(other["speedup"] for other in faster or close)
        else:
            assert row["delta"] == max(other["delta"] for other in others)


def test_what_a_setting_loses_has_the_interval_of_the_view_paired(small_database: Path) -> None:
    with open_database(small_database) as database:
        frame, _ = made(database)
        paired = {row["cell_id"]: row for row in Frame.query(database, "FROM paired").rows}
    assert len(frame.rows) > 1
    for row in frame.rows[1:]:
        own = paired[row["cell_id"]]
        assert (row["delta_low"], row["delta_high"]) == (own["delta_low"], own["delta_high"])


def test_the_caption_says_of_which_data_and_how_large_a_model_it_is(small_database: Path) -> None:
    with open_database(small_database) as database:
        _, table = made(database)
    assert "Data: generated, a model of" in table.agreed and "million parameters" in table.agreed
    assert "Documents: " in table.agreed
