"""PRUNE's adaptive pruning of the LM head: as published, which has no effect, and as intended."""

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from exitbench.reports.figures.explain import draw_by_block, pairs_of_panels, split
from exitbench.reports.frame import Frame
from exitbench.reports.labels import between, count, percent
from exitbench.reports.plotting.panels import legend_of_series, title_panel
from exitbench.reports.plotting.style import series_styles

TITLE = "Published claim: adaptive pruning. As published it is fixed pruning"
CAPTION = (
    "Adaptive pruning should read fewer rows of the LM head the more confident the gate is. The published code keeps "
    "the first V (1 - 0.9 c) of k kept ids; with c below a threshold of 0.9 that is more than k, so nothing is cut. "
    "Left: rows of the head read after the first gated block, per token. Right: tokens whose id, exit layer and rows "
    "read are exactly those of fixed pruning (100 %: the same run). As intended: k (1 - 0.9 c) of them, by rank. Bars "
    "are 95 % intervals over documents."
)

HEADS = {
    "pruned-fixed": "fixed",
    "pruned-adaptive-code": "adaptive (published)",
    "pruned-adaptive": "adaptive, as intended",
}


def finding(frame: Frame) -> str:
    """Return a sentence on the share of tokens for which adaptive pruning as published equals fixed pruning."""
    published = [row for row in frame.rows if row["head"] == "pruned-adaptive-code"]
    if not published:
        return "Adaptive pruning as intended; the published form was not run."
    span = between(published, "same", percent, ("model", "task"))
    return f"As published, {span} of tokens under adaptive pruning are exactly those under fixed pruning."


def plot(frame: Frame) -> Figure:
    """Draw two panels per task and model: x is the first gated block (min_exit); one series per pruned head.

    Left, y is the number of LM-head rows read per token after that block (later_rows). Right, y is the share of tokens
    (0..1) that are exactly as under fixed pruning (same). Frame: one row per task, model, head and min_exit.
    """
    styles = series_styles(HEADS.values())
    figure, panels = pairs_of_panels(frame)
    for work, same, rows in panels:
        series = split(rows, "head", HEADS)
        draw_by_block(work, series, styles, ("later_rows", "later_rows_low", "later_rows_high"))
        adaptive = {label: part for label, part in series.items() if label != HEADS["pruned-fixed"]}
        draw_by_block(same, adaptive, styles, ("same", "same_low", "same_high"))
        work.set_ylabel("head rows read after\nthe first gated block, per token")
        work.set_ylim(bottom=0)
        same.set_ylim(0, 1.02)
        same.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        same.set_ylabel("tokens exactly as\nunder fixed pruning")
        size = f"{count(rows.values('tokens'), 'tokens')}, {count(rows.values('n'), 'documents').removeprefix('n = ')}"
        title_panel(same, "", size)
    legend_of_series(figure, styles)
    return figure
