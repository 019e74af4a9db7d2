"""Table of models and tasks: full depth's quality, and the setting that saves most at a loss of at most 5 %."""

from exitbench.reports.frame import Row
from exitbench.reports.labels import labels, setting
from exitbench.reports.tables.columns import (
    ABSENT,
    TableCell,
    TableColumn,
    marked,
    metric_digits,
    number,
    text,
    with_interval,
)
from exitbench.reports.tables.summary import change

SECTION = "results"
FACETS = {"Task": "task", "Model": "model"}
ORDER = 9
TITLE = "Models and tasks"
CAPTION = (
    "One row per model and task: full depth's quality, and the setting that saves most within 5 % of it. Agreement "
    "at L/2: share of full depth's tokens that the block at half the depth predicts (from a probe). Oracle: mean "
    "exit layer if every token exits at the first block that agrees with the last, which no method knows "
    "beforehand; later blocks may disagree again, and such answers can differ from full depth's. Best setting: the one "
    "with the largest ideal speed-up (full depth's bytes read over the method's) "
    "among those whose loss has a bound of 5 % of full depth's quality. Δ is its difference to "
    "full depth, paired by document. It was chosen on the same documents, and its interval is not corrected for the "
    "number of settings. None is chosen where full depth is near its floor: below 5 of 100, or not shown to be better "
    "than guessing. Speed-up: measured, of whole requests. Brackets are 95 % "
    "intervals, which agreement and oracle lack here; a dash: not measured, "
    "or no such setting."
)
EMPTY = "No data yet: run `nox -s bench`, or any suite with `quality` cells."


def _full_depth(row: Row) -> TableCell:
    low, high = row["full_low"], row["full_high"]
    return TableCell(with_interval(row["full_value"], low, high, metric_digits(row)), row["full_value"])


def _of_blocks(heading: str, name: str) -> TableColumn:
    def cell(row: Row) -> TableCell:
        return TableCell(ABSENT if row[name] is None else f"{row[name]:.1f} of {row['blocks']}", row[name])

    return TableColumn(heading, cell, numeric=True)


def _setting(row: Row) -> TableCell:
    if row["is_near_floor"]:
        return TableCell("full depth is near its floor", None)
    if row["method"] is None:
        return TableCell(ABSENT, None)
    label = labels([row])[setting(row)]
    return TableCell(marked(row, label), label)


def _change(row: Row) -> TableCell:
    return TableCell(ABSENT, None) if row["method"] is None else change(row)


def _speedup(row: Row) -> TableCell:
    return TableCell(with_interval(row["speedup"], row["speedup_low"], row["speedup_high"], 2), row["speedup"])


COLUMNS = (
    text("Model", "model"),
    text("Task", "task"),
    text("Conditions", "setting", collapses=True, on_demand=True),
    text("Metric", "metric"),
    number("n", "n", "{:,}"),
    TableColumn("Full depth", _full_depth, numeric=True),
    number("Agreement at L/2", "agreement_mid", "{:.0%}"),
    _of_blocks("Oracle", "oracle_exit"),
    TableColumn("Best setting", _setting, long=True),
    TableColumn("Δ", _change, numeric=True),
    _of_blocks("Exit layer", "mean_exit_layer"),
    number("Ideal speed-up", "ideal_speedup_bytes", "{:.2f}×"),
    TableColumn("Speed-up", _speedup, numeric=True),
)
