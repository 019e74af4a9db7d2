"""Gate score by block, for right and for wrong labels: are gates more confident when the block is right?"""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from exitbench.reports.frame import Frame
from exitbench.reports.labels import between, count, shorten
from exitbench.reports.plotting.panels import MOST_PANELS, draw_intervals, grid_of_panels, legend_above, title_panel
from exitbench.reports.plotting.style import COLOURS

ORDER = 42
TITLE = "Encoders: confidence and patience by correctness"
CAPTION = (
    "Mean score that a gate gives a document at a block, apart for labels that are right and that are wrong there: "
    "the larger the distance, the better a threshold tells them apart. Scores are the gates' own, higher is surer: "
    "probabilities, and entropies turned round, to 1; patience in blocks that agree. n: documents. Of each gate the "
    "run that asked most is shown; documents that have left are no more asked, so that later blocks have fewer, and "
    "harder ones. P: the chance that of two documents at one block, one labelled right and one wrong, the right one "
    "has the higher score (0.5: the gate knows nothing), over all blocks. Bars are 95 % intervals over documents. "
    "Of many panels those with the most documents are drawn (all: the CSV). Random weights are left out."
)
EMPTY = "No data yet: run `exitbench run builtin-encoder`, or any suite with `quality` cells of trained encoders."

_COLUMNS = 4  # a row of panels has one method, or two with few models
_RIGHT, _WRONG = COLOURS[0], COLOURS[1]


def finding(frame: Frame) -> str:
    """Return a sentence on how often a right label has the higher score."""
    chances = [
        {"method": method, "model": model, "task": task, "chance": chance}
        for (task, model, method), rows in frame.groups("task", "model", "method")
        if (chance := chance_right_is_higher(rows)) is not None
    ]
    if not chances:
        return "No block that a gate asked was right of some documents and wrong of others."
    span = between(chances, "chance", "{:.2f}".format, ("method", "model", "task"))
    return f"Of a right and a wrong label at one block, the right one has the higher score with probability {span}."


def chance_right_is_higher(frame: Frame) -> float | None:
    """Return the AUROC of the gate's score for right labels, within blocks, over all blocks; None without pairs."""
    by_block = {row["block"]: (row["wins"], row["pairs"]) for row in frame.rows}
    pairs = sum(pairs for _, pairs in by_block.values())
    return sum(wins for wins, _ in by_block.values()) / pairs if pairs else None


def plot(frame: Frame) -> Figure:
    """Draw one panel per task, model and method; frame: mean score by block and is_right, half_width, texts."""
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
        title_panel(axes, " · ".join(shorten(part, 30) for part in key), note, note_below=True)
    legend_above(figure, [_entry("label right", _RIGHT, "o"), _entry("label wrong", _WRONG, "s")])
    return figure


def _line(axes: Axes, frame: Frame, *, is_right: bool) -> None:
    colour, marker = (_RIGHT, "o") if is_right else (_WRONG, "s")
    x, y, halves = frame.values("block"), frame.values("mean"), frame.values("half_width")
    ends = [(None, None) if half is None else (mean - half, mean + half) for mean, half in zip(y, halves, strict=True)]
    draw_intervals(axes, x, ends, colour, along="y")
    axes.plot(x, y, color=colour, marker=marker, markersize=4, linewidth=0.9, linestyle="-" if is_right else "--")


def _entry(label: str, colour: str, marker: str) -> Line2D:
    return Line2D([], [], color=colour, marker=marker, linestyle="-" if marker == "o" else "--", label=label)
