"""PRUNE's decaying pruning: a shrinking list of token ids, cut by rank or by id."""

from statistics import fmean

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from exitbench.reports.figures.explain import FULL_DEPTH, draw_by_block, label_quality, pairs_of_panels, split
from exitbench.reports.frame import Frame
from exitbench.reports.labels import join_words, percent
from exitbench.reports.plotting.panels import legend_of_series
from exitbench.reports.plotting.style import MUTED, SeriesStyle, series_styles

TITLE = "Published claim: decaying pruning. The list was cut by token id, not by rank"
CAPTION = (
    "The softmax gate over pruned heads. Fixed pruning keeps the k best tokens of the first gated block; decaying "
    "pruning keeps fewer at every block. The published code sorts the kept ids before it cuts, and so keeps the "
    "smallest ids instead of the best ranked. Left: tokens equal to full depth's. Right: the task's metric, dotted at "
    "full depth. Series are drawn side by side at each block; bars are 95 % intervals over documents."
)

HEADS = {
    "full": "whole vocabulary",
    "pruned-fixed": "pruned, fixed list",
    "pruned-decaying": "decaying by rank: intended",
    "pruned-decaying-idsorted": "decaying by id: published",
}


def finding(frame: Frame) -> str:
    """Return a sentence on the share of tokens equal to full depth's, with lists of token ids cut by id and by rank."""
    parts = []
    for head, words in (("pruned-decaying-idsorted", "by id, as published"), ("pruned-decaying", "by rank")):
        shares = [row["token_match"] for row in frame.rows if row["head"] == head and row["token_match"] is not None]
        if shares:
            parts.append(f"{percent(fmean(shares))} cut {words}")
    return (
        f"Tokens equal to full depth's under a decaying list, on average: {join_words(parts)}."
        if parts
        else "Fixed lists alone were run."
    )


def plot(frame: Frame) -> Figure:
    """Draw two panels per task and model: x is the first gated block (min_exit); one series per head.

    Left, y is the share of tokens equal to full depth's (token_match, 0..1); right, the task's metric (value). Frame:
    one row per task, model, head and min_exit.
    """
    styles: dict[str, SeriesStyle] = series_styles(HEADS.values())
    figure, panels = pairs_of_panels(frame)
    for match, quality, rows in panels:
        series = split(rows, "head", HEADS)
        draw_by_block(match, series, styles, ("token_match", "token_match_low", "token_match_high"))
        draw_by_block(quality, series, styles, ("value", "ci_low", "ci_high"))
        quality.axhline(rows.rows[0]["full_value"], color=MUTED, linestyle=":", linewidth=1)
        match.set_ylabel("tokens equal to full depth")
        match.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        label_quality(quality, rows)
    legend_of_series(figure, styles, [FULL_DEPTH])
    return figure
