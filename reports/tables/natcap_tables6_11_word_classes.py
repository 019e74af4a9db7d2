"""Ideal exits by word class (Tables 6 and 11 of the natural-capability paper)."""

from exitbench.reports.frame import Row
from exitbench.reports.tables.columns import TableCell, TableColumn, number, text, with_interval

TITLE = "Which words need many blocks: ideal exits by word class"
CAPTION = (
    "Ideal exit (the first block whose most likely token is that of the last block) of the tokens of full depth's "
    "answers, by the universal part of speech (UPOS) of the word that a token belongs to, with 95 % intervals over "
    "documents, and the class's share of all tagged tokens. Beside it what Table 11 (and 6, its extremes) of Early "
    "Exit Is a Natural Capability prints for Llama-2-chat on German to English, of 32 or 40 blocks, which it does not "
    "say; its tags are of Stanford CoreNLP."
)
EMPTY = (
    "Not measured: words have no tags yet. Install a tagger's model and run `exitbench annotate upos` on results with "
    "`quality` and `probe` cells of full depth."
)


def _ideal_exit(row: Row) -> TableCell:
    mean, half = row["ideal_exit"], row["half_width"]
    low, high = (None, None) if half is None else (mean - half, mean + half)
    return TableCell(with_interval(mean, low, high, 2), mean)


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
