"""The README's table: of every method one timed setting, on one model and task, the fastest first."""

from dataclasses import replace

from exitbench.reports.frame import Row
from exitbench.reports.labels import OTHER_LENGTH
from exitbench.reports.tables.columns import Cell, Column, method, number, settings, text
from exitbench.reports.tables.summary import blocks_run, change, exit_layer, quality, speedup, timed

SECTION = "results"
ORDER = 12
TITLE = "A setting of each method"
CAPTION = (
    "Of each method the fastest setting that is shown to lose at most 1 % of full depth's quality, or else the one "
    "that loses least. Brackets are 95 % intervals; those of Δ, the difference to full depth, are paired by document. "
    "The speed-up is of whole requests (≈: full depth timed against itself varies as much; "
    f"{OTHER_LENGTH}: answers are more than 5 % shorter or longer than full depth's). "
    "Tokens = full: the share of full depth's tokens that the method has at the same position."
)
EMPTY = "No data yet: run `nox -s bench`, or any suite with `quality` and `timing` cells."


def marked_speedup(row: Row) -> Cell:
    """Return the measured speed-up, marked where answers of another length have a part in it."""
    cell = speedup(row)
    return replace(cell, text=f"{OTHER_LENGTH} {cell.text}") if row["is_other_length"] else cell


COLUMNS = (
    text("Model", "model", collapses=True),
    text("Task", "task", collapses=True),
    text("Data", "data", collapses=True),
    text("Setting", "setting", collapses=True),
    text("Machine", "machine", collapses=True),
    text("Metric", "metric", collapses=True),
    method("Method"),
    settings("Parameters"),
    Column("Quality", quality, numeric=True),
    Column("Δ", change, numeric=True),
    Column("Exit layer", exit_layer, numeric=True),
    Column("Blocks run", blocks_run, numeric=True),
    Column("Speed-up", marked_speedup, numeric=True),
    number("Tokens = full", "token_match", "{:.1%}"),
    text("Documents", "n", collapses=True),
    Column("Timed documents × rounds", timed, collapses=True),
)
