"""Ideal exit by position in the answer and by answer length (Figure 5 of the natural-capability paper)."""

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from exitbench.reports.figures.natcap import TRAINED, draw_means
from exitbench.reports.frame import Frame
from exitbench.reports.labels import count, row_label
from exitbench.reports.plotting.panels import grid_of_panels, label_y, legend_of_series, title_panel
from exitbench.reports.plotting.style import series_styles

TITLE = "Ideal exit by position in the answer and by answer length"
CAPTION = (
    "Mean ideal exit (the first block whose most probable token is the last block's) of tokens, left by their "
    "position in the answer, right by the length of their answer. Bins are a twelfth of the longest answer wide; "
    "those with fewer than five tokens are excluded. Bars are 95 % intervals over documents. n counts tokens of all "
    f"models. Positions and lengths are not independent: late positions exist in long answers only. {TRAINED} After "
    "Figure 5 of Early Exit Is a Natural Capability."
)

_FEW_CLASSES = 6
_ACROSS = {"position": "position in the answer (tokens)", "length": "length of the answer (tokens)"}


def finding(frame: Frame) -> str:
    """Return a sentence on the model and task whose mean ideal exit changes most between start and end of answers."""
    changes = []
    for (measure, *_), rows in frame.groups("measure", "task", "series"):
        ordered = sorted(rows.rows, key=lambda row: row["x"])
        if measure == "position" and len(ordered) > 1:
            changes.append((ordered[-1]["ideal_exit"] - ordered[0]["ideal_exit"], ordered[0], ordered[-1]))
    if not changes:
        return "Mean ideal exit by the length of the answer."
    _, first, last = max(changes, key=lambda change: abs(change[0]))
    return (
        f"Along answers the mean ideal exit changes most for {row_label(first, ('model', 'task'))}: from "
        f"{first['ideal_exit']:.1f} to {last['ideal_exit']:.1f} blocks."
    )


def plot(frame: Frame) -> Figure:
    """Draw two panels per task: y is the mean ideal exit in blocks; one line per model.

    Left, x is the position in the answer; right, the length of the answer, both in tokens. Frame: one row per task,
    measure (position or length), model (series) and x, with ideal_exit.
    """
    styles = series_styles(frame.distinct("series"))
    tasks = frame.distinct("task")
    figure, panels = grid_of_panels(2 * len(tasks), columns=2)
    for place, task in enumerate(tasks):
        for axes, (measure, label) in zip(panels[2 * place : 2 * place + 2], _ACROSS.items(), strict=True):
            selected = (row for row in frame.rows if (row["task"], row["measure"]) == (task, measure))
            rows = Frame(frame.columns, tuple(selected))
            title_panel(axes, task, count([sum(rows.values("n"))], "tokens") if rows.rows else "")
            axes.set_xlabel(label)
            label_y(axes, "ideal exit layer")
            if rows.rows:
                draw_means(axes, rows, styles, "x", "ideal_exit")
            axes.set_ylim(0.8, max(frame.values("blocks")) + 0.2)
            classes = rows.distinct("x")
            if len(classes) <= _FEW_CLASSES:  # ticks between classes would have no meaning
                axes.set_xticks(classes, [f"{x:g}" for x in classes])
            else:
                axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    legend_of_series(figure, styles)
    return figure
