"""Distribution of exit layers by epsilon (Figure 4 of Accelerating LLM Inference with Self-Supervised Early Exits)."""

from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from exitbench.reports.figures.heads import SETTINGS, epsilon_axis, titles
from exitbench.reports.frame import Frame
from exitbench.reports.labels import count, percent
from exitbench.reports.plotting.panels import (
    draw_intervals,
    grid_of_panels,
    interval_around,
    label_y,
    legend_of_series,
    title_panel,
)
from exitbench.reports.plotting.style import SeriesStyle, series_styles

TITLE = "Where tokens exit, by epsilon"
CAPTION = (
    "Share of the generated tokens (for choices: of the scored tokens) that exit at each exit head, or at the last "
    "block if at no head, against epsilon; the lines of a panel add up to 100 %. Bars are 95 % intervals over "
    "documents. After Figure 4 of Accelerating LLM Inference with Self-Supervised Early Exits, for our tasks and "
    "models. A head's share need not fall as epsilon grows: it also gets the tokens that earlier heads no longer "
    f"take. {SETTINGS}"
)


def finding(frame: Frame) -> str:
    """Return a sentence on the share of tokens that exit before the last block, at each panel's extreme epsilons."""
    exits: dict[str, list[float]] = {"lowest": [], "highest": []}
    for _, rows in frame.groups("task", "series", "setting"):
        epsilons = rows.values("epsilon")
        for name, epsilon in (("lowest", min(epsilons)), ("highest", max(epsilons))):
            here = [row for row in rows.rows if row["epsilon"] == epsilon and row["exit_layer"] == row["blocks"]]
            exits[name].append(1 - (fmean(row["share"] for row in here) if here else 0.0))
    parts = (f"{percent(fmean(shares))} at the {name} epsilon" for name, shares in exits.items())
    return f"Tokens that exit at a head: {' and '.join(parts)} of a panel, mean over panels."


def plot(frame: Frame) -> Figure:
    """Draw one panel per task and series: x is epsilon, y the share of tokens (0..1); one line per exit layer.

    Frame: one row per task, setting, series (model or varied parameter), epsilon and exit_layer, with share.
    """
    layers = sorted({(row["exit_layer"], row["blocks"]) for row in frame.rows})
    names = dict.fromkeys(_name(*layer) for layer in layers)
    # paired by index, so that colours follow depth and not the alphabetical order of the names
    styles = dict(zip(names, series_styles(names).values(), strict=True))
    named = titles(frame, "series")
    groups = list(frame.groups("task", "series", "setting"))
    figure, panels = grid_of_panels(len(groups))
    for axes, (key, rows) in zip(panels, groups, strict=False):
        _panel(axes, rows, styles)
        title_panel(axes, named[key], f"{count(rows.values('n'), 'tokens')} a setting")
    legend_of_series(figure, styles)
    return figure


def _panel(axes: Axes, frame: Frame, styles: dict[str, SeriesStyle]) -> None:
    for (layer, blocks), rows in frame.groups("exit_layer", "blocks"):
        style = styles[_name(layer, blocks)]
        x, y = rows.values("epsilon"), rows.values("share")
        bars = [interval_around(row["share"], row["half_width"], 0.0, 1.0) for row in rows.rows]
        draw_intervals(axes, x, bars, style.colour, along="y")
        axes.plot(x, y, color=style.colour, marker=style.marker, linewidth=0.9, clip_on=False, zorder=3)
    epsilon_axis(axes)
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    label_y(axes, "tokens by exit layer")


def _name(layer: int, blocks: int) -> str:
    return f"all {blocks} blocks" if layer == blocks else f"after block {layer}"
