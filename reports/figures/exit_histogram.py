"""Where tokens exit, one line of cells a setting: a heat map, because forty overlaid histograms cannot be read."""

from collections.abc import Mapping, Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator, PercentFormatter

from exitbench.reports.frame import Frame
from exitbench.reports.labels import Setting, labels, natural_key, setting, shorten
from exitbench.reports.style import WIDTH_INCHES

ORDER = 30
TITLE = "Where tokens exit"
CAPTION = (
    "Share of generated tokens that exit after each block, in real decodes. One line is one setting of a method; "
    "numbers are per cent, shares below 5 % are left without one. Empty lines were not run on that task."
)
EMPTY = "No data yet: run `nox -s bench`, or any suite with `quality` cells of models with trained weights."

_LINE_INCHES = 0.19
_NUMBERS_ACROSS = 36  # beyond this many cells side by side a cell is too narrow for a number
_LABELLED_SHARE = 0.05


def plot(frame: Frame) -> Figure:
    """Draw models below each other and tasks side by side; frame: share (0..1) by exit_layer (blocks), n of tokens."""
    names = labels(frame.rows)
    tasks = frame.distinct("task")
    models = list(frame.groups("model"))
    settings = [_lines(rows, names) for _, rows in models]
    heights = [_LINE_INCHES * len(lines) + 0.75 for lines in settings]
    figure = Figure(figsize=(WIDTH_INCHES, sum(heights) + 0.5), layout="constrained")
    grid = figure.subplots(len(models), len(tasks), squeeze=False, height_ratios=heights)
    for panels, ((model,), rows), lines in zip(grid, models, settings, strict=True):
        by_task = dict(rows.groups("task"))
        blocks = max(rows.values("blocks"))
        for axes, task in zip(panels, tasks, strict=True):
            shares = _shares(by_task.get((task,)), lines, blocks)
            image = _panel(axes, shares)
            if blocks * len(tasks) <= _NUMBERS_ACROSS:
                _write_numbers(axes, shares)
            axes.set_title(shorten(task, 60 // len(tasks)))
        panels[0].set_yticks(range(len(lines)), [shorten(names[line], 34) for line in lines])
        panels[0].set_ylabel(shorten(model, 40), fontweight="bold")
    bar = figure.colorbar(image, ax=grid, location="bottom", shrink=0.4, aspect=40, pad=0.02)
    bar.set_label("tokens")
    bar.ax.xaxis.set_major_formatter(PercentFormatter(1))
    return figure


def _lines(frame: Frame, names: Mapping[Setting, str]) -> list[Setting]:
    return sorted({setting(row) for row in frame.rows}, key=lambda line: natural_key(names[line]))


def _shares(frame: Frame | None, lines: Sequence[Setting], blocks: int) -> np.ndarray:
    """Return the shares of tokens, [lines, blocks]; zeros where nothing was run."""
    shares = np.zeros((len(lines), blocks))
    for row in frame.rows if frame else ():
        shares[lines.index(setting(row)), row["exit_layer"] - 1] = row["share"]
    return shares


def _panel(axes: Axes, shares: np.ndarray) -> AxesImage:
    lines, blocks = shares.shape
    image = axes.imshow(shares, vmin=0, vmax=1, aspect="auto", extent=(0.5, blocks + 0.5, lines - 0.5, -0.5))
    axes.grid(False)
    axes.set_yticks([])
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=min(blocks, 12), steps=[1, 2, 4, 5, 10]))
    axes.set_xlabel("exit layer (blocks executed)")
    return image


def _write_numbers(axes: Axes, shares: np.ndarray) -> None:
    paper, ink = mpl.rcParams["axes.facecolor"], mpl.rcParams["text.color"]
    for line, layer in zip(*np.nonzero(shares >= _LABELLED_SHARE), strict=True):
        share = shares[line, layer]
        colour = paper if share > 0.55 else ink
        axes.text(layer + 1, line, f"{100 * share:.0f}", ha="center", va="center", fontsize=6.5, color=colour)
