"""Measured against ideal speed-up: does saved work become saved time?"""

from collections.abc import Mapping
from statistics import median
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, PercentFormatter

from exitbench.reports.figures.ours import series_column
from exitbench.reports.frame import Frame
from exitbench.reports.labels import count, percent
from exitbench.reports.plotting.panels import draw_intervals, figure_of, legend_of_series, title_panel
from exitbench.reports.plotting.style import MUTED, SeriesStyle, series_styles
from exitbench.terminal import abbreviate_uniquely

ORDER = 12
TITLE = "Measured against ideal speed-up"
CAPTION = (
    "How much time is lost beyond the work? Left: the measured speed-up of decoding against the ideal one, one point "
    "per timed setting. The ideal speed-up is full depth's work over that of the timed answers (weights, caches, "
    "heads, gates and KV fills; bytes read at batch size 1, operations at larger ones). On the diagonal all saved "
    "work becomes saved time; below it, launches and decisions cost time that the cost model does not include. Right: "
    "the realised fraction, measured over ideal, by method (all its settings, tasks and models), with lines at 90 %, "
    "95 % and 100 %. Above 100 % the cost model omits something, such as processor caches that hold a small model. "
    "Bars are 95 % intervals of the measured ratio, over documents, cut at the panel's edge. Full depth's own row is "
    "its second timing: the result of a setting that changes nothing. Both axes of the left panel are logarithmic."
)
EMPTY = "No data yet: run `nox -s bench`, or any suite with `timing` cells of models with trained weights."

_GOALS: dict[float, Any] = {0.9: ":", 0.95: "--", 1.0: "-"}
_GOAL = 0.9
_METHOD_INCHES = 0.15
_SPREAD = 0.6
_BEYOND = 0.8  # margin of the axis beyond the outermost point


def finding(frame: Frame) -> str:
    """Return a sentence on the share of the ideal speed-up that the settings realise."""
    shares = sorted(row["realised"] for row in frame.rows if not row["is_full_depth"])
    if not shares:
        return "Only full depth was timed, against itself."
    reached = sum(share >= _GOAL for share in shares)
    return (
        f"Half of the {len(shares)} timed settings realise at least {percent(median(shares))} of their ideal speed-up; "
        f"{reached} reach {percent(_GOAL)}."
    )


def plot(frame: Frame) -> Figure:
    """Draw two panels per hardware setting, with one marker per timed setting of a method.

    Left: the measured speed-up of decoding (column `speedup`, y) against the ideal one (`ideal`, x). Right: the
    measured divided by the ideal speed-up (`realised`, x), one line per method. Frame: one row per timed setting.
    """
    by = series_column(frame)
    styles = series_styles(frame.distinct(by))
    groups = list(frame.groups("setting"))
    methods = frame.distinct("method")
    extra = _entries()
    figure = figure_of(max(2.6, _METHOD_INCHES * len(methods) + 0.7) * len(groups))
    grid = figure.subplots(len(groups), 2, squeeze=False, width_ratios=(1.15, 1))
    for (plane, strip), ((hardware,), rows) in zip(grid, groups, strict=True):
        title_panel(plane, hardware, count(rows.values("n"), "timed documents"))
        _plane(plane, rows, styles, by)
        _strip(strip, rows, styles, by)
    legend_of_series(figure, styles, extra)
    return figure


def _plane(axes: Axes, frame: Frame, styles: Mapping[str, SeriesStyle], by: str) -> None:
    for (series,), rows in frame.groups(by):
        style, x, y = styles[series], rows.values("ideal"), rows.values("speedup")
        draw_intervals(axes, x, rows.intervals("speedup"), style.colour, along="y")
        axes.plot(x, y, linestyle="none", color=style.colour, marker=style.marker, markersize=4.5, zorder=3)
    low, high = 0.9 * min(frame.values("ideal")), 1.1 * max(frame.values("ideal"))
    for share, line in _GOALS.items():
        axes.plot([low, high], [share * low, share * high], color=MUTED, linestyle=line, linewidth=0.9, zorder=1.5)
    axes.set(xscale="log", yscale="log", xlabel="ideal speed-up of decoding", ylabel="measured speed-up of decoding")
    # limits ignore intervals: a single very wide one would squeeze all other points together
    axes.set_ylim(_BEYOND * min(frame.values("speedup")), max(frame.values("speedup")) / _BEYOND)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter("")


def _strip(axes: Axes, frame: Frame, styles: Mapping[str, SeriesStyle], by: str) -> None:
    methods = frame.distinct("method")
    for line, method in enumerate(methods):
        rows = [row for row in frame.rows if row["method"] == method]
        for place, row in enumerate(sorted(rows, key=lambda row: row["realised"])):
            y = line + _SPREAD * ((place + 0.5) / len(rows) - 0.5)
            style = styles[row[by]]
            draw_intervals(axes, [y], [(row["realised_low"], row["realised_high"])], style.colour, along="x")
            axes.plot(row["realised"], y, color=style.colour, marker=style.marker, markersize=3.5, zorder=3)
    for share, line_style in _GOALS.items():
        axes.axvline(share, color=MUTED, linestyle=line_style, linewidth=0.9, zorder=1.5)
    axes.set_yticks(range(len(methods)), abbreviate_uniquely(methods, 24))
    axes.set_ylim(len(methods) - 0.5, -0.5)
    axes.set_xlim(0.9 * min(0.9, *frame.values("realised")), 1.1 * max(1.1, *frame.values("realised")))
    axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.set_xlabel("realised: measured over ideal speed-up")


def _entries() -> list[Line2D]:
    return [
        Line2D([], [], color=MUTED, linestyle=line, label=f"{share:.0%} of ideal") for share, line in _GOALS.items()
    ]
