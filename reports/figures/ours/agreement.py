"""Agreement with full depth against depth, with real decodes and replays of a probe side by side."""

from collections.abc import Mapping
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from exitbench.reports.figures.ours import series_column
from exitbench.reports.frame import Frame
from exitbench.reports.labels import between, count, differing_conditions, is_sweep, percent, setting
from exitbench.reports.plotting.panels import (
    draw_intervals,
    draw_points,
    grid_of_panels,
    label_y,
    legend_of_series,
    share_of_blocks_axis,
    simulated_entry,
    title_panel,
)
from exitbench.reports.plotting.style import SeriesStyle, series_styles

ORDER = 20
TITLE = "Agreement with full depth"
CAPTION = (
    "Share of full depth's tokens that the method has at the same position, against the mean exit layer. For tasks "
    "that score given texts: share of documents whose most probable choice is full depth's, right or wrong. Filled "
    "markers are real decodes, compared position by position with full depth's output, so one early difference can "
    "shift everything after it. Hollow markers are simulated: an exit rule replayed over a full-depth pass, in which "
    "each token is judged independently and the KV cache stays exact. A thin line joins the two markers of a setting; "
    "their distance is the effect of real exits. Bars are 95 % intervals over documents."
)
EMPTY = (
    "No data yet: run `nox -s bench`, or any suite with `quality` cells (real decodes) or `replay` cells (simulated) "
    "of models with trained weights."
)


def finding(frame: Frame) -> str:
    """Return a sentence on the agreement of real decodes with full depth, and on how much higher that of replays is.

    A replay applies the exit rule to a stored full-depth pass; each token is judged alone.
    """
    # a setting that never exits is full depth itself
    real = [row for row in frame.rows if row["execution"] == "real" and row["depth"] < 1]
    replays = {(row["task"], row["model"], *setting(row)): row for row in frame.rows if row["execution"] != "real"}
    lost = [
        replay["match"] - row["match"]
        for row in real
        if (replay := replays.get((row["task"], row["model"], *setting(row)))) is not None
    ]
    if not real:
        return "No real decode exits; replays judge each token alone."
    sentence = (
        f"Real decodes have {between(real, 'match', percent, ('model', 'task'))} of full depth's {_compared(frame)}"
    )
    if not lost:
        return f"{sentence}."
    return f"{sentence}; replays of the same {len(lost)} settings have {100 * fmean(lost):.1f} points more on average."


def _compared(frame: Frame) -> str:
    """Return what the rows compare with full depth's: ``'tokens'``, ``'choices'`` or ``'tokens or choices'``."""
    kinds = {True: "choices", False: "tokens"}
    return " or ".join(kinds[of_choices] for of_choices in sorted(frame.distinct("of_choices")))


def plot(frame: Frame) -> Figure:
    """Draw one panel per task: x is the mean exit layer as a share of blocks, y the agreement with full depth (0..1).

    Markers are settings, filled for real decodes, hollow for replays. Frame: one row per task, setting and execution,
    with depth (x), match (y) and its interval.
    """
    by = series_column(frame)
    styles = series_styles(frame.distinct(by))
    simulated = [simulated_entry()] if "simulated" in frame.values("execution") else []
    groups = list(frame.groups("task", "setting"))
    figure, panels = grid_of_panels(len(groups))
    named = differing_conditions(frame.distinct("setting"))
    for axes, ((task, conditions), rows) in zip(panels, groups, strict=False):
        _panel(axes, rows, styles, by)
        real = [row["n"] for row in rows.rows if row["execution"] == "real"]
        numbers = count(real or rows.values("n"), "documents")
        title_panel(axes, f"{task}\n{named[conditions]}".rstrip(), numbers)
    legend_of_series(figure, styles, simulated)
    return figure


def _panel(axes: Axes, frame: Frame, styles: Mapping[str, SeriesStyle], by: str) -> None:
    _connect_equal_settings(axes, frame, styles, by)
    for (series, _, execution), rows in frame.groups(by, "method", "execution"):
        x, y, style = rows.values("depth"), rows.values("match"), styles[series]
        draw_intervals(axes, x, rows.intervals("match"), style.colour, along="y")
        joined = by == "method" and is_sweep(rows.rows)
        draw_points(axes, x, y, style, simulated=execution == "simulated", connect=joined)
    share_of_blocks_axis(axes, "mean exit layer")
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    label_y(axes, f"{_compared(frame)} equal to full depth's")


def _connect_equal_settings(axes: Axes, frame: Frame, styles: Mapping[str, SeriesStyle], by: str) -> None:
    replays = {(row["model"], *setting(row)): row for row in frame.rows if row["execution"] == "simulated"}
    for row in frame.rows:
        replay = replays.get((row["model"], *setting(row)))
        if row["execution"] == "real" and replay is not None:
            ends = [row, replay]
            x, y = ([end[name] for end in ends] for name in ("depth", "match"))
            axes.plot(x, y, color=styles[row[by]].colour, linewidth=0.5, alpha=0.6, zorder=1.8)
