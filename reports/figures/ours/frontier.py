"""Quality against depth and against measured speed-up, side by side, for each model and task."""

from collections.abc import Mapping
from math import ceil
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from exitbench.reports.figures.ours import envelope, recommended
from exitbench.reports.frame import Frame, Row
from exitbench.reports.labels import (
    NOT_MEASURABLE,
    OTHER_LENGTH,
    Setting,
    count,
    differing_conditions,
    join_words,
    label_of,
    labels,
    short_name,
    times,
)
from exitbench.reports.plotting.panels import (
    FLOOR_NOTE,
    LENGTH_NOTE,
    draw_floors,
    draw_intervals,
    draw_lengths,
    draw_points,
    figure_of,
    floor_entry,
    legend_of_series,
    length_entry,
    share_of_blocks_axis,
    simulated_entry,
    title_panel,
)
from exitbench.reports.plotting.style import MUTED, SeriesStyle, series_styles

ORDER = 10
TITLE = "Quality against depth and measured speed-up"
CAPTION = (
    "One panel per model and task, two if settings were timed (at most six rows), one colour per method. The task's "
    "metric is a share of full depth's of the same checkpoint (for an error: 2 minus that share, so that up is "
    "better). Against the blocks run per token, as a share of all blocks; oracles, and policies that run skipped "
    "blocks later, run more blocks than the exit layer. To the right, if settings were timed: against the measured "
    f"speed-up of whole requests, a ratio of wall times to full depth in the same run. {LENGTH_NOTE} Bars are 95 % "
    "intervals over documents (of the metric; the uncertainty of full depth's is not included), cut at the panel's "
    "edge. Lines join the settings for which no other is both better and shallower, or both better and faster. A ring "
    "marks the recommended setting at an allowed loss of 1 %: the fastest method that was chosen on a third of the "
    "documents and confirmed on the others. No line includes oracles, which know full depth's answer. "
    f"{FLOOR_NOTE}; points whose interval touches it are gray: no speed-up was shown. Excluded: tasks where full depth "
    "scores 0, random weights, and speed-ups whose interval or noise floor is wider than a factor of 10."
)
EMPTY = (
    "No data yet: run `nox -s bench`, or any suite with `quality` and `timing` cells of models with trained weights."
)

_ROW_INCHES = 2.0
_MOST_ROWS = 6
_MOST_TOLD = 4


def finding(frame: Frame) -> str:
    """Return a sentence per model and task on the recommended setting at an allowed loss of 1 %."""
    names = labels(frame.rows, brief=True)
    parts = []
    for (task, model), rows in frame.groups("task", "model"):
        if chosen := recommended(rows):
            best = chosen[model]
            fast = times(best["speedup"], best["speedup_low"], best["speedup_high"])
            parts.append(f"on {short_name(task)} {label_of(names, best)} ({short_name(model)}) at {fast}")
    if parts:
        return f"Fastest of those shown to lose at most 1 % of full depth's quality: {join_words(parts[:_MOST_TOLD])}."
    if any(row["speed_status"] == "timed" and not row["is_full_depth"] for row in frame.rows):
        return "No timed setting is shown to lose at most 1 % of full depth's quality."
    why = f"speed-ups are {NOT_MEASURABLE}" if _is_too_wide(frame) else "no setting was timed"
    return f"Quality against depth; {why}."


def plot(frame: Frame) -> Figure:
    """Draw one panel per model and task, or two if settings were timed; y is the quality, relative to full depth.

    Left, x is the mean blocks run as a share of all; right, the measured speed-up. Markers are settings, colours
    methods. Frame: one row per setting, with quality, depth (a share) and speedup.
    """
    names = labels(frame.rows, brief=True)
    every = list(frame.groups("model", "task", "setting", "metric"))
    every = sorted(every, key=lambda group: -len(group[1].distinct("method")))
    timed = [group for group in every if _is_timed(group[1])][:_MOST_ROWS]
    untimed = [group for group in every if not _is_timed(group[1])][: 2 * (_MOST_ROWS - len(timed))]
    shown = [row for _, rows in timed + untimed for row in rows.rows]
    styles = series_styles(Frame(frame.columns, tuple(shown)).distinct("method"))
    n_rows = len(timed) + ceil(len(untimed) / 2)
    figure = figure_of(_ROW_INCHES * n_rows)
    panels = iter(figure.subplots(n_rows, 2, squeeze=False).flat)
    named = differing_conditions(frame.distinct("setting"))
    for (model, task, conditions, metric), rows in timed + untimed:
        depth = next(panels)
        title = f"{short_name(model)} on {short_name(task)}\n{named[conditions]}".rstrip()
        unmeasured = f"; speed-up {NOT_MEASURABLE}" if not _is_timed(rows) and _is_too_wide(rows) else ""
        title_panel(depth, title, count(rows.values("n"), "documents") + unmeasured)
        depth.set_ylabel(f"{metric}, of full depth's")
        _depth_panel(depth, rows, styles)
        if _is_timed(rows):
            speed = next(panels)
            _speed_panel(speed, rows, styles, names)
            speed.set_ylim(depth.get_ylim())
    for spare in panels:
        spare.remove()
    legend_of_series(figure, styles, _entries(shown))
    return figure


def _is_timed(frame: Frame) -> bool:
    """Return whether a setting other than full depth has a speed-up."""
    return any(row["speedup"] is not None and not row["is_full_depth"] for row in frame.rows)


def _depth_panel(axes: Axes, frame: Frame, styles: Mapping[str, SeriesStyle]) -> None:
    points = frame.filter(lambda row: row["depth"] is not None)
    for (series, execution), rows in points.groups("method", "execution"):
        style = styles[series]
        x, y = rows.values("depth"), rows.values("quality")
        draw_intervals(axes, x, rows.intervals("quality"), style.colour, along="y")
        draw_points(axes, x, y, style, simulated=execution == "simulated", connect=False)
        reached = [row for row in rows.rows if execution == "real" and row["attainable"]]
        front = envelope([(-row["depth"], row["quality"]) for row in reached])
        axes.plot([-x for x, _ in front], [y for _, y in front], color=style.colour, linewidth=0.9)
    axes.axhline(1, color=MUTED, linestyle=":", linewidth=1)
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    share_of_blocks_axis(axes, "mean blocks run")


def _speed_panel(axes: Axes, frame: Frame, styles: Mapping[str, SeriesStyle], names: dict[Setting, str]) -> None:
    timed = frame.filter(lambda row: row["speedup"] is not None)
    draw_floors(axes, timed.values("quality"), timed.rows, along="x")
    draw_lengths(axes, timed.values("quality"), timed.rows, along="x")
    best = next(iter(recommended(timed).values()), None)
    title = "" if best is None else f"{label_of(names, best)}: {_speed(best)}"
    title_panel(axes, title, count(timed.values("timed_documents"), "timed"))
    for (series, inside), rows in timed.groups("method", "inside_noise_floor"):
        style = SeriesStyle(MUTED, styles[series].marker) if inside else styles[series]
        x, y = rows.values("speedup"), rows.values("quality")
        draw_intervals(axes, y, rows.intervals("speedup"), style.colour, along="x")
        draw_points(axes, x, y, style, simulated=False, connect=False)
    for (series,), rows in timed.groups("method"):
        front = envelope([(row["speedup"], row["quality"]) for row in rows.rows])
        axes.plot([x for x, _ in front], [y for _, y in front], color=styles[series].colour, linewidth=0.9)
    axes.axhline(1, color=MUTED, linestyle=":", linewidth=1)
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.set_xlabel("measured speed-up over full depth")
    # Limits ignore intervals: a single very wide one would squeeze all other points together.
    ratios = [x for name in ("speedup", "speedup_per_token") for x in timed.values(name) if x is not None]
    axes.set_xlim(0.9 * min(1, *ratios), 1.15 * max(1, *ratios))
    if best is not None:
        ink = mpl.rcParams["text.color"]
        axes.plot(
            best["speedup"], best["quality"], "o", markersize=11, markerfacecolor="none", markeredgecolor=ink, zorder=4
        )


def _speed(row: Row) -> str:
    per_token = f" {OTHER_LENGTH} {row['speedup_per_token']:.2f}× a token" if row["is_other_length"] else ""
    return f"{row['speedup']:.2f}×{per_token}"


def _is_too_wide(frame: Frame) -> bool:
    return "not measurable" in frame.values("speed_status")


def _entries(rows: list[Row]) -> list[Line2D]:
    ring: dict[str, Any] = {"marker": "o", "markersize": 10, "markerfacecolor": "none", "color": MUTED}
    entries = [
        Line2D([], [], color=MUTED, linestyle=":", label="quality of full depth"),
        floor_entry(),
        Line2D([], [], linestyle="none", label="fastest that loses 1 % at most", **ring),
    ]
    if any(row["is_other_length"] for row in rows):
        entries.append(length_entry())
    return [*entries, simulated_entry()] if any(row["execution"] == "simulated" for row in rows) else entries
