"""Quality against speed-up of six confidence measures (the scatter plots of the Monotonic Early Exiting blog)."""

from collections.abc import Mapping, Sequence
from math import floor

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator, PercentFormatter

from exitbench.reports.figures.mee import filter_origin
from exitbench.reports.frame import Frame, Row
from exitbench.reports.labels import count, is_sweep, join_words, short_name, times
from exitbench.reports.plotting.panels import (
    FLOOR_NOTE,
    LENGTH_NOTE,
    draw_floors,
    draw_intervals,
    draw_lengths,
    draw_points,
    draw_published,
    floor_entry,
    grid_of_panels,
    label_y,
    legend_of_series,
    length_entry,
    panel_titles,
    published_entry,
    title_panel,
)
from exitbench.reports.plotting.style import MUTED, SMALL_POINTS, SeriesStyle, series_styles

TITLE = "Six confidence measures: quality against measured speed"
CAPTION = (
    "Quality and speed as shares of full depth's, whose values are written into each panel; right is faster, up is "
    "better. Lines join the thresholds of one measure. Bars are 95 % intervals over documents, for quality those of "
    f"the score divided by full depth's, cut at the panel's edge. {FLOOR_NOTE}. {LENGTH_NOTE} After the scatter plots "
    "of the Monotonic Early Exiting blog. Gray outlines with a cross are its runs (T5-large trained on every block, "
    "on SQuAD and, shown with our dialogues, CNN/DM), relative to its own run without early exit. Its three measures, "
    "mee-mlp3, mee-lstm and mee-top3, were slower than no early exit in five of six runs. They differ from ours in "
    "models and data, in batches of 32 (on SQuAD 16 for mee-mlp3 and mee-lstm), and in a runtime that dropped keys "
    "and values after exits. mee-lstm on SQuAD was typed by hand; its log ends in an exception. The blog's IWSLT run "
    "is invalid and not drawn: the checkpoint was read with another model's tokenizer, and no BLEU is above 0.0041 of "
    "100."
)
EMPTY = (
    "No data yet: run `nox -s paper -- mee`, or any suite with `quality` and `timing` cells of calm-softmax, "
    "calm-saturation, calm-classifier, mee-mlp3, mee-lstm or mee-top3 on a model trained to exit."
)

_KEPT = 0.99  # share of full depth's quality


def finding(frame: Frame) -> str:
    """Return a sentence on each task's fastest measure that keeps 99 % of quality and exceeds the noise floor."""
    parts = []
    local = frame.filter(lambda row: row["origin"] == "ours")
    for (task,), rows in local.groups("task_label"):
        candidates = [row for row in rows.rows if row["quality"] >= _KEPT and not row["is_full_depth"]]
        best = max(
            (row for row in candidates if _beyond_noise(row)), key=lambda row: float(row["speedup"]), default=None
        )
        name = "none" if best is None else f"{short_name(best['method'])} at {_interval(best)}"
        parts.append(f"on {short_name(task)} {name}")
    return f"Fastest measure with at least 99 % of full depth's quality: {join_words(parts[:4])}." if parts else ""


def _beyond_noise(row: Row) -> bool:
    low, floor = row["speedup_low"], row["aa_high"]
    return low is not None and low > max(1.0, floor if floor is not None else 1.0)


def _interval(row: Row) -> str:
    return times(row["speedup"], row["speedup_low"], row["speedup_high"])


def plot(frame: Frame) -> Figure:
    """Draw one panel per task and model: x is the measured speed-up, y the quality, both relative to full depth.

    One marker style per confidence measure (method); a line joins its thresholds. Frame: one row per setting or
    published run (told apart by origin), with speedup and quality.
    """
    local, published = filter_origin(frame, "ours"), filter_origin(frame, "published")
    tasks = local.distinct("task")
    published = published.filter(lambda row: row["task"] in tasks)
    styles = series_styles([*local.values("method"), *published.values("method")])
    named = Frame(local.columns, tuple({**row, "task": row["task_label"], "kind": row["task"]} for row in local.rows))
    titles = panel_titles(named)
    entries = [floor_entry(), length_entry(), published_entry()]
    groups = list(named.groups("task", "model", "setting"))
    figure, panels = grid_of_panels(len(groups))
    for axes, (key, rows) in zip(panels, groups, strict=False):
        printed = [row for row in published.rows if row["task"] == rows.rows[0]["kind"]]
        draw_floors(axes, rows.values("quality"), rows.rows, along="x")
        draw_lengths(axes, rows.values("quality"), rows.rows, along="x")
        _published(axes, printed, styles)
        for (method,), points in rows.groups("method"):
            style = styles[method]
            x, y = points.values("speedup"), points.values("quality")
            draw_intervals(axes, x, points.intervals("quality"), style.colour, along="y")
            draw_intervals(axes, y, points.intervals("speedup"), style.colour, along="x")
            draw_points(axes, x, y, style, simulated=False, connect=is_sweep(points.rows))
        _speed_axis(axes, [row["speedup"] for row in (*rows.rows, *printed)])
        _share_axis(axes, [row["quality"] for row in (*rows.rows, *printed)])
        notes = [count(rows.values("n"), "documents"), count(rows.values("timed_documents"), "timed")]
        title_panel(axes, titles[key], ", ".join(filter(None, notes)))
        axes.text(0.02, 0.05, _full_depth(rows), transform=axes.transAxes, fontsize=SMALL_POINTS)
    legend_of_series(figure, styles, entries)
    return figure


def _published(axes: Axes, rows: list[Row], styles: Mapping[str, SeriesStyle]) -> None:
    """Draw each published point as a cross inside the empty marker of its method."""
    x, y = [row["speedup"] for row in rows], [row["quality"] for row in rows]
    draw_published(axes, x, y)
    for row in rows:
        axes.plot(
            row["speedup"],
            row["quality"],
            marker=styles[row["method"]].marker,
            markersize=10,
            markerfacecolor="none",
            markeredgecolor=MUTED,
            markeredgewidth=0.8,
            linestyle="none",
            zorder=2.1,
        )


def _full_depth(frame: Frame) -> str:
    """Return text on full depth, which is 1 on both axes: its metric and, if it was timed, its times."""
    (row, *_) = sorted(frame.rows, key=lambda row: not row["is_full_depth"])
    timed = row["is_full_depth"] and row["ms_per_request"] is not None
    times = [f"{row['ms_per_request']:.1f} ms per request, {row['tokens_per_second']:,.0f} tokens/s"] if timed else []
    return "\n".join(["full depth:", f"{row['metric']} {row['full_value']:.1f}", *times])


def _speed_axis(axes: Axes, speedups: Sequence[float]) -> None:
    """Set up the x axis: ratios on a logarithmic scale with ticks at powers of two."""
    axes.set_xscale("log", base=2)
    axes.set_xlim(min(0.5, min(speedups) / 1.1), max(2.0, max(speedups) * 1.2))
    axes.xaxis.set_major_locator(LogLocator(2))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel("measured speed-up over full depth")


def _share_axis(axes: Axes, shares: Sequence[float]) -> None:
    """Scale the y axis from at least 10 % below all points to above full depth; longer intervals are clipped."""
    axes.set_ylim(max(0.0, floor((min(shares) - 0.1) * 5) / 5), 1.06 * max(1.0, *shares))
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    label_y(axes, "quality, of full depth's")
