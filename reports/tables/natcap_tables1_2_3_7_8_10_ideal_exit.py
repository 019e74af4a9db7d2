"""Ideal exits by task and model (Tables 1, 2, 3, 7, 8 and 10 of the natural-capability paper).

The ideal exit of a token is the first block whose most probable token is the last block's.
"""

from exitbench.reports.figures.natcap import EMPTY
from exitbench.reports.frame import Row
from exitbench.reports.plotting.panels import interval_around
from exitbench.reports.tables.columns import TableCell, TableColumn, number, text, with_interval

__all__ = ["CAPTION", "COLUMNS", "EMPTY", "TITLE"]

TITLE = "Ideal exit by task and model"
CAPTION = (
    "Ideal exit: the first block whose most probable token is that of the last block, mean over the tokens of full "
    "depth's own output. Depth: the same as a share of all blocks. Able to exit: tokens whose ideal exit is not the "
    "last block. Score: full depth's. Brackets are 95 % intervals over documents. Trained on: the last block alone, "
    "or every block (joint optimisation). Rows from Tables 1, 2, 3, 7, 8 and 10 of Early Exit Is a Natural Capability "
    "are of other models on other data of the same kind. The paper does not say whether it counts blocks from 0 or 1; "
    "BERT on RTE is printed as 4.34 and as 3.60. The size of our models is in the column Parameters; most are small. "
    "For an encoder a document is one token, its label, and the ideal exits are those of an oracle's run (suite "
    "`builtin-encoder`, on generated sentences). Code and reasoning (GSM8K) are measured by suite `lm-eval`."
)


def _ideal_exit(row: Row) -> TableCell:
    mean = row["ideal_exit"]
    return TableCell(with_interval(mean, *interval_around(mean, row["ideal_half_width"]), 2), mean)


def _can_exit(row: Row) -> TableCell:
    mean = row["can_exit"]
    return TableCell(with_interval(mean, *interval_around(mean, row["can_exit_half_width"], 0.0, 100.0), 1), mean)


def _depth(row: Row) -> TableCell:
    if row["ideal_exit"] is None:
        return TableCell("–", None)
    share = row["ideal_exit"] / row["blocks"]
    return TableCell(f"{share:.0%}", share)


COLUMNS = (
    text("Kind", "kind"),
    text("From", "printed_in"),
    text("Data", "data"),
    text("Model", "model"),
    number("Parameters", "parameters", "{:,}"),
    text("Trained on", "training"),
    number("Blocks", "blocks", "{}"),
    TableColumn("Ideal exit", _ideal_exit, numeric=True),
    TableColumn("Depth", _depth, numeric=True),
    TableColumn("Able to exit, %", _can_exit, numeric=True),
    text("Score", "score", long=True),
    number("Tokens", "n", "{:,}"),
)
