"""Findings about the runs, most severe first."""

from exitbench.reports.frame import Row
from exitbench.reports.tables.columns import TableCell, TableColumn, number, text

SECTION = "findings"
ORDER = 5
TITLE = "Findings"
CAPTION = (
    "Findings of rules over all runs, most severe first. 3: do not cite these runs; 2: look before you cite them; 1: "
    "a remark. A finding shared by several runs is one row. `exitbench check` names the runs."
)
EMPTY = "None: no rule has a finding about these runs."

_WORDS = {3: "3 · do not cite", 2: "2 · look first", 1: "1 · remark"}


def _severity(row: Row) -> TableCell:
    return TableCell(_WORDS[row["severity"]], -row["severity"], muted=row["severity"] == 1)


COLUMNS = (
    TableColumn("Severity", _severity),
    text("Rule", "rule"),
    text("Finding", "message", long=True),
    number("Runs", "runs", "{:,}"),
    text("Cells", "kind"),
    text("Models", "model", long=True),
    text("Tasks", "task", long=True),
    text("Methods", "method", long=True),
)
