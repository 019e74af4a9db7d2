"""Similarity of states to the last block's, for easy and difficult documents (Table 1, Monotonic Early Exiting)."""

from exitbench.reports.frame import Row
from exitbench.reports.tables.columns import ABSENT, TableCell, TableColumn, number, text

TITLE = "Easy and difficult documents"
CAPTION = (
    "Similarity s of a block's state to that of the last block L: cosine of the states after the final norm, at "
    "blocks 1 to L - 1 of every token of full depth's own output. Easy and difficult are the quarters of the "
    "documents with the highest and lowest mean s over tokens and blocks, so they differ in s by construction. First "
    "similar: the first block with s ≥ 0.9, L if there is none. Similar: number of such blocks. Both are means ± half "
    "of their 95 % interval over documents, if these differ, and (standard deviation) over the class's tokens. "
    "Length: tokens of a document. Growing: share of tokens whose s strictly increases at every block, and at every "
    "block after a sixth or a third of all (rounded, in parentheses); nearly growing: s falls by no more than 0.01 in "
    "total, which rounding may cause. The rows of Table 1 of the Monotonic Early Exiting paper are below ours, "
    "without intervals. It counts 0 if no block is similar, which biases first similar down. It measures length in "
    "characters, reads forced reference tokens (at most 30), and takes the top and bottom 1,000 examples by their "
    "best or worst prefix."
)
EMPTY = "No data yet: run `nox -s paper -- mee`, or any suite with `probe` cells of models with trained weights."


def _spread(heading: str, name: str, digits: int) -> TableColumn:
    """Return a table column ``mean ± half of its interval (standard deviation)``.

    The three numbers are read from the frame's columns `name`_mean, `name`_half and `name`_std.
    """

    def cell(row: Row) -> TableCell:
        mean, half, std = row[f"{name}_mean"], row[f"{name}_half"], row[f"{name}_std"]
        if mean is None:
            return TableCell(ABSENT, None)
        interval = f" ± {half:.{digits}f}" if half else ""
        return TableCell(f"{mean:.{digits}f}{interval} ({std:.{digits}f})", mean)

    return TableColumn(heading, cell, numeric=True)


def _growing(heading: str, name: str, after: str | None = None) -> TableColumn:
    """Return a table column of the share of tokens whose similarity to the last block's state grows at every block.

    A cell reads ``share ± half of its interval % (after block n)``. Columns of the frame are `name` (share),
    `name`_half and `after` (n, if only the growth after block n counts; else None).
    """

    def cell(row: Row) -> TableCell:
        share, half = row[name], row[f"{name}_half"]
        if share is None:
            return TableCell(ABSENT, None)
        interval = f" ± {100 * half:.1f}" if half else ""
        place = "" if after is None else f" (after {row[after]})"
        return TableCell(f"{100 * share:.1f}{interval} %{place}", share)

    return TableColumn(heading, cell, numeric=True)


COLUMNS = (
    text("Origin", "origin"),
    text("Model", "model"),
    text("Task", "task"),
    text("Class", "class"),
    number("Documents", "n", "{:,}"),
    number("Tokens", "tokens", "{:,}"),
    number("Blocks", "blocks", "{}"),
    _spread("First similar", "first_similar", 2),
    _spread("Similar", "similar", 2),
    _spread("Length", "length", 1),
    _growing("Growing", "grows"),
    _growing("Growing after L/6", "grows_after_sixth", "sixth"),
    _growing("Growing after L/3", "grows_after_third", "third"),
    _growing("Nearly growing", "nearly_grows"),
    _growing("Nearly growing after L/6", "nearly_grows_after_sixth", "sixth"),
    _growing("Nearly growing after L/3", "nearly_grows_after_third", "third"),
)
