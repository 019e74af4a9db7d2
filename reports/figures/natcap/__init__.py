"""Figures of Early Exit Is a Natural Capability. This module: shared panels with a line per model, and token texts."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from exitbench.reports.figures.mee import block_axis
from exitbench.reports.frame import Frame
from exitbench.reports.labels import count, shorten
from exitbench.reports.plotting.panels import (
    draw_intervals,
    grid_of_panels,
    interval_around,
    legend_of_series,
    title_panel,
)
from exitbench.reports.plotting.style import SeriesStyle, series_styles

EMPTY = "No data yet: run `nox -s paper -- natcap`."
TRAINED = (
    "Models are marked by the blocks that they were trained on: the last block (the paper's models without joint "
    "optimisation), every block (with it), some blocks, or by another objective; unmarked if not known."
)

Panel = Callable[[Axes, Frame, Mapping[str, SeriesStyle]], None]


def panels_by_task(frame: Frame, panel: Panel, extra: Sequence[Line2D | Patch] = ()) -> Figure:
    """Return a figure with one panel per task, drawn by `panel`: x is the block, one line per series.

    A series is a model, marked by how it was trained. Frame: rows with task, series, block and n (tokens).
    """
    styles = series_styles(frame.distinct("series"))
    tasks = list(frame.groups("task"))
    figure, panels = grid_of_panels(len(tasks))
    for axes, ((task,), rows) in zip(panels, tasks, strict=False):
        panel(axes, rows, styles)
        block_axis(axes, max(rows.values("block")))
        title_panel(axes, task, count(rows.values("n"), "tokens a model"))
    legend_of_series(figure, styles, extra)
    return figure


def draw_means(axes: Axes, frame: Frame, styles: Mapping[str, SeriesStyle], across: str, up: str) -> None:
    """Draw one line per series with intervals: x is the column `across`, y the mean in the column `up`.

    Frame: rows with series, half_width (of the interval) and these two columns.
    """
    for (series,), rows in frame.groups("series"):
        style, x, y = styles[series], rows.values(across), rows.values(up)
        draw_intervals(axes, x, list(map(interval_around, y, rows.values("half_width"))), style.colour, along="y")
        axes.plot(x, y, color=style.colour, marker=style.marker, markersize=4.5, linewidth=0.9, clip_on=False)


def written_token(text: str | None, token_id: int, width: int) -> str:
    """Return a token as drawable text: one line, only characters of the figures' font; its id if it has no text."""
    if text is None:
        return str(token_id)
    line = text.replace("\n", "\\n").replace("Ġ", "\u2581")
    return shorten("".join(c if _has_glyph(c) else "□" for c in line) or "''", width)


@cache
def _has_glyph(character: str) -> bool:
    return get_font(findfont(FontProperties(family="DejaVu Sans"))).get_char_index(ord(character)) != 0
