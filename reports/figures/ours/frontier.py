"""Quality against depth and against measured speed-up, side by side."""

from collections.abc import Mapping
from textwrap import wrap
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter
from matplotlib.transforms import offset_copy

from exitbench.reports.figures.ours import envelope, recommended, series_of
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
    setting,
    times,
)
from exitbench.reports.plotting.panels import (
    FLOOR_NOTE,
    LENGTH_NOTE,
    draw_floors,
    draw_intervals,
    draw_lengths,
    draw_points,
    draw_published,
    figure_of,
    floor_entry,
    legend_of_series,
    length_entry,
    published_entry,
    share_of_blocks_axis,
    simulated_entry,
    title_panel,
)
from exitbench.reports.plotting.style import MUTED, SMALL_POINTS, SeriesStyle, quiet, series_styles

ORDER = 10
TITLE = "Quality against depth and measured speed-up"
CAPTION = (
    "The task's metric as a share of full depth's of the same checkpoint (for an error: 2 minus that share, so that "
    "up is better). Left: against the blocks run per token, as a share of all blocks; oracles, and policies that run "
    "skipped blocks later, run more blocks than the exit layer. Right: the timed settings, against the measured "
    f"speed-up of whole requests, a ratio of wall times to full depth in the same run. {LENGTH_NOTE} Bars are 95 % "
    "intervals over documents (of the metric; the uncertainty of full depth's is not included), cut at the panel's "
    "edge. Lines join the settings for which no other is both better and shallower, or both better and faster. A ring "
    "marks the recommended setting at an allowed loss of 1 %: the fastest method that was chosen on a third of the "
    f"documents and confirmed on the others. No line includes oracles, which know full depth's answer. {FLOOR_NOTE}; "
    "points whose interval touches it are gray: no speed-up was shown. Crosses are published mean exit layers (MEE's "
    "log and PRUNE's figures 6, 7, 10 and 11; T5-large, other data and machines), each relative to full depth there; "
    "they have no comparable time. Excluded: two of them whose depths seem misprinted (figure 11a, fixed pruning from "
    "blocks 6 and 3 on), tasks where full depth scores 0, random weights, and speed-ups whose interval or noise floor "
    "is wider than a factor of 10."
)
EMPTY = (
    "No data yet: run `nox -s bench`, or any suite with `quality` and `timing` cells of models with trained weights."
)

_ROW_INCHES = 2.0
_MOST_ROWS = 6
_NAMED = 4  # models whose fastest setting is named; there is no room for more
_WORDS_WIDTH = 32  # characters
_LINE_POINTS = 8.8
_NOT_TIMED = "not timed yet: run a suite with `timing` cells\n(nox -s bench)"


def finding(frame: Frame) -> str:
    """Return a sentence per task on the recommended setting at an allowed loss of 1 %."""
    names = labels([row for row in frame.rows if row["origin"] == "ours"], brief=True)
    parts = []
    for (task,), rows in frame.groups("task"):
        if chosen := recommended(rows):
            best = max(chosen.values(), key=lambda row: row["speedup"])
            fast = times(best["speedup"], best["speedup_low"], best["speedup_high"])
            parts.append(f"on {called(task)} {label_of(names, best)} ({called(best['model'])}) at {fast}")
        elif any(row["speed_status"] == "timed" and not row["is_full_depth"] for row in rows.rows):
            parts.append(f"on {called(task)} none is shown")
    if not parts:
        why = f"speed-ups are {NOT_MEASURABLE}" if _is_too_wide(frame) else "no setting was timed"
        return f"Quality against depth; {why}."
    return f"Fastest of those shown to lose at most 1 % of full depth's quality: {listed(parts[:_NAMED])}."


def plot(frame: Frame) -> Figure:
    """Draw one row of panels per task; frame: quality (1 is full depth's), depth (share of blocks), speedup (ratio)."""
    local = frame.filter(lambda row: row["origin"] == "ours")
    by = series_of(local)
    styles = series_styles(local.distinct(by))
    names = labels(local.rows, brief=True)
    extra = _entries(frame)
    groups = list(local.groups("task", "setting", "metric"))[:_MOST_ROWS]
    figure = figure_of(_ROW_INCHES * len(groups))
    grid = figure.subplots(len(groups), 3, squeeze=False, width_ratios=(1, 1, 0.72))
    several = len(local.distinct("setting")) > 1
    published = {key: rows for key, rows in frame.groups("task", "setting", "origin") if key[2] == "published"}
    for (depth, speed, words), ((task, conditions, metric), rows) in zip(grid, groups, strict=True):
        title_panel(depth, task + (f"\n{conditions}" if several else ""), count(rows.values("n"), "documents"))
        depth.set_ylabel(f"{metric}, of full depth's")
        _depth_panel(depth, rows, published.get((task, conditions, "published")), styles, by)
        _speed_panel(speed, rows, styles, by)
        speed.set_ylim(depth.get_ylim())
        _fastest(words, rows, styles, by, names)
    legend_of_series(figure, styles, extra)
    return figure


def _depth_panel(axes: Axes, frame: Frame, published: Frame | None, styles: Mapping[str, SeriesStyle], by: str) -> None:
    if published is not None:
        draw_published(axes, published.values("depth"), published.values("quality"))
    points = frame.filter(lambda row: row["depth"] is not None)
    for (series, execution), rows in points.groups(by, "execution"):
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


def _speed_panel(axes: Axes, frame: Frame, styles: Mapping[str, SeriesStyle], by: str) -> None:
    timed = frame.filter(lambda row: row["speedup"] is not None)
    if all(row["is_full_depth"] for row in timed.rows):
        axes.axis("off")
        text = f"{NOT_MEASURABLE}: {TOO_WIDE}" if _is_too_wide(frame) else _NOT_TIMED
        axes.text(0.5, 0.5, text, ha="center", va="center", color=quiet(), transform=axes.transAxes)
        return
    draw_floors(axes, timed.values("quality"), timed.rows, along="x")
    draw_lengths(axes, timed.values("quality"), timed.rows, along="x")
    title_panel(axes, "", count(timed.values("timed_documents"), "timed"))
    for (series, inside), rows in timed.groups(by, "inside_noise_floor"):
        style = SeriesStyle(MUTED, styles[series].marker) if inside else styles[series]
        x, y = rows.values("speedup"), rows.values("quality")
        intervals = list(zip(rows.values("speedup_low"), rows.values("speedup_high"), strict=True))
        draw_intervals(axes, y, intervals, style.colour, along="x")
        draw_points(axes, x, y, style, simulated=False, connect=False)
    for (series,), rows in timed.groups(by):
        front = envelope([(row["speedup"], row["quality"]) for row in rows.rows])
        axes.plot([x for x, _ in front], [y for _, y in front], color=styles[series].colour, linewidth=0.9)
    axes.axhline(1, color=MUTED, linestyle=":", linewidth=1)
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.set_xlabel("measured speed-up over full depth")
    # Limits ignore intervals: a single very wide one would squeeze all other points together.
    ratios = [x for name in ("speedup", "speedup_per_token") for x in timed.values(name) if x is not None]
    axes.set_xlim(0.9 * min(1, *ratios), 1.15 * max(1, *ratios))
    for row in recommended(timed).values():
        ink = mpl.rcParams["text.color"]
        x, y = row["speedup"], row["quality"]
        axes.plot(x, y, "o", markersize=11, markerfacecolor="none", markeredgecolor=ink, zorder=4)


def _is_too_wide(frame: Frame) -> bool:
    return "not measurable" in frame.values("speed_status")


def _fastest(
    axes: Axes, frame: Frame, styles: Mapping[str, SeriesStyle], by: str, names: Mapping[Setting, str]
) -> None:
    """Label the ringed points: each model's recommended setting."""
    axes.axis("off")
    timed = frame.filter(lambda row: row["speedup"] is not None)
    if all(row["is_full_depth"] for row in timed.rows):
        return
    fastest = recommended(timed)
    faster = sorted(fastest.items(), key=lambda item: -item[1]["speedup"])[:_NAMED]
    remaining = ", ".join(model for model in timed.distinct("model") if model not in fastest)
    entries: list[tuple[Row | None, list[str]]] = [(None, ["fastest that loses 1 % at most"])]
    entries += [(row, [f"{model}: {_speed(row)}", *_wrapped(names[setting(row)])]) for model, row in faster]
    entries += [(None, _wrapped(f"none is shown: {remaining}"))] if remaining else []
    offset = 0.0
    for row, lines in entries:
        at = offset_copy(axes.transAxes, axes.get_figure(root=True), x=8, y=-offset, units="points")
        if row is not None:
            mark = offset_copy(at, axes.get_figure(root=True), x=-6, y=-4, units="points")
            axes.plot(0, 1, styles[row[by]].marker, color=styles[row[by]].colour, transform=mark, clip_on=False)
        axes.text(0, 1, "\n".join(lines), fontsize=SMALL_POINTS, transform=at, va="top", linespacing=1.1)
        offset += _LINE_POINTS * len(lines) + 4
    axes.texts[0].set(fontweight="bold")


def _wrapped(text: str) -> list[str]:
    return wrap(text, _WORDS_WIDTH, max_lines=2, placeholder=" …", break_on_hyphens=False)


def _speed(row: Row) -> str:
    interval = "" if row["speedup_low"] is None else f" [{row['speedup_low']:.2f}, {row['speedup_high']:.2f}]"
    per_token = f" {OTHER_LENGTH} {row['speedup_per_token']:.2f}× a token" if row["is_other_length"] else ""
    return f"{row['speedup']:.2f}×{interval}{per_token}"


def _entries(frame: Frame) -> list[Line2D]:
    ring: dict[str, Any] = {"marker": "o", "markersize": 10, "markerfacecolor": "none", "color": MUTED}
    entries = [
        Line2D([], [], color=MUTED, linestyle=":", label="quality of full depth"),
        floor_entry(),
        Line2D([], [], linestyle="none", label="fastest that loses 1 % at most", **ring),
    ]
    if any(frame.values("is_other_length")):
        entries.append(length_entry())
    if "simulated" in frame.values("execution"):
        entries.append(simulated_entry())
    return [*entries, published_entry()] if "published" in frame.values("origin") else entries
