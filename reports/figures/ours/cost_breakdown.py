"""Memory read per token by part of the work: blocks, read-outs, gates, keys and values, and verification."""

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import PercentFormatter

from exitbench.reports.frame import Frame
from exitbench.reports.labels import count, label_of, labels, percent, row_label, setting
from exitbench.reports.plotting.panels import draw_intervals, legend_above
from exitbench.reports.plotting.setting_grid import ModelLines, setting_grid
from exitbench.reports.plotting.style import MUTED, series_styles

ORDER = 14
TITLE = "Where the work goes"
CAPTION = (
    "Memory read by a setting per token, by the cost model, as a share of what full depth reads per token. Parts: "
    "weights and caches of the blocks that tokens ran; rows of the LM head (and of exit heads), at every block where "
    "a gate reads logits; weights of a gate's own network; keys and values of skipped blocks (projected, or computed "
    "later by running the blocks); and drafts rejected by verification. Lines at the ends are 95 % intervals of the "
    "total, over documents. If answers are as long as full depth's, the inverse of the total is the ideal speed-up at "
    "batch size 1. A gate that only computes on logits reads no weights; oracles are counted as if their decision "
    "were free."
)
EMPTY = "Not measured: no `quality` cell of a model with trained weights has its cost by part. Run `nox -s bench`."

_PARTS = {"blocks": "blocks", "heads": "LM heads", "gates": "gates", "kv": "keys and values", "verification": "drafts"}
_HATCHES = ("", "///", "xxx", "...", "\\\\\\")  # distinguishes parts in grey print


def finding(frame: Frame) -> str:
    """Return a sentence on the part of the work, other than the blocks, that reads the most bytes."""
    names = labels(frame.rows, brief=True)
    part, row = max(
        ((part, row) for part in _PARTS if part != "blocks" for row in frame.rows), key=lambda pair: pair[1][pair[0]]
    )
    return (
        f"Apart from blocks, {_PARTS[part]} cost most: {percent(row[part])} of what full depth reads, with "
        f"{label_of(names, row)} ({row_label(row, ('model', 'task'))})."
    )


def plot(frame: Frame) -> Figure:
    """Draw one row of panels per model, one column per task: y is the setting, x the bytes read per token.

    Bars are stacked by part of the work; bytes are shares of full depth's. Frame: one row per task and setting, with a
    column per part (`_PARTS`).
    """
    tasks = frame.distinct("task")
    styles = series_styles(_PARTS)
    parts = [part for part in _PARTS if any(frame.values(part))]
    looks = {part: (styles[part].colour, hatch) for part, hatch in zip(_PARTS, _HATCHES, strict=True)}
    figure, models = setting_grid(frame, tasks)
    for model in models:
        for axes, task in zip(model.panels, tasks, strict=True):
            rows = Frame(frame.columns, tuple(row for row in model.rows.rows if row["task"] == task))
            _bars(axes, model, rows, {part: looks[part] for part in parts})
            axes.axvline(1, color=MUTED, linestyle=":", linewidth=1)
    for axes, task in zip(models[-1].panels, tasks, strict=True):
        axes.set_xlim(left=0)
        axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        numbers = [row["n"] for row in frame.rows if row["task"] == task]
        axes.set_xlabel(f"bytes per token, of full depth's\n{count(numbers, 'documents')}")
    handles = [Patch(facecolor=looks[part][0], hatch=looks[part][1], label=_PARTS[part]) for part in parts]
    full = Line2D([], [], color=MUTED, linestyle=":", label="full depth")
    legend_above(figure, [*handles, full])
    return figure


def _bars(axes: Axes, model: ModelLines, frame: Frame, looks: dict[str, tuple[str, str]]) -> None:
    y = [model.lines.index(setting(row)) for row in frame.rows]
    starts = [0.0] * len(y)
    for part, (colour, hatch) in looks.items():
        widths = [row[part] for row in frame.rows]
        axes.barh(
            y, widths, 0.75, starts, color=colour, hatch=hatch, edgecolor=mpl.rcParams["axes.facecolor"], linewidth=0
        )
        starts = [start + width for start, width in zip(starts, widths, strict=True)]
    draw_intervals(axes, y, frame.intervals("total"), mpl.rcParams["text.color"], along="x")
