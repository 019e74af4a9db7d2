"""Gate score by block, for right and for wrong labels: are gates more confident when the block is right?"""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from exitbench.reports.frame import Frame
from exitbench.reports.labels import between, count
from exitbench.reports.plotting.panels import (
    MOST_PANELS,
    draw_intervals,
    grid_of_panels,
    interval_around,
    legend_above,
    title_panel,
)
from exitbench.reports.plotting.style import COLOURS

ORDER = 42
TITLE = "Encoders: confidence and patience by correctness"
CAPTION = (
    "Mean score of the gate at each block, separately for documents whose label is right and wrong there. The farther "
    "apart, the better a threshold separates them. Scores are on each gate's scale and oriented so that higher is "
    "more confident: probabilities; entropies, transformed so that 1 is certain; for patience, the number of blocks "
    "that agree. n: documents. Of each gate, the run that evaluated it most often is shown. Documents that have "
    "exited are not evaluated again, so later blocks have fewer and harder ones. P: probability that, of two "
    "documents at one block, one labeled right and one wrong, the right one has the higher score (0.5: the gate is "
    "uninformative), over all blocks. Bars are 95 % intervals over documents. If there are too many panels, those "
    "with the most documents are drawn (all: the CSV). Random weights are excluded."
)
EMPTY = "No data yet: run `exitbench run builtin-encoder`, or any suite with `quality` cells of trained encoders."

_COLUMNS = 4  # a row of panels has one method, or two with few models
_RIGHT, _WRONG = COLOURS[0], COLOURS[1]


def finding(frame: Frame) -> str:
    """Return a sentence on how often a right label's score is higher than a wrong label's at the same block."""
    chances = [
        {"method": method, "model": model, "task": task, "chance": chance}
        for (task, model, method), rows in frame.groups("task", "model", "method")
        if (chance := chance_right_is_higher(rows)) is not None
    ]
    if not chances:
        return "At no gated block were some labels right and others wrong."
    span = between(chances, "chance", "{:.2f}".format, ("method", "model", "task"))
    return f"Given a right and a wrong label at one block, the right one has the higher score with probability {span}."


def chance_right_is_higher(frame: Frame) -> float | None:
    """Return the probability that a right label's gate score is higher than a wrong one's at the same block (AUROC).

    None if no block has both right and wrong labels.
    """
    by_block = {row["block"]: (row["wins"], row["pairs"]) for row in frame.rows}
    pairs = sum(pairs for _, pairs in by_block.values())
    return sum(wins for wins, _ in by_block.values()) / pairs if pairs else None


def plot(frame: Frame) -> Figure:
    """Draw one panel per task, model and method: x is the block, y the gate's mean score.

    One line is of documents whose label is right at the block, one of those whose label is wrong. Frame: one row per
    task, model, method, block and is_right, with mean, half_width, wins and pairs.
    """
    several = len(frame.distinct("task")) > 1
    panels = list(frame.groups(*(["task"] if several else []), "method", "model"))
    panels = sorted(
        sorted(panels, key=lambda panel: -max(panel[1].values("n")))[:MOST_PANELS], key=lambda panel: panel[0]
    )
    figure, grid = grid_of_panels(len(panels), _COLUMNS)
    for axes, (key, rows) in zip(grid, panels, strict=True):
        for (is_right,), line in rows.groups("is_right"):
            _line(axes, line, is_right=is_right)
        axes.set_xlim(0.5, max(rows.values("blocks")) - 0.5)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("exit layer, if it left")
        axes.set_ylabel("gate's score")
        chance = chance_right_is_higher(rows)
        note = count(rows.values("n"), "").strip() + ("" if chance is None else f" · P = {chance:.2f}")
        title_panel(axes, "\n".join(key), note, note_below=True)
    legend_above(figure, [_entry("label right", _RIGHT, "o"), _entry("label wrong", _WRONG, "s")])
    return figure


def _line(axes: Axes, frame: Frame, *, is_right: bool) -> None:
    colour, marker = (_RIGHT, "o") if is_right else (_WRONG, "s")
    x, y = frame.values("block"), frame.values("mean")
    draw_intervals(axes, x, list(map(interval_around, y, frame.values("half_width"))), colour, along="y")
    axes.plot(x, y, color=colour, marker=marker, markersize=4, linewidth=0.9, linestyle="-" if is_right else "--")


def _entry(label: str, colour: str, marker: str) -> Line2D:
    return Line2D([], [], color=colour, marker=marker, linestyle="-" if marker == "o" else "--", label=label)
