"""What the figures of training share: lines by optimisation step."""

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from exitbench.reports.frame import Frame
from exitbench.reports.plotting.style import SeriesStyle

_MARKERS = 8  # a line: enough to tell it in grey print, too few to hide it


def draw_by_step(axes: Axes, frame: Frame, style: SeriesStyle) -> None:
    """Draw one line; frame: value by step, in the order of steps."""
    axes.plot(
        frame.values("step"),
        frame.values("value"),
        color=style.colour,
        marker=style.marker,
        markersize=4,
        markevery=max(1, len(frame.rows) // _MARKERS),
        linewidth=1,
    )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    axes.set_xlabel("optimisation step")
