"""Thresholds and their targets: calibrated thresholds, which have a guarantee, and fitted ones, which have none."""

from collections.abc import Callable, Mapping

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from exitbench.reports.frame import Frame, Row
from exitbench.reports.labels import count
from exitbench.reports.plotting.panels import draw_intervals, grid_of_panels, legend_of_series, title_panel
from exitbench.reports.plotting.style import MUTED, SeriesStyle, series_styles

ORDER = 28
TITLE = "Calibration: target and achieved"
CAPTION = (
    "Thresholds calibrated to a loss of at most δ against full depth (textual) or the reference (risk), with "
    "confidence 1 - ε. First: mean loss of each tested level, from the most conservative; dashed lines are the target "
    "δ, a ring is the chosen level. Second: p-value of the hypothesis that the loss exceeds δ, by level; calibration "
    "stops when it rises above ε (dashed). Values below 0.0001 are drawn there. Third: loss of the chosen level on "
    "held-out documents, against δ; above the diagonal the target was missed. Fourth: thresholds fitted block by "
    "block so that a share ε of exits on the train split agree with full depth, a target without a guarantee. They "
    "are drawn against agreement in real decodes, where errors also propagate. Markers of equal targets are drawn "
    "side by side. Bars are 95 % intervals over documents."
)
EMPTY = (
    "No calibration yet: run `nox -s bench`, or `exitbench run --kinds calibration` with any suite that has a "
    "[[calibration]]; fitted thresholds come with any method whose `rule` is `epsilon`."
)

_SMALLEST = 1e-4  # smaller p-values are drawn here
_OFFSET = 0.012  # distance between markers of one target, as a share of the axis

_Panel = Callable[[Axes, Frame, Mapping[str, SeriesStyle]], None]


def finding(frame: Frame) -> str:
    """Return a sentence on the number of calibrated thresholds that keep their target on held-out documents."""
    rows = [row for row in frame.rows if row["what"] == "held"]
    if rows:
        n_met = sum(row["value"] <= row["delta"] for row in rows)
        sure = sum(row["high"] is not None and row["high"] <= row["delta"] for row in rows)
        return (
            f"{n_met} of {len(rows)} calibrated thresholds stay within their target loss on held-out documents, "
            f"{sure} with their whole interval."
        )
    fitted = [row for row in frame.rows if row["what"] == "fitted"]
    if fitted:
        n_met = sum(row["value"] >= row["epsilon"] for row in fitted)
        return f"{n_met} of {len(fitted)} fitted thresholds reach their target agreement in real decodes."
    return "Levels that calibration tested; the chosen ones were not run on held-out documents."


def plot(frame: Frame) -> Figure:
    """Draw up to four panels; colours are pairs of model and task.

    In the first two, x is the tested threshold, y the mean loss or its p-value. In the others, x is the target (δ or
    ε), y the loss on held-out documents or the agreement with full depth. Frame: rows of three kinds, named in the
    column what: step (a tested threshold), held (a chosen threshold on held-out documents) and fitted.
    """
    named = Frame((*frame.columns, "series"), tuple({**row, "series": _series(row)} for row in frame.rows))
    styles = series_styles(named.distinct("series"))
    by_kind = {what: rows for (what,), rows in named.groups("what")}
    wanted: list[tuple[str, str, _Panel]] = [
        ("step", "loss by level", _losses),
        ("step", "p-value by level", _p_values),
        ("held", "held out", _draw_held_out),
        ("fitted", "fitted", _fitted),
    ]
    drawn = [(title, by_kind[what], draw) for what, title, draw in wanted if what in by_kind]
    figure, panels = grid_of_panels(len(drawn))
    for axes, (title, rows, draw) in zip(panels, drawn, strict=False):
        draw(axes, rows, styles)
        title_panel(axes, title, count(rows.values("n"), "documents"))
    legend_of_series(figure, styles)
    return figure


def _series(row: Row) -> str:
    return f"{row['model']} · {row['task']}"


def _losses(axes: Axes, frame: Frame, styles: Mapping[str, SeriesStyle]) -> None:
    _draw_walks(axes, frame, styles, lambda row: row["value"])
    for delta in frame.distinct("delta"):
        axes.axhline(delta, color=MUTED, linestyle="--", linewidth=0.9)
    axes.set_ylabel("mean loss (0 to 1)")


def _p_values(axes: Axes, frame: Frame, styles: Mapping[str, SeriesStyle]) -> None:
    tested = frame.filter(lambda row: row["p_value"] is not None)
    _draw_walks(axes, tested, styles, lambda row: max(_SMALLEST, row["p_value"]))
    for epsilon in tested.distinct("epsilon"):
        axes.axhline(epsilon, color=MUTED, linestyle="--", linewidth=0.9)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_ylim(0.7 * _SMALLEST, 1.5)
    axes.set_ylabel("p-value of a loss above δ")


def _draw_walks(axes: Axes, frame: Frame, styles: Mapping[str, SeriesStyle], height: Callable[[Row], float]) -> None:
    """Draw one line per calibration: x is the tested threshold, y is `height(row)`; a ring is around the chosen one."""
    for (series, _), rows in frame.groups("series", "attempt_id"):
        style = styles[series]
        y = [height(row) for row in rows.rows]
        axes.plot(rows.values("threshold"), y, color=style.colour, marker=style.marker, markersize=4, linewidth=0.9)
        chosen = [(row["threshold"], height(row)) for row in rows.rows if row["chosen"]]
        for place in chosen:
            axes.plot(*place, "o", markersize=10, markerfacecolor="none", markeredgecolor=mpl.rcParams["text.color"])
    axes.invert_xaxis()
    axes.set_xlabel("threshold (conservative first)")


def _draw_held_out(axes: Axes, frame: Frame, styles: Mapping[str, SeriesStyle]) -> None:
    _against_target(axes, frame, styles, "delta", 0.0, 2 * max(frame.values("delta")))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
    axes.set_xlabel("target: loss of at most δ")
    axes.set_ylabel("loss on held-out documents")


def _fitted(axes: Axes, frame: Frame, styles: Mapping[str, SeriesStyle]) -> None:
    lowest = min(frame.values("epsilon"))
    _against_target(axes, frame, styles, "epsilon", lowest - 0.3 * (1 - lowest), 1.0)
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.set_xlabel("target: agreement ε of exits")
    axes.set_ylabel("tokens equal to full depth's")


def _against_target(
    axes: Axes, frame: Frame, styles: Mapping[str, SeriesStyle], target: str, low: float, high: float
) -> None:
    """Draw values (y) against their target (x), with equal targets side by side.

    The diagonal from `low` to `high` is where the value equals the target.
    """
    for (at,), rows in frame.groups(target):
        for place, row in enumerate(sorted(rows.rows, key=lambda row: (row["series"], row["method"], row["params"]))):
            x, style = at + _OFFSET * (high - low) * (place - (len(rows.rows) - 1) / 2), styles[row["series"]]
            draw_intervals(axes, [x], [(row["low"], row["high"])], style.colour, along="y")
            axes.plot(x, row["value"], color=style.colour, marker=style.marker, markersize=4.5, zorder=3)
    axes.plot([low, high], [low, high], color=MUTED, linestyle="--", linewidth=0.9)
