"""Quality against depth and against measured speed-up, side by side, for each model and task."""

from collections.abc import Mapping
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
    TOO_WIDE,
    Setting,
    called,
    count,
    label_of,
    labels,
    listed,
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
from exitbench.reports.plotting.style import MUTED, SeriesStyle, quiet, series_styles

ORDER = 10
TITLE = "Quality against depth and measured speed-up"
CAPTION = (
    "One row of panels per model and task (at most six, those with the most methods), one colour per method. The "
    "task's metric is a share of full depth's of the same checkpoint (for an error: 2 minus that share, so that up is "
    "better). Left: against the blocks run per token, as a share of all blocks; oracles, and policies that run skipped "
    "blocks later, run more blocks than the exit layer. Right: the timed settings, against the measured speed-up of "
    f"whole requests, a ratio of wall times to full depth in the same run. {LENGTH_NOTE} Bars are 95 % intervals over "
    "documents (of the metric; the uncertainty of full depth's is not included), cut at the panel's edge. Lines join "
    "the settings for which no other is both better and shallower, or both better and faster. A ring marks the "
    "recommended setting at an allowed loss of 1 %: the fastest method that was chosen on a third of the documents and "
    f"confirmed on the others. No line includes oracles, which know full depth's answer. {FLOOR_NOTE}; points whose "
    "interval touches it are gray: no speed-up was shown. Excluded: tasks where full depth scores 0, random weights, "
    "and speed-ups whose interval or noise floor is wider than a factor of 10."
)
EMPTY = (
    "No data yet: run `nox -s bench`, or any suite with `quality` and `timing` cells of models with trained weights."
)

_ROW_INCHES = 2.0
_MOST_ROWS = 6
_MOST_TOLD = 4
_NOT_TIMED = "not timed yet: run a suite with `timing` cells\n(nox -s bench)"


def finding(frame: Frame) -> str:
    """Return a sentence per model and task on the recommended setting at an allowed loss of 1 %."""
    names = labels(frame.rows, brief=True)
    parts = []
    for (task, model), rows in frame.groups("task", "model"):
        if chosen := recommended(rows):
            best = chosen[model]
            fast = times(best["speedup"], best["speedup_low"], best["speedup_high"])
            parts.append(f"on {called(task)} {label_of(names, best)} ({called(model)}) at {fast}")
    if parts:
        return f"Fastest of those shown to lose at most 1 % of full depth's quality: {listed(parts[:_MOST_TOLD])}."
    if any(row["speed_status"] == "timed" and not row["is_full_depth"] for row in frame.rows):
        return "No timed setting is shown to lose at most 1 % of full depth's quality."
    why = f"speed-ups are {NOT_MEASURABLE}" if _is_too_wide(frame) else "no setting was timed"
    return f"Quality against depth; {why}."


def plot(frame: Frame) -> Figure:
    """Draw one row of panels per model and task; frame: quality (1 is full depth's), depth (share), speedup (ratio)."""
    names = labels(frame.rows, brief=True)
    every = list(frame.groups("model", "task", "setting", "metric"))
    groups = sorted(every, key=lambda group: -len(group[1].distinct("method")))[:_MOST_ROWS]
    shown = [row for _, rows in groups for row in rows.rows]
    styles = series_styles(Frame(frame.columns, tuple(shown)).distinct("method"))
    figure = figure_of(_ROW_INCHES * len(groups))
    grid = figure.subplots(len(groups), 2, squeeze=False)
    several = len(frame.distinct("setting")) > 1
    for (depth, speed), ((model, task, conditions, metric), rows) in zip(grid, groups, strict=True):
        title = f"{called(model)} on {called(task)}" + (f"\n{conditions}" if several else "")
        title_panel(depth, title, count(rows.values("n"), "documents"))
        depth.set_ylabel(f"{metric}, of full depth's")
        _depth_panel(depth, rows, styles)
        _speed_panel(speed, rows, styles, names)
        speed.set_ylim(depth.get_ylim())
    legend_of_series(figure, styles, _entries(shown))
    return figure


def _depth_panel(axes: Axes, frame: Frame, styles: Mapping[str, SeriesStyle]) -> None:
    points = frame.filter(lambda row: row["depth"] is not None)
    for (series, execution), rows in points.groups("method", "execution"):
        style = styles[series]
        x, y = rows.values("depth"), rows.values("quality")
        intervals = list(zip(rows.values("quality_low"), rows.values("quality_high"), strict=True))
        draw_intervals(axes, x, intervals, style.colour, along="y")
        draw_points(axes, x, y, style, simulated=execution == "simulated", connect=False)
        reached = [row for row in rows.rows if execution == "real" and row["attainable"]]
        front = envelope([(-row["depth"], row["quality"]) for row in reached])
        axes.plot([-x for x, _ in front], [y for _, y in front], color=style.colour, linewidth=0.9)
    axes.axhline(1, color=MUTED, linestyle=":", linewidth=1)
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    share_of_blocks_axis(axes, "mean blocks run")


def _speed_panel(axes: Axes, frame: Frame, styles: Mapping[str, SeriesStyle], names: dict[Setting, str]) -> None:
    timed = frame.filter(lambda row: row["speedup"] is not None)
    if all(row["is_full_depth"] for row in timed.rows):
        axes.axis("off")
        text = f"{NOT_MEASURABLE}: {TOO_WIDE}" if _is_too_wide(frame) else _NOT_TIMED
        axes.text(0.5, 0.5, text, ha="center", va="center", color=quiet(), transform=axes.transAxes)
        return
    draw_floors(axes, timed.values("quality"), timed.rows, along="x")
    draw_lengths(axes, timed.values("quality"), timed.rows, along="x")
    best = next(iter(recommended(timed).values()), None)
    title = "" if best is None else f"{label_of(names, best)}: {_speed(best)}"
    title_panel(axes, title, count(timed.values("timed_documents"), "timed"))
    for (series, inside), rows in timed.groups("method", "inside_noise_floor"):
        style = SeriesStyle(MUTED, styles[series].marker) if inside else styles[series]
        x, y = rows.values("speedup"), rows.values("quality")
        intervals = list(zip(rows.values("speedup_low"), rows.values("speedup_high"), strict=True))
        draw_intervals(axes, y, intervals, style.colour, along="x")
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
