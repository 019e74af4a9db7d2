"""The README's table: one timed setting per method, on one model and task, the fastest first."""

from exitbench.reports.labels import OTHER_LENGTH
from exitbench.reports.tables.columns import TableColumn, method, number, settings, text
from exitbench.reports.tables.summary import blocks_run, change, exit_layer, marked, number_format, quality, speedup

SECTION = "results"
ORDER = 12
TITLE = "One setting per method"
CAPTION = (
    "One setting per method, chosen on a third of the documents: the fastest whose loss these bound by 5 % of full "
    "depth's quality, or else the one that loses least. Δ is the difference to full depth, paired by document. Δ and "
    "the speed-up are from the other documents, also of the timed ones. Brackets are "
    "95 % intervals. The speed-up is of whole requests (≈: "
    f"within the noise floor of full depth timed against itself; {OTHER_LENGTH}: answers are more than 5 % shorter or "
    "longer than full depth's). Tokens = full: agreement, the share of full depth's tokens that the method has at the "
    "same position."
)
EMPTY = "Nothing timed: add `timing` to the kinds of a suite, or run `nox -s bench`."


COLUMNS = (
    text("Model", "model", collapses=True),
    text("Task", "task", collapses=True),
    text("Data", "data", collapses=True),
    text("Setting", "setting", collapses=True),
    text("Machine", "machine", collapses=True),
    text("Metric", "metric", collapses=True),
    method("Method"),
    settings("Parameters"),
    TableColumn("Quality", quality, numeric=True),
    TableColumn("Δ", change, numeric=True),
    TableColumn("Exit layer", exit_layer, numeric=True),
    TableColumn("Blocks run", blocks_run, numeric=True),
    marked(TableColumn("Speed-up", speedup, numeric=True)),
    number("Tokens = full", "token_match", "{:.1%}"),
    TableColumn("Against float32", number_format, long=True, hidden_if_empty=True, collapses=True),
    text("Documents", "n", collapses=True),
    text("Timed documents", "timed_documents", collapses=True),
)
