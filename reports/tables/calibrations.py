"""Table of all thresholds (levels) that calibrations tested, and of those chosen with a statistical guarantee."""

from exitbench.reports.frame import Row
from exitbench.reports.tables.columns import ABSENT, TableCell, TableColumn, method, number, settings, text
from exitbench.results.statistics.risk_control import documents_needed

ORDER = 15
TITLE = "Calibrated thresholds"
CAPTION = (
    "Tested levels, from the most conservative, each a real decode of the calibration split. The chosen level is the "
    "last one whose loss is shown to be at most δ with confidence 1 - ε. It is checked on held-out documents. Needed: "
    "number of documents with which a failed level would have passed, if its loss stays the same."
)
EMPTY = (
    "No calibration yet: run `nox -s bench`, or `exitbench run --kinds calibration` with any suite that has a "
    "[[calibration]]."
)


def _held_out_cell(row: Row) -> TableCell:
    if row["held_out_loss"] is None:
        return TableCell(ABSENT, None)
    interval = f" [{row['held_out_low']:.3f}, {row['held_out_high']:.3f}]" if row["held_out_low"] is not None else ""
    return TableCell(f"{row['held_out_loss']:.3f}{interval}", row["held_out_loss"])


def needed(row: Row) -> TableCell:
    """Return the cell with the number of documents with which a failed level would have passed at the same mean loss.

    A level is a threshold that calibration tested. The cell is a dash for levels that did not fail, for rules other
    than Hoeffding-Bentkus, and if the mean loss is δ or more.
    """
    if row["verdict"] != "failed" or row["rule"] != "hoeffding-bentkus":
        return TableCell(ABSENT, None)
    documents = documents_needed(row["mean_loss"], row["delta"], row["epsilon"])
    return TableCell(ABSENT if documents is None else f"{documents:,}", documents)


COLUMNS = (
    text("Model", "model"),
    text("Task", "task"),
    method("Method"),
    settings("Parameters"),
    text("KV policy", "kv_policy", collapses=True),
    text("Consistency", "consistency", collapses=True),
    text("Rule", "rule", collapses=True),
    number("δ", "delta", "{:g}"),
    number("ε", "epsilon", "{:g}"),
    number("Documents", "n", "{:,}"),
    number("Threshold", "threshold", "{:g}"),
    number("Loss", "mean_loss", "{:.3f}"),
    number("p", "p_value", "{:.4f}"),
    number("Exit layer", "mean_exit_layer", "{:.2f}"),
    text("Verdict", "verdict"),
    TableColumn("Needed", needed, numeric=True, hidden_if_empty=True),
    TableColumn("Held-out loss [95 %]", _held_out_cell, numeric=True),
)
