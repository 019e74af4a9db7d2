"""Rank of the final token by block (PRUNE figure 1)."""

from collections.abc import Mapping

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from exitbench.reports.figures.mee import block_axis
from exitbench.reports.figures.prune import STAND_INS
from exitbench.reports.frame import Frame
from exitbench.reports.labels import between, count
from exitbench.reports.plotting.panels import grid_of_panels, label_y, legend_of_series, title_panel
from exitbench.reports.plotting.style import SeriesStyle, series_styles

TITLE = "Rank of the final token at each block"
CAPTION = (
    "Rank of full depth's token among all tokens in a block's read-out; 1 is the most probable, the axis is "
    "logarithmic. Boxes: the middle half of the tokens; marks: the median; lines: from the 1st to the 99th "
    "percentile. These are quantiles of the tokens, not the uncertainty of a mean. Of large runs, about 20,000 tokens "
    "are used, in whole documents. A head that keeps the k best tokens of a block loses the final one if its rank is "
    "above k. Figures 1a to 1d of PRUNE, which show one panel per model and data set; here models are side by side, "
    f"on our data. {STAND_INS}"
)

_WIDE = 26  # boxes that fit half a page
_ROOM = 0.8  # share of a block that the boxes of all models take


def finding(frame: Frame) -> str:
    """Return a sentence on the 99th percentile of the rank that full depth's token has at the middle block."""
    half = [row for row in frame.rows if row["block"] == max(1, row["blocks"] // 2)]
    span = between(half, "highest", "{:,.0f}".format, ("model", "task"))
    return f"Halfway through the blocks the final token is among the best {span} for 99 % of tokens."


def plot(frame: Frame) -> Figure:
    """Draw one panel per task: x is the block, y the rank of full depth's token; one box per model and block.

    Frame: one row per task, model (series) and block, with quantiles of the rank (lowest, lower, median, upper,
    highest).
    """
    series = frame.distinct("series")
    styles = series_styles(series)
    groups = list(frame.groups("task"))
    wide = max(frame.values("block")) * len(series) > _WIDE
    figure, panels = grid_of_panels(len(groups), 1 if wide else None, wide=wide)
    for axes, ((task,), rows) in zip(panels, groups, strict=False):
        axes.set_yscale("log")
        for (name,), boxes in rows.groups("series"):
            _boxes(axes, boxes, styles, name)
        block_axis(axes, max(rows.values("block")))
        axes.set_ylim(bottom=0.8)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda rank, _: f"{rank:,.0f}"))
        axes.yaxis.set_minor_locator(NullLocator())
        label_y(axes, "rank of the final token")
        title_panel(axes, task, count(rows.values("n"), "tokens a model"))
    legend_of_series(figure, styles)
    return figure


def _boxes(axes: Axes, frame: Frame, styles: Mapping[str, SeriesStyle], name: str) -> None:
    width = _ROOM / len(styles)
    style = styles[name]
    x = [row["block"] + width * (list(styles).index(name) - (len(styles) - 1) / 2) for row in frame.rows]
    axes.vlines(x, frame.values("lowest"), frame.values("highest"), color=style.colour, linewidth=1, zorder=2)
    lower, upper = frame.values("lower"), frame.values("upper")
    heights = [high - low for low, high in zip(lower, upper, strict=True)]
    axes.bar(x, heights, 0.8 * width, bottom=lower, color=style.colour, alpha=0.45, edgecolor=style.colour, zorder=2)
    axes.plot(
        x,
        frame.values("median"),
        linestyle="none",
        marker=style.marker,
        markersize=4,
        color=style.colour,
        markerfacecolor=mpl.rcParams["axes.facecolor"],
        clip_on=False,
        zorder=3,
    )
