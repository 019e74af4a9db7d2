"""The README's table: of every method one timed setting, on one model and task, the fastest first."""

from exitbench.reports.tables.columns import DECODING_NOTE, LENGTH_NOTE, Column, method, number, settings, text
from exitbench.reports.tables.summary import blocks_run, change, exit_layer, length, quality, speedup, timed

SECTION = "results"
ORDER = 12
TITLE = "A setting of each method"
CAPTION = (
    "Of at most ten methods one setting: the fastest that is shown to lose at most 1 % of full depth's quality, or "
    "else the one that loses least; on the model and task where most methods were timed, Δ has an interval and quality "
    "differs most. "
    "Brackets are 95 % intervals, of Δ paired by document; ≈ means that full depth timed against itself differs as "
    f"much. The speed-up is of whole requests. {LENGTH_NOTE} {DECODING_NOTE} Exit layer: where tokens leave; blocks "
    "run: executed for them. Tokens = full counts full depth's tokens that the method has at the same position."
)
EMPTY = "No data yet: run `nox -s bench`, or any suite with `quality` and `timing` cells."


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
    Column("Speed-up", speedup, numeric=True),
    Column("Tokens", length, numeric=True),
    number("Per token", "speedup_per_token", "{:.2f}"),
    number("Decoding", "speedup_decode", "{:.2f}"),
    number("Ideal", "ideal_speedup_decode", "{:.2f}"),
    number("Tokens = full", "token_match", "{:.1%}"),
    text("Documents", "n", collapses=True),
    Column("Timed documents × rounds", timed, collapses=True),
)
