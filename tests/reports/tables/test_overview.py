"""The overview of models and tasks, on the bundled results of real models."""

from pathlib import Path

from exitbench.reports.frame import Frame
from exitbench.reports.tables import overview
from exitbench.results.ingest.opening import open_snapshot


def test_no_setting_is_chosen_where_full_depth_is_near_its_floor() -> None:
    with open_snapshot("real") as database:
        rows = Frame.query(database, Path(overview.__file__).with_suffix(".sql").read_text()).rows
    by_task = {row["task"]: row for row in rows}
    assert by_task["mmlu"]["is_near_floor"] and by_task["mmlu"]["method"] is None
    assert not by_task["mrpc"]["is_near_floor"] and by_task["mrpc"]["method"] is not None
    (setting,) = (column for column in overview.COLUMNS if column.heading == "Best setting")
    assert setting.cell(by_task["mmlu"]).text == "full depth is near its floor"
