"""Distribution of exit layers, one row per setting: a heat map, since forty overlaid histograms are unreadable."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator, PercentFormatter

from exitbench.reports.frame import Frame
from exitbench.reports.labels import Setting, count, setting
from exitbench.reports.plotting.setting_grid import setting_grid
from exitbench.reports.plotting.style import LETTERS, SMALL_POINTS

ORDER = 30
TITLE = "Where tokens exit"
CAPTION = (
    "Share of generated tokens, or of tokens of scored texts, that exit after each block, in real decodes. One row "
    "is one setting of a method. Numbers are percent; shares below 5 % have no number. For an encoder, a whole "
    "document counts as one token, its label. Empty rows and panels were not run on that task. A setting that was "
    "run several times (on other documents, in other batches or number formats) is shown once, from the conditions "
    "shared with most other settings. The heat map shows no intervals. Tokens of one document are similar, so the "
    "number of documents matters, not of tokens: a share of a half has a sampling error of up to about 1/√n, 10 "
    "points at 100 documents, and less if tokens of a document differ."
)
EMPTY = "No data yet: run `nox -s bench`, or any suite with `quality` cells of models with trained weights."

_EARLY, _MOST = 0.25, 0.5
_NUMBERS_ACROSS = 36  # with more cells side by side, a cell is too narrow for a number
_LABELLED_SHARE = 0.05


def finding(frame: Frame) -> str:
    """Return a sentence on the number of settings with most exits in the first quarter of the blocks."""
    settings = [rows for _, rows in frame.groups("model", "task", "method", "params", "kv_policy")]
    exiting = [rows for rows in settings if any(row["exit_layer"] < row["blocks"] for row in rows.rows)]
    early = [
        sum(row["share"] for row in rows.rows if row["exit_layer"] <= row["blocks"] * _EARLY) >= _MOST
        for rows in exiting
    ]
    return (
        f"In {sum(early)} of the {len(exiting)} settings that exit at all (each task counts) at least half of the "
        "tokens exit in the first quarter of the blocks."
    )


def plot(frame: Frame) -> Figure:
    """Draw heat maps of the share of tokens, a row per model and a column per task: x is the exit layer, y the setting.

    If most models ran few of the tasks, there is one row per pair of model and task. Frame: one row per model, task,
    setting and exit_layer, with share (0..1).
    """
    if _is_sparse(frame):
        pairs = ({**row, "model": f"{row['model']} on {row['task']}", "task": ""} for row in frame.rows)
        frame = Frame(frame.columns, tuple(pairs))
    tasks = frame.distinct("task")
    same_depth = len(frame.distinct("blocks")) == 1
    figure, models = setting_grid(frame, tasks, share_x=same_depth)
    for model in models:
        by_task = dict(model.rows.groups("task"))
        blocks = max(model.rows.values("blocks"))
        for axes, task in zip(model.panels, tasks, strict=True):
            if (task,) not in by_task:
                _hide_empty_panel(axes)
                continue
            shares = _shares(by_task[(task,)], model.lines, blocks)
            image = _panel(axes, shares, len(tasks))
            if blocks * len(tasks) <= _NUMBERS_ACROSS:
                _write_numbers(axes, shares)
    for axes in models[-1].panels:
        axes.set_xlabel("exit layer")
    bar = figure.colorbar(
        image, ax=[axes for model in models for axes in model.panels], location="bottom", shrink=0.4, pad=0.01
    )
    bar.set_label(
        f"share of a setting's tokens\n{count(frame.values('n'), 'documents')}; {count(_tokens(frame), 'tokens')}"
    )
    bar.ax.xaxis.set_major_formatter(PercentFormatter(1))
    return figure


def _is_sparse(frame: Frame) -> bool:
    """Return whether most models were not run on most tasks, so that most panels would be empty."""
    pairs = {(row["model"], row["task"]) for row in frame.rows}
    return len(pairs) <= len(frame.distinct("model")) * len(frame.distinct("task")) / 2


def _tokens(frame: Frame) -> list[int]:
    """Return the number of tokens of each setting, over all exit layers."""
    return [sum(rows.values("tokens")) for _, rows in frame.groups("model", "task", "method", "params", "kv_policy")]


def _hide_empty_panel(axes: Axes) -> None:
    """Hide the axes of a panel without data, but keep the labels of settings if the panel is the first of its row."""
    axes.spines[:].set_visible(False)
    axes.grid(False)
    axes.tick_params(axis="x", bottom=False, labelbottom=False)


def _shares(frame: Frame, lines: Sequence[Setting], blocks: int) -> np.ndarray:
    """Return the share of tokens by setting and exit layer, [lines, blocks]; zeros for settings that were not run."""
    shares = np.zeros((len(lines), blocks))
    for row in frame.rows:
        shares[lines.index(setting(row)), row["exit_layer"] - 1] = row["share"]
    return shares


def _panel(axes: Axes, shares: np.ndarray, columns: int) -> AxesImage:
    lines, blocks = shares.shape
    image = axes.imshow(shares, vmin=0, vmax=1, aspect="auto", extent=(0.5, blocks + 0.5, lines - 0.5, -0.5))
    axes.grid(False)
    most_ticks = min(blocks, max(4, 12 // columns))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=most_ticks, steps=[1, 2, 4, 5, 10]))
    return image


def _write_numbers(axes: Axes, shares: np.ndarray) -> None:
    ink, paper = LETTERS
    for line, layer in zip(*np.nonzero(shares >= _LABELLED_SHARE), strict=True):
        share = shares[line, layer]
        colour = paper if share > 0.55 else ink
        axes.text(layer + 1, line, f"{100 * share:.0f}", ha="center", va="center", fontsize=SMALL_POINTS, color=colour)
