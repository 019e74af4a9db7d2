"""Cells that did not run, with the reason: a justified missing result is a result too."""

from exitbench.reports.tables.columns import method, settings, text

SECTION = "provenance"
ORDER = 30
TITLE = "Failures"
CAPTION = "Cells whose latest attempt did not succeed, with the reason."
EMPTY = "None: the latest attempt of every cell succeeded."


COLUMNS = (
    text("Model", "model"),
    text("Task", "task"),
    text("Kind of cell", "kind"),
    method("Method"),
    settings("Parameters"),
    text("KV policy", "kv_policy", collapses=True),
    text("Status", "status"),
    text("Reason", "reason", long=True),
    text("Cell", "cell_id", long=True),
)
