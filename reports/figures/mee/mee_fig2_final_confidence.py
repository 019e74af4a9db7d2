"""Confidence in the final prediction by block (Figure 2 of the Monotonic Early Exiting paper and of its blog)."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from exitbench.reports.figures.mee import (
    PUBLISHED_MODELS,
    block_axis,
    filter_origin,
    intervals,
    middle_block_rows,
    name_curves,
    published_curves,
)
from exitbench.reports.frame import Frame
from exitbench.reports.labels import between, count
from exitbench.reports.plotting.panels import (
    draw_intervals,
    grid_of_panels,
    label_y,
    legend_above,
    published_entry,
    title_panel,
)
from exitbench.reports.plotting.style import MUTED, SeriesStyle, series_styles

TITLE = "How probable the final token is at each block"
CAPTION = (
    "Probability that a block, read out through the final norm and the LM head, gives to the token that the last "
    "block finds most probable: mean over tokens. Ribbons are one standard deviation to each side (spread of the "
    "tokens), bars 95 % intervals of the mean over documents; both are cut at 0 and 1. After Figure 2 of the "
    f"Monotonic Early Exiting paper. {PUBLISHED_MODELS} The authors typed their means into a notebook, eleven for "
    "twelve blocks; they are drawn at blocks 1 to 11."
)

_ACROSS = 5  # models side by side
_SPREAD_ALPHA = 0.22


def finding(frame: Frame) -> str:
    """Return a sentence on the mean probability that the middle block gives to the token that full depth predicts."""
    span = between(middle_block_rows(frame), "mean", "{:.2f}".format, ("model", "task"))
    return f"Halfway through the blocks the final token has a mean probability of {span}."


def plot(frame: Frame) -> Figure:
    """Draw one panel per task and model: x is the block, y the mean probability of full depth's token.

    A ribbon is one standard deviation. Frame: one row per task, model and block, with mean, half_width (of the mean's
    interval) and std; the rows of published curves have no task.
    """
    local, published = filter_origin(frame, "ours"), filter_origin(frame, "published")
    styles = series_styles(local.distinct("model"))
    groups = list(local.groups("task", "model"))
    figure, panels = grid_of_panels(len(groups), columns=min(_ACROSS, len(styles)))
    for axes, ((task, model), rows) in zip(panels, groups, strict=False):
        blocks = max(rows.values("blocks"))
        curves = published_curves(axes, published, "mean", blocks)
        _panel(axes, rows, styles[model])
        block_axis(axes, blocks)
        if axes is panels[0]:
            name_curves(figure, axes, curves)
        axes.set_xlabel("")
        title_panel(axes, model, f"{task}, {count(rows.values('n'), 'tokens').removesuffix(' tokens')}")
    figure.supxlabel("layer (blocks executed); n counts tokens")
    legend_above(figure, [*_entries(), *([published_entry()] if published.rows else [])])
    return figure


def _panel(axes: Axes, frame: Frame, style: SeriesStyle) -> None:
    x, mean = frame.values("block"), frame.values("mean")
    low = [max(0.0, row["mean"] - row["std"]) for row in frame.rows]
    high = [min(1.0, row["mean"] + row["std"]) for row in frame.rows]
    axes.fill_between(x, low, high, color=style.colour, alpha=_SPREAD_ALPHA, linewidth=0)
    draw_intervals(axes, x, intervals(frame, "mean"), style.colour, along="y")
    axes.plot(x, mean, color=style.colour, marker=style.marker, markersize=4, linewidth=0.9, zorder=3)
    axes.set_ylim(-0.02, 1.02)
    label_y(axes, "probability")


def _entries() -> list[Line2D | Patch]:
    return [
        Line2D([], [], color=MUTED, marker="o", markersize=4, label="mean over tokens"),
        Patch(color=MUTED, alpha=_SPREAD_ALPHA, linewidth=0, label="one standard deviation"),
    ]
