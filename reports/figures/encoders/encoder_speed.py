"""How much of the layers that an encoder saves becomes time: measured speed-up against saving, by batch size."""

from collections.abc import Mapping
from statistics import median

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from exitbench.reports.frame import Frame
from exitbench.reports.labels import count, listed, percent
from exitbench.reports.plotting.panels import (
    FLOOR_NOTE,
    draw_floors,
    draw_intervals,
    draw_points,
    floor_entry,
    grid_of_panels,
    legend_of_series,
    title_panel,
)
from exitbench.reports.plotting.style import MUTED, SeriesStyle, series_styles

ORDER = 43
TITLE = "Encoders: measured speed-up against layers saved"
CAPTION = (
    "Measured speed-up of whole batches over full depth in the same run, against the saving: 1 less the mean exit "
    "layer of all documents over all blocks. Two numbers are called speed-up in print: the axis across (PABEE's "
    "code) and the curve, all blocks over the mean exit layer (ElasticBERT), which is what the saving were worth if "
    "blocks alone took time. Below the curve embeddings, off-ramps, gates and smaller batches of those that are "
    f"left take it. Bars are 95 % intervals of the measured ratio over batches. {FLOOR_NOTE}; points whose interval "
    "touches theirs are grey: no speed-up was shown. Random weights are left out."
)
EMPTY = (
    "No data yet: run `exitbench run builtin-encoder` and `exitbench run builtin-encoder-batch`, or any suites with "
    "`timing` cells of trained encoders in batches of several sizes."
)


def finding(frame: Frame) -> str:
    """Return how many settings are shown to be faster, and how much of the ratio of layers they are, by batch size."""
    told = []
    for (size,), rows in frame.groups("batch_size"):
        shown = [row["speedup"] / row["layer_ratio"] for row in rows.rows if not row["inside_noise_floor"]]
        share = f" (median: {percent(median(shown))} of blocks over mean exit layer)" if shown else ""
        told.append(f"at batch {size} {len(shown)} of {len(rows.rows)}{share}")
    return f"Settings that are shown to be faster than full depth: {listed(told)}."


def plot(frame: Frame) -> Figure:
    """Draw a panel a batch size and machine setting; frame: speedup (a ratio), saving (0..1), method."""
    styles = series_styles(frame.distinct("method"))
    groups = list(frame.groups("batch_size", "setting"))
    figure, grid = grid_of_panels(len(groups))
    highest = 1.1 * max(frame.values("speedup"))
    for axes, ((_, where), rows) in zip(grid, groups, strict=False):
        _panel(axes, rows, styles)
        axes.set_ylim(min(0.9, *(0.9 * x for x in frame.values("speedup"))), max(1.5, highest))
        title_panel(axes, where, count(rows.values("n"), "timed"), below=True)
    curve = Line2D([], [], color=MUTED, linestyle="--", label="blocks over mean exit layer")
    legend_of_series(figure, styles, [curve, floor_entry()])
    return figure


def _panel(axes: Axes, frame: Frame, styles: Mapping[str, SeriesStyle]) -> None:
    draw_floors(axes, frame.values("saving"), frame.rows, along="y")
    for row in frame.rows:
        style = styles[row["method"]]
        own = SeriesStyle(MUTED, style.marker) if row["inside_noise_floor"] else style
        draw_intervals(axes, [row["saving"]], [(row["speedup_low"], row["speedup_high"])], own.colour, along="y")
        draw_points(axes, [row["saving"]], [row["speedup"]], own, simulated=False, connect=False)
    saving = np.linspace(0, 0.95, 96)
    axes.plot(saving, 1 / (1 - saving), color=MUTED, linestyle="--", linewidth=0.9, zorder=1.5)
    axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.set_xlim(-0.04, 1)
    axes.set_xlabel("layers saved: 1 - mean exit layer / blocks")
    axes.set_ylabel("measured speed-up")
