"""Similarity of states to the last block's, of easy and difficult documents (appendix A of Monotonic Early Exiting)."""

from collections.abc import Mapping
from statistics import fmean
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from exitbench.reports.figures.mee import block_axis, intervals
from exitbench.reports.frame import Frame
from exitbench.reports.labels import count, join_words, shorten
from exitbench.reports.plotting.panels import (
    draw_intervals,
    grid_of_panels,
    label_y,
    legend_above,
    title_panel,
)
from exitbench.reports.plotting.style import MUTED, series_styles

TITLE = "How states of easy and difficult documents approach the last one"
CAPTION = (
    "Cosine similarity of a block's state to that of the last block, both after the final norm: means over the tokens "
    "of full depth's own output, of easy documents (green, solid) and difficult ones (blue, dashed). Bars are 95 % "
    "intervals over documents. The classes are those of Table 1, quarters of the documents by this same cosine, so "
    "green is above blue by construction. What the figure shows is at which blocks they differ, and whether the "
    "curves rise. Appendix A of the Monotonic Early Exiting paper shows one example of each class, of a T5-large on "
    "CNN/DM, whose values were not published."
)

_CLASSES: Mapping[str, tuple[str, Literal["-", "--"]]] = {"easy": ("#009E73", "-"), "difficult": ("#0072B2", "--")}
_THRESHOLD = 0.9


def finding(frame: Frame) -> str:
    """Return a sentence on the mean cosine of easy and of difficult documents halfway through the blocks."""
    means = {}
    for (kind,), rows in frame.groups("class"):
        halfway = [row["cosine"] for row in rows.rows if row["block"] == max(1, row["blocks"] // 2)]
        if halfway:
            means[kind] = fmean(halfway)
    parts = [f"{value:.2f} for {kind} documents" for kind, value in sorted(means.items(), key=lambda item: -item[1])]
    return (
        f"Halfway through the blocks the cosine to the last state is {join_words(parts)}, mean over models and tasks."
    )


def plot(frame: Frame) -> Figure:
    """Draw one panel per model: x is the block, y the mean cosine of the block's state to the last block's.

    Two lines per task: easy and difficult documents. Frame: one row per model, task, class and block, with cosine.
    """
    markers = {task: style.marker for task, style in series_styles(frame.distinct("task")).items()}
    entries = [
        *(Line2D([], [], color=colour, linestyle=line, label=name) for name, (colour, line) in _CLASSES.items()),
        *(
            Line2D([], [], color=MUTED, marker=marker, linestyle="none", label=shorten(task, 26))
            for task, marker in markers.items()
        ),
        Line2D([], [], color=MUTED, linestyle=":", label="called similar above"),
    ]
    models = list(frame.groups("model"))
    figure, panels = grid_of_panels(len(models))
    lowest = min(0.0, *frame.values("cosine"))
    for axes, ((model,), rows) in zip(panels, models, strict=False):
        _panel(axes, rows, markers)
        axes.set_ylim(1.02 * lowest - 0.02, 1.02)
        title_panel(axes, model, f"{count(rows.values('documents'), 'documents')} a class")
    legend_above(figure, entries)
    return figure


def _panel(axes: Axes, frame: Frame, markers: dict[str, str]) -> None:
    for (task, name), rows in frame.groups("task", "class"):
        colour, line = _CLASSES[name]
        x, y = rows.values("block"), rows.values("cosine")
        draw_intervals(axes, x, intervals(rows, "cosine", -1.0), colour, along="y")
        axes.plot(x, y, color=colour, linestyle=line, marker=markers[task], markersize=4, linewidth=0.9, clip_on=False)
    axes.axhline(_THRESHOLD, color=MUTED, linestyle=":", linewidth=0.8)
    block_axis(axes, max(frame.values("blocks")))
    label_y(axes, "cosine to the last state")
