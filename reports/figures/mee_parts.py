"""What the figures of the Monotonic Early Exiting paper share: one panel a task, one series a model, blocks across."""

from collections.abc import Callable, Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from exitbench.reports.frame import Frame
from exitbench.reports.labels import count, shorten
from exitbench.reports.panels import grid_of_panels, legend_of_series
from exitbench.reports.style import SeriesStyle, series_styles

EMPTY = "No data yet: run `nox -s bench`, or any suite with `probe` cells of models with trained weights."


def block_axis(axes: Axes, blocks: int) -> None:
    """Label x as the block after which the state was read out, from 1 to the last of `blocks`."""
    axes.set_xlim(0.5, blocks + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("layer (blocks executed)")


def panels_by_task(frame: Frame, panel: Callable[[Axes, Frame, Mapping[str, SeriesStyle]], None]) -> Figure:
    """Return a figure with one panel a task, drawn by `panel`, and a legend of models; frame: task, model, n."""
    styles = series_styles(frame.distinct("model"))
    tasks = frame.distinct("task")
    figure, panels = grid_of_panels(len(tasks), columns=2, legend_entries=len(styles))
    for axes, ((task,), rows) in zip(panels, frame.groups("task"), strict=True):
        panel(axes, rows, styles)
        block_axis(axes, max(rows.values("block")))
        axes.set_title(shorten(task, 24))
        axes.set_title(count(rows.values("n"), "tokens a model"), loc="right", fontweight="normal")
    legend_of_series(figure, styles)
    return figure


def share_by_block(frame: Frame, label: str) -> Figure:
    """Draw shares of tokens (0..1) that grow with the block, one line a model; frame: task, model, block, share, n."""

    def panel(axes: Axes, rows: Frame, styles: Mapping[str, SeriesStyle]) -> None:
        for (model,), line in rows.groups("model"):
            style = styles[model]
            x, y = line.values("block"), line.values("share")
            axes.plot(x, y, color=style.colour, marker=style.marker, clip_on=False)
        axes.set_ylim(0, 1.02)
        axes.yaxis.set_major_formatter(PercentFormatter(1))
        axes.set_ylabel(label)

    return panels_by_task(frame, panel)
