"""Figures of Self-Supervised Early Exits. This module: shared panels, one per task, with epsilon on the x axis."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from exitbench.reports.frame import Frame
from exitbench.reports.labels import count, shorten
from exitbench.reports.plotting.panels import draw_intervals, grid_of_panels, legend_of_series, title_panel
from exitbench.reports.plotting.style import series_styles

EMPTY = (
    "No data yet: run `nox -s paper -- heads`, or any suite with several values of `epsilon` for method heads with "
    "rule epsilon on a model with exit heads."
)
SETTINGS = (
    "Suite `heads-settings` trains heads in the paper's four ways on a small model, and `smollm2-heads` on a real one."
)

_OFFSET = 0.006  # offset between series, so that none hides another

Group = tuple[Any, ...]


def epsilon_axis(axes: Axes) -> None:
    """Label the x axis as epsilon, the agreement with the model that is required of an exit head."""
    axes.set_xlabel("epsilon, required agreement")


def titles(frame: Frame, *names: str) -> dict[Group, str]:
    """Return panel titles by (task, values of the columns `names`, setting).

    A title names the setting only if there are several.
    """
    several = len(frame.distinct("setting")) > 1
    return {
        group: " · ".join(shorten(part, 28) for part in group[:-1]) + (f"\n{group[-1]}" if several else "")
        for group, _ in frame.groups("task", *names, "setting")
    }


def by_epsilon(
    frame: Frame, extra: Sequence[Line2D | Patch], *, unit: str = "documents"
) -> tuple[Figure, list[tuple[Axes, Frame]]]:
    """Draw one panel per task: x is epsilon, y the value with its interval; one dotted line per series.

    Args:
        frame: One row per task, setting, series and epsilon, with value, ci_low, ci_high and n. A series is a model, or
            another varied parameter.
        extra: Legend entries in addition to the series.
        unit: Unit of n.

    Returns:
        The figure, and each panel with its rows.
    """
    styles = series_styles(frame.distinct("series"))
    named = titles(frame)
    groups = list(frame.groups("task", "setting"))
    figure, panels = grid_of_panels(len(groups))
    for axes, (key, rows) in zip(panels, groups, strict=False):
        for place, ((series,), line) in enumerate(rows.groups("series")):
            shift = _OFFSET * (place - (len(rows.distinct("series")) - 1) / 2)
            x, y = [epsilon + shift for epsilon in line.values("epsilon")], line.values("value")
            draw_intervals(axes, x, line.intervals("ci"), styles[series].colour, along="y")
            axes.plot(
                x, y, color=styles[series].colour, marker=styles[series].marker, linewidth=0.6, linestyle=":", zorder=3
            )
        epsilon_axis(axes)
        title_panel(axes, named[key], count(rows.values("n"), unit))
    legend_of_series(figure, styles, extra)
    return figure, list(zip(panels, (rows for _, rows in groups), strict=True))
