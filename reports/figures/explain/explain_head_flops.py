"""LM-head FLOPs saved by pruning, with and without counting the one full read-out that every token needs."""

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from exitbench.reports.figures.explain import draw_by_block
from exitbench.reports.frame import Frame
from exitbench.reports.labels import count
from exitbench.reports.plotting.panels import grid_of_panels, legend_above, panel_titles, title_panel
from exitbench.reports.plotting.style import SMALL_POINTS, series_styles

TITLE = "Published claim: FLOPs saved by pruning. The full head at the start layer was not counted"
CAPTION = (
    "FLOPs of the LM head under the softmax gate, whole vocabulary over pruned (times less). A row of the head costs "
    "the same in both, so FLOPs are counted in rows read. To choose its ids, a pruned head must first read the whole "
    "vocabulary at the first gated block. Hollow: without that read-out, as the published counters do. Filled: with "
    "it. A token that reaches the last block reads the whole vocabulary there again; both counts include it. Both are "
    "of the same runs. Bars are 95 % intervals over documents; the axis is logarithmic."
)

LEFT_OUT, COUNTED = "left out (published)", "counted"
HEADS = {"pruned-fixed": "fixed", "pruned-decaying-idsorted": "decaying by id"}
_TICKS = (1, 3, 10, 30, 100, 300, 1000)


def finding(frame: Frame) -> str:
    """Return a sentence on the largest factor by which pruning cuts the LM head's FLOPs.

    It is given with and without the full read-out that chooses the ids to keep.
    """
    uncounted, counted = (
        max((row[column] for row in frame.rows if row[column] is not None), default=None)
        for column in ("left_out", "counted")
    )
    if uncounted is None or counted is None:
        return "FLOPs of the LM head that pruning saves, counted in full."
    return (
        f"With the full read-out counted, pruning makes the head's FLOPs at most {counted:.1f} times less; with it "
        f"left out, {uncounted:.1f} times."
    )


def plot(frame: Frame) -> Figure:
    """Draw one panel per task, model and pruned head: x is the first gated block (min_exit), y a ratio of FLOPs.

    The ratio is the whole LM head's FLOPs over the pruned head's. Column `counted` includes the one full read-out that
    chooses the vocabulary ids to keep; `left_out` does not. Frame: one row per task, model, head and min_exit.
    """
    styles = series_styles((LEFT_OUT, COUNTED))
    titles = panel_titles(frame)
    groups = list(frame.groups("task", "model", "setting", "head"))
    figure, panels = grid_of_panels(len(groups))
    for axes, ((*key, head), rows) in zip(panels, groups, strict=False):
        _panel(axes, rows)
        title_panel(axes, f"{titles[tuple(key)]} · {HEADS.get(head, head)}")
        axes.set_xlabel(f"{axes.get_xlabel()}\n{count(rows.values('n'), 'documents')}")
    for axes in panels:
        axes.set_ylim(0.85, 1.35 * max(max(row["left_out_high"] or 1, row["counted_high"] or 1) for row in frame.rows))
    paper = mpl.rcParams["axes.facecolor"]
    handles = [
        Line2D(
            [],
            [],
            color=styles[name].colour,
            marker=styles[name].marker,
            markerfacecolor=face,
            linestyle="none",
            label=f"full head at the first gated block: {name}",
        )
        for name, face in ((LEFT_OUT, paper), (COUNTED, styles[COUNTED].colour))
    ]
    legend_above(figure, handles)
    return figure


def _panel(axes: Axes, rows: Frame) -> None:
    styles = series_styles((LEFT_OUT, COUNTED))
    axes.set_yscale("log")
    for name, value in ((LEFT_OUT, "left_out"), (COUNTED, "counted")):
        columns = (value, f"{value}_low", f"{value}_high")
        draw_by_block(axes, {name: rows.rows}, styles, columns, hollow=(LEFT_OUT,))
        for row in rows.rows:
            if row[value] is not None:
                place = (row["min_exit"], row[value])
                axes.annotate(
                    f"{row[value]:.1f}×", place, (5, 0), textcoords="offset points", va="center", fontsize=SMALL_POINTS
                )
    axes.yaxis.set_major_locator(FixedLocator(_TICKS))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}×"))
    axes.set_ylabel("head FLOPs saved (times less)")
    axes.set_xlim(min(rows.values("min_exit")) - 0.3, max(rows.values("min_exit")) + 0.6)
