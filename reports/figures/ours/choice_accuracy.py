"""What depth and speed cost multiple-choice tasks in accuracy, beside full depth and guessing."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from exitbench.reports.figures.ours.choice_parts import LEFT_OUT, NO_CHOICES, join, lines_of, panels_of, rows_of
from exitbench.reports.frame import Frame, Row
from exitbench.reports.labels import NOT_MEASURABLE, TOO_WIDE, count, label_of, labels, of_which
from exitbench.reports.plotting.panels import (
    FLOOR_NOTE,
    MOST_PANELS,
    draw_floors,
    draw_intervals,
    draw_points,
    exit_layer_axis,
    floor_entry,
    grid_of_panels,
    legend_of_series,
    panel_titles,
    simulated_entry,
    title_panel,
)
from exitbench.reports.plotting.style import MUTED, SeriesStyle, quiet, series_styles

ORDER = 32
TITLE = "Accuracy of choices against depth, work and speed-up"
CAPTION = (
    "Multiple-choice tasks: the share of documents whose most probable choice (by the sum of its tokens' "
    "log-probabilities, each read where the token left) is right. Left: against the mean exit layer of the tokens of "
    "all choices. Middle: against what the work of a document, its context included, allows at batch 1: numbers that "
    "full depth reads over those that the setting reads. Full and static depths read weights once for all tokens of a "
    "document's choices, gates once for every token, so that exits lose on long choices. Right: the settings that were "
    "timed, against the measured speed-up of whole requests. Lines join "
    "settings of a method that differ in one parameter, or in the threshold alone. Dotted: full depth, its 95 % "
    "interval at the last block. Thin: a choice drawn at random. Filled markers are real (forced decode), hollow ones "
    "simulated. Bars are 95 % intervals: left of the accuracy, over documents, right of the speed-up. "
    f"{FLOOR_NOTE}; points whose interval touches theirs are grey: no speed-up was shown. {LEFT_OUT}"
)
EMPTY = NO_CHOICES

_POINT = 0.01


def finding(frame: Frame) -> str:
    """Return the shallowest real setting that keeps full depth's accuracy within a point."""
    names, kept, panels = labels(frame.rows, brief=True), [], panels_of(frame)
    for _, rows in panels:
        full = [row["accuracy"] for row in rows.rows if row["is_full_depth"]]
        real = [row for row in rows.rows if row["execution"] == "real" and not row["is_full_depth"]]
        kept += [row for row in real if full and row["accuracy"] >= full[0] - _POINT]
    if not kept:
        return "No real setting that was run keeps full depth's accuracy within a point."
    best = min(kept, key=lambda row: row["mean_exit_layer"] / row["blocks"])
    where = of_which(best, ("model", "task"))
    return (
        f"Shallowest within a point of full depth's accuracy: {label_of(names, best)} ({where}), "
        f"which leaves after {best['mean_exit_layer']:.1f} of {best['blocks']} blocks."
    )


def plot(frame: Frame) -> Figure:
    """Draw three panels a task and model; frame: accuracy (0..1), mean_exit_layer (blocks), ratios, chance."""
    panels = panels_of(frame, MOST_PANELS // 3)
    shown = rows_of(panels, frame.columns)
    # Full depth is a line; where nothing else was run there is no series.
    styles = series_styles(row["method"] for row in shown.rows if not row["is_full_depth"])
    titles, extra = panel_titles(shown), _entries(shown)
    figure, grid = grid_of_panels(3 * len(panels), columns=3)
    for (depth, work, speed), (key, rows) in zip(
        zip(grid[::3], grid[1::3], grid[2::3], strict=True), panels, strict=True
    ):
        methods = Frame(rows.columns, tuple(row for row in rows.rows if not row["is_full_depth"]))
        _depth_panel(depth, rows, methods, styles)
        _work_panel(work, methods, styles)
        _speed_panel(speed, methods, styles)
        for axes in (depth, work, speed):
            _references(axes, rows)
        work.set_ylim(depth.get_ylim())
        speed.set_ylim(depth.get_ylim())
        title_panel(depth, titles[key], count(rows.values("n"), "documents"))
    legend_of_series(figure, styles, extra)
    return figure


def _depth_panel(axes: Axes, frame: Frame, methods: Frame, styles: Mapping[str, SeriesStyle]) -> None:
    for row in frame.rows:
        colour = MUTED if row["is_full_depth"] else styles[row["method"]].colour
        interval = (row["accuracy_low"], row["accuracy_high"])
        draw_intervals(axes, [row["mean_exit_layer"]], [interval], colour, along="y")
    _series(axes, methods, "mean_exit_layer", styles)
    exit_layer_axis(axes, max(frame.values("blocks")))
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.set_ylabel("accuracy")


def _work_panel(axes: Axes, methods: Frame, styles: Mapping[str, SeriesStyle]) -> None:
    known = Frame(methods.columns, tuple(row for row in methods.rows if row["ideal_speedup_bytes"] is not None))
    if not known.rows:
        return _say(axes, "no work is counted\n(encoder-decoders, replays)")
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    _series(axes, known, "ideal_speedup_bytes", styles)
    axes.set_xlabel("ideal speed-up, by numbers read")
    _ratio_axis(axes, known.values("ideal_speedup_bytes"))


def _speed_panel(axes: Axes, methods: Frame, styles: Mapping[str, SeriesStyle]) -> None:
    timed = Frame(methods.columns, tuple(row for row in methods.rows if row["speedup"] is not None))
    if not timed.rows:
        too_wide = "not measurable" in methods.values("speed_status")
        why = f"{NOT_MEASURABLE}:\n{TOO_WIDE}" if too_wide else "not timed yet: run a suite\nwith `timing` cells"
        return _say(axes, why)
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    draw_floors(axes, timed.values("accuracy"), timed.rows, along="x")
    for row in timed.rows:
        interval = (row["speedup_low"], row["speedup_high"])
        draw_intervals(axes, [row["accuracy"]], [interval], _style(row, styles).colour, along="x")
    _series(axes, timed, "speedup", styles)
    title_panel(axes, "", count(timed.values("timed_documents"), "timed"))
    axes.set_xlabel("measured speed-up")
    # One interval of a disturbed measurement would make one point of all others.
    _ratio_axis(axes, timed.values("speedup"))


def _ratio_axis(axes: Axes, shown: Sequence[float]) -> None:
    axes.set_xlim(0.9 * min(1, *shown), 1.15 * max(1, *shown))


def _say(axes: Axes, text: str) -> None:
    axes.axis("off")
    axes.text(0.5, 0.5, text, ha="center", va="center", color=quiet(), transform=axes.transAxes)


def _series(axes: Axes, frame: Frame, x: str, styles: Mapping[str, SeriesStyle]) -> None:
    for (method, execution), rows in frame.groups("method", "execution"):
        simulated = execution == "simulated"
        for line in lines_of(rows):
            join(axes, line.values(x), line.values("accuracy"), styles[method], simulated=simulated)
        for row in rows.rows:
            style = _style(row, styles) if x == "speedup" else styles[method]
            draw_points(axes, [row[x]], [row["accuracy"]], style, simulated=simulated, connect=False)


def _style(row: Row, styles: Mapping[str, SeriesStyle]) -> SeriesStyle:
    """How a timed setting is drawn: grey where it may be as fast as full depth."""
    style = styles[row["method"]]
    return SeriesStyle(MUTED, style.marker) if row["inside_noise_floor"] else style


def _references(axes: Axes, frame: Frame) -> None:
    for row in frame.rows:
        if row["is_full_depth"]:
            axes.axhline(row["accuracy"], color=MUTED, linestyle=":", linewidth=1.2)
    for chance in frame.distinct("chance"):
        axes.axhline(chance, color=MUTED, linewidth=0.5)


def _entries(frame: Frame) -> list[Line2D]:
    entries = [
        Line2D([], [], color=MUTED, linestyle=":", label="full depth"),
        Line2D([], [], color=MUTED, linewidth=0.5, label="choice drawn at random"),
    ]
    if any(row["speedup"] is not None and not row["is_full_depth"] for row in frame.rows):
        entries.append(floor_entry())
    return [*entries, simulated_entry()] if "simulated" in frame.values("execution") else entries
