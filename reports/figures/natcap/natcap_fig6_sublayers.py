"""Read-outs of the sublayers of a block (Figure 6 of the natural-capability paper)."""

from collections.abc import Mapping
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from exitbench.reports.figures.mee import block_axis
from exitbench.reports.figures.natcap import TRAINED
from exitbench.reports.frame import Frame
from exitbench.reports.labels import count, percent, short_name
from exitbench.reports.plotting.panels import (
    draw_intervals,
    grid_of_panels,
    interval_around,
    legend_of_series,
    title_panel,
)
from exitbench.reports.plotting.style import SeriesStyle, series_styles

TITLE = "Predictions read out of the parts of a block"
CAPTION = (
    "Final norm and LM head applied to four states: the outputs that attention and feed-forward each add to the "
    "residual stream, the stream after attention, and the stream after the block. Left: the largest probability. "
    "Right: share of tokens whose most probable token there is that of the last block. Means over the tokens of a few "
    f"documents, with 95 % intervals over documents. {TRAINED} After Figure 6 of Early Exit Is a Natural Capability, "
    "which shows one token; the table after its Table 12 shows one of ours."
)

_COLUMNS = {"probability": "largest probability", "share": "is the final token"}


def finding(frame: Frame) -> str:
    """Return a sentence on the part of a block that, before the last block, most often predicts full depth's token."""
    last = {series: max(rows.values("block")) for (series,), rows in frame.groups("series")}
    before = frame.filter(lambda row: row["block"] < last[row["series"]])
    shares = [(fmean(rows.values("share")), read_out) for (read_out,), rows in before.groups("read_out")]
    if not shares:
        return "Models of one block have no earlier read-outs."
    share, read_out = max(shares)
    sentence = f"{short_name(read_out)} reads out as the final token most often: for {percent(share)} of tokens"
    return f"Before the last block, {sentence}."


def plot(frame: Frame) -> Figure:
    """Draw two panels per model: x is the block; one line per read-out (part of the block whose output is read).

    Left, y is the mean largest probability of any token; right, the share of tokens (0..1) whose argmax is full
    depth's. Frame: one row per model (series), read_out and block, with probability and share.
    """
    styles = series_styles(frame.distinct("read_out"))
    models = list(frame.groups("series"))
    figure, panels = grid_of_panels(2 * len(models), columns=2)
    for place, ((series,), rows) in enumerate(models):
        for axes, (column, label) in zip(panels[2 * place : 2 * place + 2], _COLUMNS.items(), strict=True):
            _panel(axes, rows, styles, column)
            title_panel(axes, *([series] if column == "probability" else ["", count(rows.values("n"), "tokens")]))
            axes.set_ylabel(label)
    legend_of_series(figure, styles)
    return figure


def _panel(axes: Axes, frame: Frame, styles: Mapping[str, SeriesStyle], column: str) -> None:
    for (read_out,), rows in frame.groups("read_out"):
        style, x, y = styles[read_out], rows.values("block"), rows.values(column)
        intervals = list(map(interval_around, y, rows.values(f"{column}_half_width")))
        draw_intervals(axes, x, intervals, style.colour, along="y")
        axes.plot(x, y, color=style.colour, marker=style.marker, markersize=4.5, linewidth=0.9, clip_on=False)
    axes.set_ylim(0, 1.02)
    block_axis(axes, max(frame.values("block")))
