"""Why published numbers come out as they do; here: values by the first block asked, with intervals."""

from collections.abc import Mapping, Sequence

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from exitbench.reports.frame import Frame, Row
from exitbench.reports.plotting.panels import draw_intervals, grid_of_panels
from exitbench.reports.plotting.style import MUTED, SeriesStyle, quiet

EMPTY = "No data yet: run `exitbench run explain-published` (generated data, two small models, about two minutes)."
FIRST_ASKED = "first block asked, min_exit (blocks executed)"
FULL_DEPTH = Line2D([], [], color=MUTED, linestyle=":", label="full depth")

_STEP = 0.16  # between series that are drawn side by side


def empty_figure() -> Figure:
    """Say which suite to run on an axis that has nothing else."""
    figure, (axes,) = grid_of_panels(1, columns=1)
    axes.text(0.5, 0.5, EMPTY.replace("`", ""), ha="center", va="center", color=quiet(), transform=axes.transAxes)
    axes.set_xlabel(FIRST_ASKED)
    axes.set_yticks([])
    return figure


def draw_by_block(
    axes: Axes,
    series: Mapping[str, Sequence[Row]],
    styles: Mapping[str, SeriesStyle],
    columns: tuple[str, str, str],
    hollow: Sequence[str] = (),
    *,
    connect: bool = False,
) -> None:
    """Draw series side by side by min_exit, those in `hollow` unfilled; columns: value, low, high; `connect` joins."""
    value, low, high = columns
    step = _STEP / 2 if connect else _STEP  # lines that are moved far apart would seem to differ
    for place, (name, rows) in enumerate(series.items()):
        shift = step * (place - (len(series) - 1) / 2)
        known = [row for row in rows if row[value] is not None]
        if not known:
            continue  # a line without points would still take part in the layout
        x = [row["min_exit"] + shift for row in known]
        style = styles[name]
        draw_intervals(axes, x, [(row[low], row[high]) for row in known], style.colour, along="y")
        axes.plot(
            x,
            [row[value] for row in known],
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
    axes.set_xlabel(FIRST_ASKED)


def split(frame: Frame, column: str, names: Mapping[str, str]) -> dict[str, Sequence[Row]]:
    """Return the rows of each value of `column` that occurs, under its name for readers, in the order of `names`."""
    parts = {label: [row for row in frame.rows if row[column] == key] for key, label in names.items()}
    return {label: rows for label, rows in parts.items() if rows}
