"""Faithfulness to full depth against depth, with real decodes and replays of a probe side by side."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from exitbench.reports.frame import Frame
from exitbench.reports.labels import is_sweep
from exitbench.reports.panels import (
    draw_points,
    exit_layer_axis,
    grid_of_panels,
    legend_of_series,
    panel_titles,
    simulated_entry,
)
from exitbench.reports.style import SeriesStyle, series_styles

ORDER = 20
TITLE = "Agreement with full depth"
CAPTION = (
    "Share of tokens equal to full depth's against mean exit layer. Filled markers are real decodes, compared position "
    "by position with full depth's output, so that one early difference can shift everything after it. Hollow markers "
    "on dashed lines are simulated: an exit rule replayed over a full-depth pass, in which each token is "
    "judged alone and no cache is damaged. The gap between the two is the cost of exiting for real."
)
EMPTY = (
    "No data yet: run `nox -s bench`, or any suite with `quality` cells (real decodes) or "
    "`replay` cells (simulated) of models with trained weights."
)


def plot(frame: Frame) -> Figure:
    """Draw one panel a task and model; frame: token_match (0..1), mean_exit_layer (blocks), execution."""
    styles = series_styles(frame.distinct("method"))
    titles = panel_titles(frame)
    groups = list(frame.groups("task", "model", "setting"))
    figure, panels = grid_of_panels(len(groups), columns=2, legend_entries=len(styles) + 1)
    for axes, (key, rows) in zip(panels, groups, strict=True):
        _panel(axes, rows, styles)
        axes.set_title(titles[key])
    legend_of_series(figure, styles, [simulated_entry()] if "simulated" in frame.values("execution") else [])
    return figure


def _panel(axes: Axes, frame: Frame, styles: dict[str, SeriesStyle]) -> None:
    for (method, execution), rows in frame.groups("method", "execution"):
        draw_points(
            axes,
            rows.values("mean_exit_layer"),
            rows.values("token_match"),
            styles[method],
            simulated=execution == "simulated",
            connect=is_sweep(rows.rows),
        )
    exit_layer_axis(axes, max(frame.values("blocks")))
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.set_ylabel("tokens equal to full depth")
