"""How good each block's own reading of every document is: what an encoder could save at best."""

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from exitbench.reports.figures.encoders.encoder_parts import EMPTY, LEFT_OUT, panels_of
from exitbench.reports.frame import Frame, Row
from exitbench.reports.labels import called, count, listed
from exitbench.reports.plotting.panels import draw_intervals, grid_of_panels, legend_of_series, title_panel
from exitbench.reports.plotting.style import series_styles

__all__ = ["CAPTION", "EMPTY", "ORDER", "TITLE", "finding", "plot"]

ORDER = 41
TITLE = "Encoders: score by block"
CAPTION = (
    "The task's metric of what each block's off-ramp, or the shared head, says of all documents, the last block's "
    "included: of runs with a static depth and at full depth, and where the metric is accuracy also of runs whose gate "
    "asked a block about every document. Blocks that no run read for all documents are missing. Bars are 95 % "
    f"intervals over documents. {LEFT_OUT}"
)

_POINT = 1.0
_NAMED = 6


def finding(frame: Frame) -> str:
    """Return the first block that scores within a point of the last, by task and model."""
    told = []
    for (task, model), rows in frame.groups("task", "model"):
        last = max(rows.rows, key=lambda row: row["block"])
        if last["block"] == last["blocks"] and len(rows.rows) > 1:
            first = min(row["block"] for row in rows.rows if _shortfall(row, last) <= _POINT)
            told.append(f"{first} of {last['blocks']} ({called(model)}, {called(task)})")
    if not told:
        return "Scores of single blocks; the last one was not read beside another."
    return f"The first block read that scores within a point of the last: {listed(told[:_NAMED])}."


def _shortfall(row: Row, last: Row) -> float:
    """How many points a block scores worse than the last one."""
    points: float = last["value"] - row["value"]
    return -points if row["lower_is_better"] else points


def plot(frame: Frame) -> Figure:
    """Draw a panel a task and a line a model; frame: value (points of the metric) by block."""
    panels = panels_of(frame, "task")
    figure, grid = grid_of_panels(len(panels))
    styles = series_styles({row["model"] for _, rows in panels for row in rows.rows})
    for axes, (title, rows) in zip(grid, panels, strict=True):
        for (model,), line in rows.groups("model"):
            style, x = styles[model], line.values("block")
            intervals = list(zip(line.values("ci_low"), line.values("ci_high"), strict=True))
            draw_intervals(axes, x, intervals, style.colour, along="y")
            axes.plot(x, line.values("value"), color=style.colour, marker=style.marker, markersize=4.5, linewidth=0.9)
        axes.set_xlim(0.5, max(rows.values("blocks")) + 0.5)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("exit layer of all documents")
        axes.set_ylabel(rows.rows[0]["metric"])
        title_panel(axes, title, count(rows.values("n"), "documents"))
    legend_of_series(figure, styles)
    return figure
