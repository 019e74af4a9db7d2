"""Shared parts of figures: grids of panels, points with intervals, the depth axis and the legend of methods."""

from collections.abc import Sequence
from math import ceil, inf
from textwrap import wrap
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, PercentFormatter

from exitbench.reports.frame import Frame, Row
from exitbench.reports.labels import OTHER_LENGTH, differing_conditions, shorten
from exitbench.reports.plotting.style import (
    COLOURS,
    DOUBLE_INCHES,
    LIGHT,
    MUTED,
    SINGLE_INCHES,
    SMALL_POINTS,
    TALLEST_INCHES,
    ReportFigure,
    SeriesStyle,
    save,
    theme,
)
from exitbench.terminal import abbreviate_uniquely, visible

Interval = tuple[float | None, float | None]  # (low, high); None without an interval

_PANEL_INCHES = 1.95
_LOWEST_PANEL_INCHES = 1.25
_MOST_COLUMNS = 4
_LEGEND_INCHES = 0.8  # room for a legend if panels fill the page
_LEGEND_LENGTH = 40  # characters of an entry
_MOST_LEGEND_COLUMNS = 6
_CHARACTER_INCHES = 0.066  # of a title, on average
_SHORTEST_TITLE = 22
_NOTE_POINTS = 10.5
_SMALLER = 1.25  # letters of a note that take the room of one letter of a title
_USUAL_TITLE = 12  # room for a title in characters, also for shorter ones, so that panels look alike
_GROWN = 1.12  # growth of a panel's width by layout
_FLOOR_ALPHA = 0.16  # bars of neighbouring points overlap and add up
_PANEL_ROOM = TALLEST_INCHES - _LEGEND_INCHES
MOST_PANELS: Final = 24
"""Maximum number of panels that fit a page; a figure draws at most these and says so."""
LENGTH_NOTE = (
    f"{OTHER_LENGTH} marks answers more than 5 % shorter or longer than full depth's; a dotted line leads from there "
    "to the speed-up per token, of decoding alone, because stopping earlier is not early exit."
)
"""Caption text for `draw_lengths`."""
FLOOR_NOTE = "The grey bar behind a point is full depth timed against itself in the same session (its A/A noise floor)"
"""Caption text for `draw_floors`."""


def grid_of_panels(count: int, columns: int | None = None, *, wide: bool = False) -> tuple[Figure, list[Axes]]:
    """Return a figure and its `count` panels, at most `MOST_PANELS`, row by row.

    With one panel per row, the figure is one column of a paper wide, else two.

    Args:
        count: Number of panels.
        columns: Panels per row, if these belong together; None to choose by `count`. Doubled if the panels would
            otherwise be lower than a minimum height.
        wide: Whether the figure has the width of two columns even with one panel per row.
    """
    n_drawn = min(count, MOST_PANELS)
    columns = min(columns or (n_drawn if n_drawn <= 3 else 2 if n_drawn == 4 else 3), n_drawn)
    while _PANEL_ROOM / ceil(n_drawn / columns) < _LOWEST_PANEL_INCHES and columns < _MOST_COLUMNS:
        columns = min(_MOST_COLUMNS, 2 * columns)
    rows = ceil(n_drawn / columns)
    width = SINGLE_INCHES if columns == 1 and not wide else DOUBLE_INCHES
    height = rows * min(_PANEL_INCHES, _PANEL_ROOM / rows)
    figure = ReportFigure(figsize=(width, height), layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for spare in panels[n_drawn:]:
        spare.remove()
    if count > n_drawn:
        figure.supxlabel(f"The first {n_drawn} of {count} panels; all rows are in the CSV file.", fontsize=SMALL_POINTS)
    return figure, panels[:n_drawn]


def figure_of(height_inches: float, width_inches: float = DOUBLE_INCHES) -> Figure:
    """Return an empty figure, one or two paper columns wide; its height is limited so that a legend fits the page."""
    return ReportFigure(figsize=(width_inches, min(height_inches, _PANEL_ROOM)), layout="constrained")


def label_y(axes: Axes, label: str) -> None:
    """Label the y axis, if the panel is in the first column of its grid."""
    place = axes.get_subplotspec()
    if place is None or place.is_first_col():
        axes.set_ylabel(label)


def title_panel(axes: Axes, title: str, note: str = "", *, note_below: bool = False) -> None:
    """Write a panel's title, and to its right a note such as the sample size.

    The note is below the title if both do not fit side by side, or if `note_below` is true.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    room = int(_GROWN * axes.get_position().width * figure.get_size_inches()[0] / _CHARACTER_INCHES)
    lines = [shorten(line, max(room, _SHORTEST_TITLE)) for line in title.split("\n")]
    fits = len(lines) == 1 and not note_below and max(len(title), _USUAL_TITLE) + len(note) + 2 <= room
    if fits or not note:
        axes.set_title("\n".join(lines))
        axes.set_title(note, loc="right", fontweight="normal", fontsize=SMALL_POINTS)
        return
    notes = wrap(note, int(_SMALLER * max(room, _SHORTEST_TITLE)))
    axes.set_title("\n".join(lines), pad=5 + _NOTE_POINTS * len(notes))
    place: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points", "fontsize": SMALL_POINTS}
    axes.annotate("\n".join(notes), (0, 1), (0, 4), linespacing=1.1, **place)


def legend_above(figure: Figure, handles: Sequence[Line2D | Patch]) -> None:
    """Add a legend above all panels, in as many columns as fit, and increase the figure's height by the legend's."""
    if not handles:
        return
    for columns in range(min(len(handles), _MOST_LEGEND_COLUMNS), 0, -1):
        legend = figure.legend(handles=handles, loc="outside upper center", ncols=columns)
        box = legend.get_window_extent()
        if columns == 1 or box.width <= figure.bbox.width:
            break
        legend.remove()
    figure.set_figheight(min(TALLEST_INCHES, figure.get_figheight() + box.height / figure.dpi))


def panel_titles(frame: Frame) -> dict[tuple[str, str, str], str]:
    """Return panel titles by (task, model, setting): task and model, then the conditions that not all panels share."""
    conditions = differing_conditions(frame.distinct("setting"))
    return {
        (task, model, setting): f"{shorten(task, 30)} · {shorten(model, 40)}\n{conditions[setting]}".rstrip()
        for (task, model, setting), _ in frame.groups("task", "model", "setting")
    }


def draw_points(
    axes: Axes, x: Sequence[float], y: Sequence[float], style: SeriesStyle, *, simulated: bool, connect: bool
) -> None:
    """Draw the markers of one series: filled for real decodes, hollow for simulated settings (replays).

    A replay recomputes exits from recorded predictions, without decoding. If `connect` is true, a line joins the
    markers in the order of x; it is dashed if `simulated`.
    """
    order = sorted(range(len(x)), key=lambda i: (x[i], y[i]))
    line = ("--" if simulated else "-") if connect else "none"
    axes.plot(
        [x[i] for i in order],
        [y[i] for i in order],
        linestyle=line,
        linewidth=0.9,
        color=style.colour,
        marker=style.marker,
        markerfacecolor="none" if simulated else style.colour,  # a ring hides nothing behind it
        markeredgecolor=style.colour if simulated else mpl.rcParams["axes.facecolor"],
        markeredgewidth=0.9 if simulated else 0.4,  # a background-coloured edge separates overlapping points
        markersize=6.5 if simulated else 5,  # larger, so that it encircles a real point at the same position
        zorder=2.5 if simulated else 3,
        clip_on=False,
    )


def interval_around(mean: float, half: float | None, lowest: float = -inf, highest: float = inf) -> Interval:
    """Return mean - half and mean + half, not below `lowest` or above `highest`; (None, None) if half is None."""
    return (None, None) if half is None else (max(lowest, mean - half), min(highest, mean + half))


def draw_intervals(axes: Axes, at: Sequence[float], intervals: Sequence[Interval], colour: str, *, along: str) -> None:
    """Draw intervals as thin lines behind the points; missing intervals are left out, never drawn as zero.

    Args:
        axes: Axes to draw in.
        at: The points' coordinates on the other axis.
        intervals: (low, high) of each point.
        colour: Colour of the series.
        along: Axis along which the intervals are drawn, ``'x'`` or ``'y'``.
    """
    present = [(place, low, high) for place, (low, high) in zip(at, intervals, strict=True) if None not in (low, high)]
    if present:
        lines = axes.vlines if along == "y" else axes.hlines
        lines(*zip(*present, strict=True), color=colour, linewidth=0.8, alpha=0.55, zorder=2)


def draw_floors(axes: Axes, at: Sequence[float], rows: Sequence[Row], *, along: str) -> None:
    """Draw the A/A noise floor (full depth timed against itself) behind each point: a pale bar, aa_low to aa_high.

    A line is drawn at a speed-up of 1.

    Args:
        axes: Axes to draw in.
        at: The points' coordinates on the other axis.
        rows: One row per point, with aa_low and aa_high.
        along: The axis of speed-ups, ``'x'`` or ``'y'``.
    """
    present = [(place, row["aa_low"], row["aa_high"]) for place, row in zip(at, rows, strict=True) if row["aa_low"]]
    if present:
        lines = axes.vlines if along == "y" else axes.hlines
        lines(*zip(*present, strict=True), color=MUTED, linewidth=5, alpha=_FLOOR_ALPHA, zorder=1.2)
    (axes.axhline if along == "y" else axes.axvline)(1, color=MUTED, linewidth=0.8)


def floor_entry() -> Line2D:
    """Return the legend entry of the grey bars of the A/A noise floor (see `draw_floors`)."""
    return Line2D([], [], color=MUTED, linewidth=5, alpha=2 * _FLOOR_ALPHA, label="A/A noise floor, by point")


def draw_lengths(axes: Axes, at: Sequence[float], rows: Sequence[Row], *, along: str) -> None:
    """Mark the speed-ups of settings whose answers are more than 5 % shorter or longer than full depth's.

    A dotted line leads from the speed-up of requests to the speed-up per token.

    Args:
        axes: Axes to draw in.
        at: The points' coordinates on the other axis.
        rows: One row per point: speedup, speedup_per_token, is_other_length.
        along: The axis of speed-ups, ``'x'`` or ``'y'``.
    """
    for place, row in zip(at, rows, strict=True):
        if not row["is_other_length"]:
            continue
        ends, places = [row["speedup"], row["speedup_per_token"]], [place, place]
        x, y = (ends, places) if along == "x" else (places, ends)
        axes.plot(x, y, color=MUTED, linestyle=":", linewidth=0.9, zorder=1.8)
        axes.plot(x[1], y[1], color=MUTED, marker="|" if along == "x" else "_", markersize=6, zorder=1.8)
        axes.annotate(OTHER_LENGTH, (x[0], y[0]), (3, 2), textcoords="offset points", fontsize=SMALL_POINTS)


def length_entry() -> Line2D:
    """Return the legend entry of the mark of answers of another length (see `draw_lengths`)."""
    label = f"{OTHER_LENGTH} other length: to speed-up per token"
    return Line2D([], [], color=MUTED, linestyle=":", linewidth=0.9, marker="|", label=label)


def exit_layer_axis(axes: Axes, blocks: int) -> None:
    """Label the x axis as mean exit layer, 1..`blocks`."""
    pad = max(0.3, 0.03 * blocks)
    axes.set_xlim(1 - pad, blocks + pad)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=9))
    axes.set_xlabel(f"mean exit layer, of {blocks}")


def share_of_blocks_axis(axes: Axes, name: str) -> None:
    """Label the x axis as `name`, a share of all blocks (0..1), so that models of different depths can share it."""
    axes.set_xlim(-0.02, 1.03)
    axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.set_xlabel(f"{name}, share of all blocks")


def legend_of_series(figure: Figure, styles: dict[str, SeriesStyle], extra: Sequence[Line2D | Patch] = ()) -> None:
    """Add a legend of the series and `extra` entries above all panels."""
    # matplotlib leaves out entries whose label starts with an underscore
    names = abbreviate_uniquely([f" {name}" if name.startswith("_") else name for name in styles], _LEGEND_LENGTH)
    handles = [
        Line2D([], [], color=style.colour, marker=style.marker, linestyle="none", label=name)
        for name, style in zip(names, styles.values(), strict=True)
    ]
    legend_above(figure, [*handles, *extra])


def simulated_entry() -> Line2D:
    """Return the legend entry of simulated points: exits recomputed from recorded predictions, without decoding."""
    paper = mpl.rcParams["axes.facecolor"]
    return Line2D([], [], color=MUTED, linestyle="--", marker="o", markerfacecolor=paper, label="simulated (replay)")


def draw_published(
    axes: Axes, x: Sequence[float], y: Sequence[float], *, connect: bool = False, line_colour: str = MUTED
) -> None:
    """Draw values printed in papers as grey crosses; with `connect`, a dotted line joins them in the order of x."""
    order = sorted(range(len(x)), key=lambda i: x[i])
    axes.plot(
        [x[i] for i in order],
        [y[i] for i in order],
        linestyle=":" if connect else "none",
        linewidth=0.9,
        color=line_colour,
        marker="x",
        markeredgecolor=MUTED,
        markersize=4.5,
        zorder=2.2,
    )


def published_entry() -> Line2D:
    """Return the legend entry of values printed in papers: a grey cross on a dotted line."""
    return Line2D([], [], color=MUTED, linestyle=":", marker="x", label="published")


_MARKERS = 8  # markers per line: enough to identify it in grey print, too few to hide it


def draw_by_step(axes: Axes, frame: Frame, style: SeriesStyle) -> None:
    """Draw one training curve: x is the optimisation step, y the logged value.

    `frame` has the columns step and value, and is sorted by step.
    """
    axes.plot(
        frame.values("step"),
        frame.values("value"),
        color=style.colour,
        marker=style.marker,
        markersize=4,
        markevery=max(1, len(frame.rows) // _MARKERS),
        linewidth=1,
    )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    axes.set_xlabel("optimisation step")


_INCHES: Final = 2.4


def sweep_picture(
    title: str,
    thresholds: Sequence[float],
    mean_exit_layers: Sequence[float],
    token_matches: Sequence[float],
    n_blocks: int,
    kind: str,
) -> bytes:
    """Return a picture of a threshold sweep, as the content of an image file.

    Left: mean exit layer by threshold. Right: share of tokens equal to full depth's, by mean exit layer.

    Args:
        title: Name of the exit rule.
        thresholds: Thresholds, in any order.
        mean_exit_layers: Mean exit layer at each threshold, 1..n_blocks.
        token_matches: Share of tokens equal to full depth's at each threshold.
        n_blocks: Number of decoder blocks, L.
        kind: File format: pdf, png or svg.
    """
    order = sorted(range(len(thresholds)), key=lambda index: thresholds[index])
    x, depths, matches = (
        [values[index] for index in order] for values in (thresholds, mean_exit_layers, token_matches)
    )
    with theme(LIGHT):
        figure = Figure(figsize=(DOUBLE_INCHES, _INCHES), layout="constrained")
        by_threshold, trade = figure.subplots(1, 2)
        by_threshold.plot(x, depths, color=COLOURS[0], marker="o" if len(x) < 30 else "", markersize=3)
        by_threshold.set(xlabel="threshold", ylabel=f"mean exit layer (of {n_blocks})", ylim=(0, n_blocks * 1.05))
        trade.plot(depths, matches, color=COLOURS[1], marker="o" if len(x) < 30 else ".", markersize=3)
        trade.set(xlabel=f"mean exit layer (of {n_blocks})", ylabel="tokens equal to full depth's")
        trade.yaxis.set_major_formatter(PercentFormatter(1, decimals=None))
        figure.suptitle(f"{visible(title)} (simulated)")
        return save(figure, kind)
