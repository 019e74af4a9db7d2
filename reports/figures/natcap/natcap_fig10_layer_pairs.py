"""Similarity of all pairs of a model's blocks (Figure 10 of the natural-capability paper)."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator

from exitbench.reports.figures.natcap import TRAINED
from exitbench.reports.frame import Frame
from exitbench.reports.labels import between, count
from exitbench.reports.plotting.panels import figure_of, title_panel
from exitbench.reports.plotting.style import DOUBLE_INCHES, SMALL_POINTS

TITLE = "Similarity of a model's blocks"
CAPTION = (
    "Above: cosine similarity between the states after two blocks, both after the final norm. Below: Jensen-Shannon "
    "divergence (nats, 0 to ln 2) between the LM head's distributions for them. Means over the tokens of a few "
    "documents, of the first five models by name; in parentheses next to the measure, half the width of the widest 95 "
    f"% interval over documents. {TRAINED} After Figure 10 of Early Exit Is a Natural Capability, which shows one "
    "sentence."
)

_MEASURES = {"cosine": ("cosine", 1.0), "jsd": ("JSD, nats", float(np.log(2)))}
_MOST_ACROSS = 5


def finding(frame: Frame) -> str:
    """Return a sentence on the mean cosine between the states of neighbouring blocks."""
    neighbours = [row for row in frame.rows if row["block_b"] - row["block_a"] == 1]
    if not neighbours:
        return "Pairs of blocks that are not neighbours."
    span = between(neighbours, "cosine", "{:.2f}".format, ("series",))
    return f"States of neighbouring blocks have a mean cosine of {span}."


def plot(frame: Frame) -> Figure:
    """Draw two heat maps per model, whose x and y are blocks: cosine of states above, JSD of distributions below.

    Frame: one row per model (series), block_a and block_b, with cosine and jsd.
    """
    models = list(frame.groups("series"))[:_MOST_ACROSS]
    side = DOUBLE_INCHES / max(3, len(models) + 0.6)
    figure = figure_of(2 * side + 0.8)
    grid = figure.subplots(2, len(models), squeeze=False)
    for panels, (column, (label, high)) in zip(grid, _MEASURES.items(), strict=True):
        low = min(0.0, *frame.values(column)) if column == "cosine" else 0.0
        for axes, ((series,), rows) in zip(panels, models, strict=True):
            image = _panel(axes, rows, column, low, high)
            title_panel(axes, series)
        widest = max((half for half in frame.values(f"{column}_half_width") if half is not None), default=0.0)
        bar = figure.colorbar(image, ax=list(panels), shrink=0.85, aspect=14, pad=0.01)
        bar.set_label(f"{label} (± {widest:.2f})")
        panels[0].set_ylabel("layer (blocks executed)")
    for axes in grid[1]:
        axes.set_xlabel("layer (blocks executed)")
    figure.suptitle(count(frame.values("n"), "tokens a model"), x=0.99, ha="right", fontsize=SMALL_POINTS)
    return figure


def _panel(axes: Axes, frame: Frame, column: str, low: float, high: float) -> AxesImage:
    blocks = max(frame.values("block_a"))
    values = np.full((blocks, blocks), np.nan)
    for row in frame.rows:
        values[row["block_a"] - 1, row["block_b"] - 1] = row[column]
    edges = (0.5, blocks + 0.5, 0.5, blocks + 0.5)
    image = axes.imshow(values, vmin=low, vmax=high, origin="lower", extent=edges)
    axes.grid(False)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True, nbins=5))
    return image
