"""What early exit costs and gives: quality against depth and against measured speed-up, side by side."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from exitbench.reports.frame import Frame
from exitbench.reports.labels import count, is_sweep
from exitbench.reports.panels import (
    draw_intervals,
    draw_points,
    exit_layer_axis,
    grid_of_panels,
    legend_of_series,
    panel_titles,
    simulated_entry,
)
from exitbench.reports.style import MUTED, SeriesStyle, series_styles

ORDER = 10
TITLE = "Quality against depth and measured speed-up"
CAPTION = (
    "Left: the task's metric against the mean exit layer. Right: the same settings against the measured speed-up, a "
    "ratio of wall times to full depth of the same checkpoint in the same run. Bars are 95 % intervals over documents; "
    "lines join settings of a method that differ in one parameter. The grey band is full depth timed against itself "
    "(the A/A noise floor); settings whose interval touches it are drawn grey: no speed-up was shown. "
    "Results of random weights are left out."
)
EMPTY = (
    "No data yet: run `nox -s bench`, or any suite with `quality` and `timing` cells of models with trained weights."
)


def plot(frame: Frame) -> Figure:
    """Draw two panels side by side for each task and model; frame: value in the metric's unit, layers in blocks."""
    styles = series_styles(frame.distinct("method"))
    titles = panel_titles(frame)
    groups = list(frame.groups("task", "model", "setting", "metric"))
    simulated = [simulated_entry()] if "simulated" in frame.values("execution") else []
    entries: list[Line2D | Patch] = [_full_depth_entry(), _noise_entry(), *simulated]
    figure, panels = grid_of_panels(2 * len(groups), columns=2, legend_entries=len(styles) + len(entries))
    for (depth, speed), ((*key, metric), rows) in zip(zip(panels[::2], panels[1::2], strict=True), groups, strict=True):
        depth.set_title(titles[tuple(key)])
        depth.set_ylabel(metric)
        _depth_panel(depth, rows, styles)
        _speed_panel(speed, rows, styles)
        speed.set_ylim(depth.get_ylim())
        speed.set_title(count(rows.values("n"), "documents"), loc="right", fontweight="normal")
    legend_of_series(figure, styles, entries)
    return figure


def _depth_panel(axes: Axes, frame: Frame, styles: dict[str, SeriesStyle]) -> None:
    for (method, execution), rows in frame.groups("method", "execution"):
        x, y = rows.values("mean_exit_layer"), rows.values("value")
        intervals = list(zip(rows.values("ci_low"), rows.values("ci_high"), strict=True))
        draw_intervals(axes, x, intervals, styles[method].colour, along="y")
        draw_points(axes, x, y, styles[method], simulated=execution == "simulated", connect=is_sweep(rows.rows))
    _full_depth_line(axes, frame)
    exit_layer_axis(axes, max(frame.values("blocks")))


def _speed_panel(axes: Axes, frame: Frame, styles: dict[str, SeriesStyle]) -> None:
    timed = Frame(frame.columns, tuple(row for row in frame.rows if row["speedup"] is not None))
    if not timed.rows:
        axes.axis("off")
        axes.text(
            0.5,
            0.5,
            "not timed yet: run a suite with `timing` cells\n(nox -s bench)",
            ha="center",
            va="center",
            color=MUTED,
            transform=axes.transAxes,
        )
        return
    _noise_floor(axes, timed)
    for (method, inside), rows in timed.groups("method", "inside_noise_floor"):
        style = SeriesStyle(MUTED, styles[method].marker) if inside else styles[method]
        x, y = rows.values("speedup"), rows.values("value")
        intervals = list(zip(rows.values("speedup_low"), rows.values("speedup_high"), strict=True))
        draw_intervals(axes, y, intervals, style.colour, along="x")
        draw_points(axes, x, y, style, simulated=False, connect=is_sweep(rows.rows))
    _full_depth_line(axes, timed)
    axes.set_xlabel("measured speed-up over full depth (ratio of wall times)")


def _noise_floor(axes: Axes, frame: Frame) -> None:
    lows = [low for low in frame.values("aa_low") if low is not None]
    highs = [high for high in frame.values("aa_high") if high is not None]
    if lows and highs:
        axes.axvspan(min(lows), max(highs), color=MUTED, alpha=0.25, linewidth=0)
    axes.axvline(1, color=MUTED, linewidth=0.8)


def _full_depth_line(axes: Axes, frame: Frame) -> None:
    for value in sorted({value for value in frame.values("full_value") if value is not None}):
        axes.axhline(value, color=MUTED, linestyle=":", linewidth=1)


def _full_depth_entry() -> Line2D:
    return Line2D([], [], color=MUTED, linestyle=":", label="quality of full depth")


def _noise_entry() -> Patch:
    return Patch(facecolor=MUTED, alpha=0.25, label="A/A noise floor")
