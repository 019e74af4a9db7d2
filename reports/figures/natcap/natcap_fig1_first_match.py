"""Distribution of the first block that agrees with the last block (Figure 1 of the natural-capability paper)."""

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from exitbench.reports.figures.natcap import TRAINED, draw_means, panels_by_task
from exitbench.reports.frame import Frame
from exitbench.reports.labels import between
from exitbench.reports.plotting.panels import draw_intervals, draw_published, interval_around, label_y, published_entry
from exitbench.reports.plotting.style import SeriesStyle

TITLE = "The first block that agrees with the last block"
CAPTION = (
    "Share of tokens by the ideal exit: the first block whose most probable token is that of the last block, in a "
    "full-depth pass over the model's own output, read out through final norm and LM head. Later blocks may disagree "
    "again. Bars are 95 % intervals over documents. At the top: each model's mean ideal exit. Crosses: the means "
    "that Tables 1 and 2 report for Llama-2-chat (32 and 40 blocks) and Transformer-base (6) on other data of the "
    "same kind, at the same share of the depth; the paper does not say whether it counts blocks from 0 or 1. "
    f"{TRAINED} After Figure 1 of Early Exit Is a Natural Capability, which shows other models and tasks."
)

_SHARES = ("share", "half_width")
_MEANS_ABOVE = 1.12
"""Height of the means, over the largest share."""


def finding(frame: Frame) -> str:
    """Return a sentence on the range of mean ideal exits: first blocks that agree with the last block."""
    local = [row for row in frame.rows if row["origin"] == "ours"]
    span = between(local, "ideal_exit", "{:.1f}".format, ("model", "task"))
    return f"A token's read-out first agrees with the last block after {span} blocks on average."


def plot(frame: Frame) -> Figure:
    """Draw one panel per task: x is the block, y the share of tokens (0..1) with this ideal exit; one line per model.

    The ideal exit is the first block that agrees with the last; its means are at the top. Frame: one row per task,
    model (series) and block, with share and ideal_exit (the mean); published rows have only the latter.
    """
    local = frame.filter(lambda row: row["origin"] == "ours")
    published = [row for row in frame.rows if row["origin"] == "published"]

    def panel(axes: Axes, rows: Frame, styles: Mapping[str, SeriesStyle]) -> None:
        draw_means(axes, rows, styles, "block", "share")
        height = _MEANS_ABOVE * max(share + (half or 0) for share, half in zip(*map(rows.values, _SHARES), strict=True))
        axes.set_ylim(0, _MEANS_ABOVE * height)
        axes.yaxis.set_major_formatter(PercentFormatter(1))
        label_y(axes, "tokens that first match here")
        _ideal_exits(axes, rows, styles, height)
        task, blocks = rows.rows[0]["task"], max(rows.values("blocks"))
        exits = [row["ideal_exit"] / row["blocks"] * blocks for row in published if row["task"] == task]
        draw_published(axes, exits, [height] * len(exits))

    return panels_by_task(local, panel, [published_entry()] if published else [])


def _ideal_exits(axes: Axes, frame: Frame, styles: Mapping[str, SeriesStyle], height: float) -> None:
    for (series,), rows in frame.groups("series"):
        style, mean, half = styles[series], rows.rows[0]["ideal_exit"], rows.rows[0]["ideal_half_width"]
        draw_intervals(axes, [height], [interval_around(mean, half)], style.colour, along="x")
        axes.plot([mean], [height], color=style.colour, marker=style.marker, markersize=5, linestyle="none")
