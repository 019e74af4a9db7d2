"""The README's table: every timed setting on one model and task, the fastest first."""

from exitbench.reports.tables.columns import Column, method, number, settings, text
from exitbench.reports.tables.summary import delta, exit_layer, quality, speedup

SECTION = "results"
ORDER = 5
TITLE = "At a glance"
CAPTION = (
    "Every timed setting on the model and task where most methods were timed, and of those where their quality differs "
    "most. Brackets are 95 % intervals; ≈ means that full depth timed against itself differs as much. The ideal "
    "speed-up counts the bytes read."
)
EMPTY = "No data yet: run `nox -s bench`, or any suite with `quality` and `timing` cells."

COLUMNS = (
    text("Model", "model", collapses=True),
    text("Task", "task", collapses=True),
    text("Setting", "setting", collapses=True),
    text("Machine", "machine", collapses=True),
    text("Metric", "metric", collapses=True),
    method("Method"),
    settings("Parameters"),
    Column("Quality", quality, numeric=True),
    Column("Δ", delta, numeric=True),
    Column("Exit layer", exit_layer, numeric=True),
    Column("Speed-up", speedup, numeric=True),
    number("Ideal", "ideal_speedup_bytes", "{:.2f}"),
    number("Tokens = full", "token_match", "{:.1%}"),
    text("Documents", "n", collapses=True),
)
