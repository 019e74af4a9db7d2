"""How early predictions settle (Figure 1 of the Monotonic Early Exiting paper)."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from exitbench.reports.frame import Frame
from exitbench.reports.labels import count, shorten
from exitbench.reports.panels import grid_of_panels, legend_of_series
from exitbench.reports.style import SeriesStyle, series_styles

ORDER = 40
TITLE = "When predictions stop changing"
CAPTION = (
    "Share of tokens whose most likely next token is already the final one and stays so through all later blocks, "
    "measured by a full-depth pass over the model's own output. A curve that rises early is room for early exit; "
    "it reaches 100 % at the last block by definition."
)
EMPTY = "No data yet: run `nox -s bench`, or any suite with `probe` cells of models with trained weights."


def plot(frame: Frame) -> Figure:
    """Draw one panel a task and one line a model; frame: task, model, block, share (0..1), n."""
    styles = series_styles(frame.distinct("model"))
    tasks = frame.distinct("task")
    figure, panels = grid_of_panels(len(tasks), columns=2, legend_entries=len(styles))
    for axes, ((task,), rows) in zip(panels, frame.groups("task"), strict=True):
        _panel(axes, rows, styles)
        axes.set_title(shorten(task, 24))
        axes.set_title(count(rows.values("n"), "tokens a model"), loc="right", fontweight="normal")
    legend_of_series(figure, styles)
    return figure


def _panel(axes: Axes, frame: Frame, styles: dict[str, SeriesStyle]) -> None:
    for (model,), rows in frame.groups("model"):
        axes.plot(
            rows.values("block"),
            rows.values("share"),
            color=styles[model].colour,
            marker=styles[model].marker,
        )
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("layer (blocks executed)")
    axes.set_ylabel("tokens that no longer change")
