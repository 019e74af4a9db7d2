"""Whether choices are still those of full depth, by the threshold of each method."""

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from exitbench.reports.figures.ours.choice_parts import LEFT_OUT, NO_CHOICES, join, panels_of, rows_of
from exitbench.reports.frame import Frame
from exitbench.reports.labels import between, count, percent
from exitbench.reports.plotting.panels import (
    draw_intervals,
    draw_points,
    grid_of_panels,
    label_y,
    legend_of_series,
    panel_titles,
    simulated_entry,
    title_panel,
)
from exitbench.reports.plotting.style import MUTED, SeriesStyle, series_styles

ORDER = 36
TITLE = "Choices that are full depth's"
CAPTION = (
    "Multiple-choice tasks: the share of documents whose most probable choice is the one that full depth finds most "
    "probable, right or wrong, against the method's threshold. A line joins settings of a method that differ in the "
    "threshold alone; one threshold does not mean the same to two methods, and those without one are not here. Filled "
    "markers are real (forced decode); hollow ones are simulated, from one pass at full depth in which no cache is "
    f"damaged. Bars are 95 % intervals over documents. {LEFT_OUT}"
)
EMPTY = NO_CHOICES


def finding(frame: Frame) -> str:
    """Return the range in which settings choose as full depth does."""
    real = [row for row in frame.rows if row["execution"] == "real"]
    kind = "Real settings" if real else "Simulated settings"
    told = between(real or frame.rows, "same_choice", percent, ("model", "task"))
    return f"{kind} choose as full depth in {told} of documents."


def plot(frame: Frame) -> Figure:
    """Draw one panel a task and model; frame: same_choice (0..1) with its interval, threshold, execution."""
    panels = panels_of(frame)
    shown = rows_of(panels, frame.columns)
    styles, titles = series_styles(shown.distinct("method")), panel_titles(shown)
    simulated = [simulated_entry()] if "simulated" in shown.values("execution") else []
    figure, grid = grid_of_panels(len(panels))
    for axes, (key, rows) in zip(grid, panels, strict=False):
        _panel(axes, rows, styles)
        title_panel(axes, titles[key], count(rows.values("n"), "documents"))
    legend_of_series(figure, styles, simulated)
    return figure


def _panel(axes: Axes, frame: Frame, styles: Mapping[str, SeriesStyle]) -> None:
    for (method, execution), rows in frame.groups("method", "execution"):
        simulated, style = execution == "simulated", styles[method]
        for _, line in rows.groups("line"):
            x, y = line.values("threshold"), line.values("same_choice")
            intervals = list(zip(line.values("same_low"), line.values("same_high"), strict=True))
            draw_intervals(axes, x, intervals, style.colour, along="y")
            join(axes, x, y, style, simulated=simulated)
            draw_points(axes, x, y, style, simulated=simulated, connect=False)
    axes.axhline(1, color=MUTED, linestyle=":", linewidth=1)
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.set_xlabel("threshold")
    label_y(axes, "choices that are full depth's")
