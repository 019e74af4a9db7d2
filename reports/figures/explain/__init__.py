"""Figures that explain published numbers. This module draws values against the first gated block."""

from collections.abc import Mapping, Sequence

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from exitbench.reports.frame import Frame, Row
from exitbench.reports.labels import count
from exitbench.reports.plotting.panels import draw_intervals, grid_of_panels, panel_titles, title_panel
from exitbench.reports.plotting.style import MUTED, SeriesStyle

EMPTY = "No data yet: run `exitbench run explain-published` (generated data, two small models, about two minutes)."
FIRST_GATED = "first gated block, min_exit (blocks executed)"
FULL_DEPTH = Line2D([], [], color=MUTED, linestyle=":", label="full depth")

_STEP = 0.16  # between series drawn side by side


def draw_by_block(
    axes: Axes,
    series: Mapping[str, Sequence[Row]],
    styles: Mapping[str, SeriesStyle],
    columns: tuple[str, str, str],
    hollow: Sequence[str] = (),
    *,
    connect: bool = False,
) -> None:
    """Draw each series as points with intervals: x is the first gated block, y the column of values.

    Points of different series at the same block are drawn side by side.

    Args:
        axes: Axes to draw on.
        series: Rows by name of the series; their min_exit is the first gated block.
        styles: Colour and marker by name of the series.
        columns: Columns of the value and of its interval's two ends.
        hollow: Series whose markers are not filled.
        connect: Whether lines join a series' points.
    """
    value, low, high = columns
    step = _STEP / 2 if connect else _STEP  # lines shifted further would seem to differ
    for place, (name, rows) in enumerate(series.items()):
        shift = step * (place - (len(series) - 1) / 2)
        points = [row for row in rows if row[value] is not None]
        if not points:
            continue  # a line without points would still affect the layout
        x = [row["min_exit"] + shift for row in points]
        style = styles[name]
        draw_intervals(axes, x, [(row[low], row[high]) for row in points], style.colour, along="y")
        axes.plot(
            x,
            [row[value] for row in points],
            linestyle="-" if connect else "none",
            linewidth=0.9,
            color=style.colour,
            marker=style.marker,
            markersize=5,
            markerfacecolor=mpl.rcParams["axes.facecolor"] if name in hollow else style.colour,
            clip_on=False,
            zorder=3,
        )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.set_xlabel(FIRST_GATED)


def pairs_of_panels(frame: Frame) -> tuple[Figure, list[tuple[Axes, Axes, Frame]]]:
    """Return a figure with two panels side by side per task, model and setting, and what to draw in each pair.

    An entry of the list is (left panel, right panel, the frame's rows of this task, model and setting). The left panel
    has a title.
    """
    groups = list(frame.groups("task", "model", "setting"))
    figure, panels = grid_of_panels(2 * len(groups), columns=2)
    pairs = zip(panels[::2], panels[1::2], groups, strict=False)
    titles = panel_titles(frame)
    for first, (key, _) in zip(panels[::2], groups, strict=False):
        title_panel(first, titles[key])
    return figure, [(first, second, rows) for first, second, (_, rows) in pairs]


def label_quality(axes: Axes, rows: Frame) -> None:
    """Label the y axis with the name of the rows' metric, and write the number of documents above the panel."""
    axes.set_ylabel(rows.rows[0]["metric"])
    title_panel(axes, "", count(rows.values("n"), "documents"))


def split(frame: Frame, column: str, names: Mapping[str, str]) -> dict[str, Sequence[Row]]:
    """Group rows by `column`; return the rows by display name (`names` maps values to these), without empty groups."""
    parts = {label: [row for row in frame.rows if row[column] == key] for key, label in names.items()}
    return {label: rows for label, rows in parts.items() if rows}
