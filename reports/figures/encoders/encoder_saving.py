"""What an encoder's score costs: score against the share of blocks that its sequences save, a line a method."""

from collections.abc import Iterator, Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from exitbench.reports.figures.encoders.encoder_parts import CONTROLS, EMPTY, LEFT_OUT, panels_of
from exitbench.reports.frame import Frame, Row
from exitbench.reports.labels import count, is_sweep
from exitbench.reports.plotting.panels import draw_intervals, draw_points, grid_of_panels, legend_of_series, title_panel
from exitbench.reports.plotting.style import MUTED, SeriesStyle, series_styles

__all__ = ["CAPTION", "EMPTY", "ORDER", "TITLE", "finding", "plot"]

ORDER = 40
TITLE = "Encoders: score against layers saved"
CAPTION = (
    "The task's metric against the saving: 1 less the mean exit layer over all blocks, which PABEE's code calls "
    "speed-up (DeeBERT's expected saving is what is left of it: the share that is run). Lines join settings of a "
    "method that differ in one parameter, or in the threshold alone. Grey: static depth with full depth at its left "
    "end, where all documents leave after the same block: what a gate must beat. Off-ramps and gates are not part "
    f"of the saving. The oracle knows full depth's answer. Bars are 95 % intervals over documents. {LEFT_OUT}"
)

_CONTROL = "static and full depth"


def finding(frame: Frame) -> str:
    """Return how many gated settings score better than static depth at the same saving."""
    gated = [row for row in frame.rows if row["method"] not in CONTROLS and row["saving"] > 0]
    held = [row for row in gated if row["static_value"] is not None]
    if not held:
        return "No gate was run beside static depths."
    better = sum(_is_better(row, row["value"]) for row in held)
    surely = sum(_is_better(row, row["ci_high" if row["lower_is_better"] else "ci_low"]) for row in held)
    return (
        f"Of {len(held)} settings of gates that save layers (each model and task counts), {better} score better than "
        f"static depth at the same saving, {surely} with their whole interval."
    )


def _is_better(row: Row, value: float | None) -> bool:
    """Whether a value of a row is better than static depth's."""
    if value is None or value == row["static_value"]:
        return False
    is_better: bool = (value < row["static_value"]) == row["lower_is_better"]
    return is_better


def plot(frame: Frame) -> Figure:
    """Draw a panel a task and model; frame: value (points of the metric), saving (0..1), method, line."""
    panels = panels_of(frame, "task", "model")
    figure, grid = grid_of_panels(len(panels))
    methods = {row["method"] for _, rows in panels for row in rows.rows if not _is_control(row)}
    styles = series_styles(methods)
    for axes, (title, rows) in zip(grid, panels, strict=True):
        _control(axes, Frame(rows.columns, tuple(filter(_is_control, rows.rows))))
        _methods(axes, Frame(rows.columns, tuple(row for row in rows.rows if not _is_control(row))), styles)
        axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axes.set_xlim(-0.04, 1)
        axes.set_xlabel("layers saved: 1 - mean exit layer / blocks")
        axes.set_ylabel(rows.rows[0]["metric"])
        title_panel(axes, title, count(rows.values("n"), "documents"))
    entry = Line2D([], [], color=MUTED, marker="s", markersize=3.5, label=_CONTROL)
    legend_of_series(figure, styles, [entry])
    return figure


def _is_control(row: Row) -> bool:
    return bool(row["is_full_depth"]) or row["method"] == "static"


def _control(axes: Axes, frame: Frame) -> None:
    rows = sorted(frame.rows, key=lambda row: row["saving"])
    x, y = [row["saving"] for row in rows], [row["value"] for row in rows]
    draw_intervals(axes, x, [(row["ci_low"], row["ci_high"]) for row in rows], MUTED, along="y")
    axes.plot(x, y, color=MUTED, marker="s", markersize=3.5, linewidth=0.9, zorder=1.8)


def _methods(axes: Axes, frame: Frame, styles: Mapping[str, SeriesStyle]) -> None:
    for (method,), rows in frame.groups("method"):
        style = styles[method]
        intervals = list(zip(rows.values("ci_low"), rows.values("ci_high"), strict=True))
        draw_intervals(axes, rows.values("saving"), intervals, style.colour, along="y")
        for line in _lines(rows):
            x, y = line.values("saving"), line.values("value")
            draw_points(axes, x, y, style, simulated=False, connect=len(x) > 1)


def _lines(frame: Frame) -> Iterator[Frame]:
    """Settings that differ in one parameter, else in the threshold alone."""
    if is_sweep(frame.rows):
        yield frame
    else:
        yield from (rows for _, rows in frame.groups("line"))
