"""Contrastive gate over pruned heads, averaged over settings with different first gated blocks (PRUNE table 1)."""

from exitbench.reports.figures.prune import EMPTY, STAND_INS, trained_as
from exitbench.reports.figures.prune.prune_fig10_11_pruned_jsd import HEADS
from exitbench.reports.frame import Row
from exitbench.reports.tables.columns import ABSENT, TableCell, TableColumn, number, text

__all__ = ["CAPTION", "COLUMNS", "EMPTY", "TITLE"]

TITLE = "The contrastive gate over pruned heads, averaged over first gated blocks"
CAPTION = (
    "Mean ± standard deviation over settings, which differ in the first gated block: variation between settings, not "
    "the uncertainty of a result. Exit: mean exit layer as a share of all blocks. Late: first gated blocks between 15 "
    "and 21 of 24 of the depth, listed in that column, after the published 15, 17, 18, 19 and 20; all: every gated "
    "block. Such averages mislead. A late gate exits soon after the first gated block, so its mean exit shows which "
    "blocks were averaged over, not what pruning does. A mean over all blocks also counts settings whose output is "
    "broken (lowest score); “Means over settings hide what the gain costs” excludes them. And two points of score are "
    "far inside the interval over documents of one setting (figures 10 and 11). Table 1 of PRUNE (whose text says "
    "“last 4” and lists five; the numbers are in the final blog: t5-large, 100 samples), on our models and data. The "
    "published exit of fixed pruning on SamSum, 87.6 % of the blocks, is not the mean of its own five points, 82.4 %, "
    f"and the reported gain of adaptive over fixed pruning is that difference. {STAND_INS}"
)


def _spread(heading: str, name: str, form: str) -> TableColumn:
    """Return a table column ``mean ± standard deviation``, from the frame's columns `name` and `name`_std."""

    def cell(row: Row) -> TableCell:
        mean, std = row[name], row[f"{name}_std"]
        return TableCell(ABSENT if mean is None else f"{mean:{form}} ± {std:{form}}", mean)

    return TableColumn(heading, cell, numeric=True)


def _head(row: Row) -> TableCell:
    name = HEADS["contrastive-jsd", row["head"]]
    return TableCell(name, name)


def _trained(row: Row) -> TableCell:
    trained = trained_as(row)
    return TableCell(trained, trained)


COLUMNS = (
    text("Task", "task"),
    text("Model", "model"),
    TableColumn("Trained", _trained),
    TableColumn("Pruning", _head),
    number("Documents", "n", "{:,}"),
    text("Late", "late"),
    _spread("Exit, late", "depth", ".1%"),
    _spread("Score, late", "score", ".1f"),
    number("Settings", "settings", "{}"),
    _spread("Exit, all", "depth_all", ".1%"),
    _spread("Score, all", "score_all", ".1f"),
    number("Lowest score", "score_worst", "{:.1f}"),
    number("Full depth", "full_value", "{:.1f}"),
    _spread("Published exit", "published_depth", ".1%"),
    _spread("Published score", "published_score", ".1f"),
)
