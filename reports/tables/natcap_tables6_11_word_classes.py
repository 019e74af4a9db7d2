"""Ideal exits by word class (Tables 6 and 11 of the natural-capability paper).

The ideal exit of a token is the first block whose most probable token is the last block's.
"""

from exitbench.reports.frame import Row
from exitbench.reports.plotting.panels import interval_around
from exitbench.reports.tables.columns import TableCell, TableColumn, number, text, with_interval

TITLE = "Ideal exits by word class"
CAPTION = (
    "Ideal exit (the first block whose most probable token is that of the last block) of the tokens of full depth's "
    "answers, by the universal part of speech (UPOS) of the token's word, with 95 % intervals over documents, and the "
    "class's share of all tagged tokens. Next to it, the values of Table 11 (and 6, its extremes) of Early Exit Is a "
    "Natural Capability for Llama-2-chat on German to English; the paper does not say whether of 32 or 40 blocks. Its "
    "tags are from Stanford CoreNLP."
)
EMPTY = (
    "Not measured: words have no tags yet. Install a tagger's model and run `exitbench annotate upos` on results with "
    "`quality` and `probe` cells of full depth."
)


def _ideal_exit(row: Row) -> TableCell:
    mean = row["ideal_exit"]
    return TableCell(with_interval(mean, *interval_around(mean, row["half_width"]), 2), mean)


COLUMNS = (
    text("Task", "task"),
    text("Model", "model"),
    text("Tagger", "tagger", collapses=True),
    text("UPOS", "upos"),
    number("Blocks", "blocks", "{}"),
    TableColumn("Ideal exit", _ideal_exit, numeric=True),
    number("Frequency, %", "frequency", "{:.1f}"),
    number("Tokens", "n", "{:,}"),
    number("Published exit", "published_exit", "{:.2f}"),
    number("Published frequency, %", "published_frequency", "{:.2f}"),
)
