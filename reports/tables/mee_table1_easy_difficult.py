"""Easy against difficult documents (Table 1 of the Monotonic Early Exiting paper)."""

from exitbench.reports.frame import Row
from exitbench.reports.tables.columns import Cell, Column, number, text

TITLE = "Easy and difficult documents"
CAPTION = (
    "Similarity s of a block's state to that of the last block L: cosine of the final-normed states, at blocks 1 to "
    "L - 1 of every token of full depth's own output. Easy and difficult are the quarters of the documents of "
    "highest and lowest mean s over tokens and blocks, so that they differ in s by construction. First similar: the "
    "first block with s ≥ 0.9, L where there is none; similar: how many such blocks; both are means (standard "
    "deviations) over the class's tokens. Length: tokens of a document. Growing: share of tokens whose s strictly "
    "increases at every block, and at every block after a sixth or a third of all (rounded, in brackets). Table 1 of "
    "the Monotonic Early Exiting paper counts 0 where no block is similar, which biases first similar down, measures "
    "length in characters, reads forced reference tokens (at most 30), takes the top and bottom 1,000 examples by "
    "their best or worst prefix, and leaves out the first 0, 4 or 8 of 24 blocks."
)
EMPTY = "No data yet: run `nox -s bench`, or any suite with `probe` cells of models with trained weights."


def _spread(heading: str, name: str, digits: int) -> Column:
    """A column ``mean (standard deviation)``."""

    def cell(row: Row) -> Cell:
        mean, std = row[f"{name}_mean"], row[f"{name}_std"]
        return Cell(f"{mean:.{digits}f} ({std:.{digits}f})", mean)

    return Column(heading, cell, numeric=True)


def _growing(heading: str, name: str, after: str) -> Column:
    """A column ``share (after block ..)``."""
    return Column(heading, lambda row: Cell(f"{row[name]:.1%} (after {row[after]})", row[name]), numeric=True)


COLUMNS = (
    text("Model", "model"),
    text("Task", "task"),
    text("Class", "class"),
    number("Documents", "n", "{:,}"),
    number("Tokens", "tokens", "{:,}"),
    number("Blocks", "blocks", "{}"),
    _spread("First similar", "first_similar", 2),
    _spread("Similar", "similar", 2),
    _spread("Length", "length", 1),
    number("Growing", "grows", "{:.1%}"),
    _growing("Growing after L/6", "grows_after_sixth", "sixth"),
    _growing("Growing after L/3", "grows_after_third", "third"),
)
