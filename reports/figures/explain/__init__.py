"""Figures that explain published numbers. This module: values by the first gated block, with intervals."""

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
    """Draw each series of rows as points with intervals, side by side at every value of min_exit.

    Args:
        axes: Axes to draw on.
        series: Rows by name of the series.
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
    """Return a figure and, per task, model and setting, a titled panel, the panel to its right, and the rows."""
    groups = list(frame.groups("task", "model", "setting"))
    figure, panels = grid_of_panels(2 * len(groups), columns=2)
    pairs = zip(panels[::2], panels[1::2], groups, strict=False)
    titles = panel_titles(frame)
    for first, (key, _) in zip(panels[::2], groups, strict=False):
        title_panel(first, titles[key])
    return figure, [(first, second, rows) for first, second, (_, rows) in pairs]


def label_quality(axes: Axes, rows: Frame) -> None:
    """Label the y axis with the rows' metric and number of documents."""
    axes.set_ylabel(rows.rows[0]["metric"])
    title_panel(axes, "", count(rows.values("n"), "documents"))


def split(frame: Frame, column: str, names: Mapping[str, str]) -> dict[str, Sequence[Row]]:
    """Group rows by `column`; return non-empty groups by display name, in the order of `names`."""
    parts = {label: [row for row in frame.rows if row[column] == key] for key, label in names.items()}
    return {label: rows for label, rows in parts.items() if rows}
