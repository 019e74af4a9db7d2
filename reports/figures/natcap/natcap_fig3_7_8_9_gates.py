"""Gates against the ideal exit: distance and speed-up (Figures 3, 7, 8 and 9 of the natural-capability paper)."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from exitbench.reports.frame import Frame, Row
from exitbench.reports.labels import count, differing_conditions, row_label, short_name, shorten, times
from exitbench.reports.plotting.panels import (
    FLOOR_NOTE,
    LENGTH_NOTE,
    draw_floors,
    draw_intervals,
    draw_lengths,
    draw_points,
    figure_of,
    floor_entry,
    interval_around,
    label_y,
    legend_of_series,
    length_entry,
    simulated_entry,
    title_panel,
)
from exitbench.reports.plotting.style import (
    DOUBLE_INCHES,
    MUTED,
    SINGLE_INCHES,
    SeriesStyle,
    quiet,
    series_styles,
)

TITLE = "Gates without training: distance to the ideal exit, and speed-up"
CAPTION = (
    "Each gate at its most aggressive setting that keeps 98 % of full depth's score in a real decode; a gate without "
    "such a setting is not shown. The ideal exit is the first block whose most probable token is the last block's. "
    "Above: distance in blocks from it, mean over tokens of a replay over full depth's own output, with the "
    "threshold. Middle: all blocks over the mean exit layer of the replay, a speed-up that counts only blocks. Below: "
    "measured speed-up, wall time of real decodes against full depth in the same run, gray if the interval touches "
    f"the noise floor. {FLOOR_NOTE}. {LENGTH_NOTE} Oracle is the ideal exit itself, timed as if it were known, "
    "whatever its score. Bars are 95 % intervals over documents. Columns: models trained on their last block alone "
    "(without joint optimisation), on every block (with it), or otherwise. After Figures 3, 7, 8 and 9 of Early Exit "
    "Is a Natural Capability, which choose thresholds from a finer grid, on encoders and Llama-2."
)

_COLUMNS = {
    "last block": "without joint optimisation",
    "every block": "with joint optimisation",
    "other": "trained otherwise",
}
_ROW_INCHES = 1.8
_NAMES_INCHES = 0.4
_MOST_UPRIGHT = 6  # names below the panels that fit side by side
_STEP = 0.17  # between gates drawn side by side


def finding(frame: Frame) -> str:
    """Return a sentence on the fastest gate that keeps 98 % of the score and whose speed-up exceeds the noise floor."""
    gates = [row for row in frame.rows if row["speedup"] is not None and row["method"] != "oracle"]
    if not gates:
        return "No gate that keeps 98 % of full depth's score was timed."
    beyond = [row for row in gates if not row["inside_noise_floor"] and row["speedup"] > 1]
    if not beyond:
        return "No gate that keeps 98 % of full depth's score is faster beyond the noise."
    best = max(beyond, key=lambda row: float(row["speedup"]))
    threshold = "" if best["threshold"] is None else f" at {float(best['threshold']):g}"
    fast = times(best["speedup"], best["speedup_low"], best["speedup_high"])
    return (
        f"Fastest gate that keeps 98 % of full depth's score: {short_name(best['method'])}{threshold} "
        f"({row_label(best, ('model', 'task'))}), {fast}."
    )


def plot(frame: Frame) -> Figure:
    """Draw one column of panels per kind of training: x is the task and model; one marker per gate.

    From top to bottom, y is the distance to the ideal exit in blocks, all blocks over the mean exit layer, and the
    measured speed-up. Frame: one row per task, model and method, with distance, simulated_speedup and speedup.
    """
    styles = series_styles(frame.distinct("method"))
    columns = [name for name in _COLUMNS if name in frame.distinct("training")]
    parts = [Frame(frame.columns, tuple(r for r in frame.rows if r["training"] == name)) for name in columns]
    places = [sorted({_place(row) for row in part.rows}) for part in parts]
    replayed = any(row["simulated_speedup"] is not None or row["distance"] is not None for row in frame.rows)
    draws = [_distances, _ideal, _measured] if replayed else [_measured]
    figure = figure_of(_ROW_INCHES * len(draws) + _NAMES_INCHES, DOUBLE_INCHES if len(columns) > 1 else SINGLE_INCHES)
    grid = figure.subplots(
        len(draws),
        len(columns),
        squeeze=False,
        sharey="row",
        sharex="col",
        width_ratios=[max(2, len(p)) for p in places],
    )
    conditions = differing_conditions(frame.distinct("setting"))
    for panels, name, part, ticks in zip(grid.T, columns, parts, places, strict=True):
        shifted = [(row, ticks.index(_place(row)) + _shift(row["method"], styles)) for row in part.rows]
        for draw, axes in zip(draws, panels, strict=True):
            draw(axes, shifted, styles)
        title_panel(panels[0], _COLUMNS[name], count([n for n in part.values("n") if n is not None], "tokens"))
        if set(part.values("method")) == {"oracle"}:
            middle = {"ha": "center", "va": "center", "transform": panels[0].transAxes}
            panels[0].text(
                0.5, 0.5, "no setting of a gate that was run\nkeeps 98 % of the score", color=quiet(), **middle
            )
        names = [
            "\n".join(shorten(part, 18) for part in (task, model, conditions[setting]) if part)
            for task, model, setting in ticks
        ]
        crowded = sum(map(len, places)) > _MOST_UPRIGHT
        turned: dict[str, Any] = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"} if crowded else {}
        panels[-1].set_xticks(range(len(ticks)), names, **turned)
        panels[-1].set_xlim(-0.6, len(ticks) - 0.4)
    legend_of_series(figure, styles, [*([simulated_entry()] if replayed else []), floor_entry(), length_entry()])
    return figure


def _place(row: Row) -> tuple[str, str, str]:
    return row["task"], row["model"], row["setting"]


def _shift(method: str, styles: Mapping[str, SeriesStyle]) -> float:
    return _STEP * (list(styles).index(method) - (len(styles) - 1) / 2)


def _distances(axes: Axes, rows: Sequence[tuple[Row, float]], styles: Mapping[str, SeriesStyle]) -> None:
    for row, x in rows:
        y, half, style = row["distance"], row["distance_half_width"], styles[row["method"]]
        if y is None or row["method"] == "oracle":  # the ideal exit has distance 0 to itself
            continue
        draw_intervals(axes, [x], [interval_around(y, half)], style.colour, along="y")
        draw_points(axes, [x], [y], style, simulated=True, connect=False)
        if row["threshold"] is not None:
            axes.annotate(f"{float(row['threshold']):g}", (x, y), (6, 0), textcoords="offset points", va="center")
    axes.set_ylim(bottom=0)
    label_y(axes, "distance to the\nideal exit (blocks)")


def _ideal(axes: Axes, rows: Sequence[tuple[Row, float]], styles: Mapping[str, SeriesStyle]) -> None:
    for row, x in rows:
        if row["simulated_speedup"] is not None:
            draw_points(axes, [x], [row["simulated_speedup"]], styles[row["method"]], simulated=True, connect=False)
    axes.axhline(1, color=MUTED, linewidth=0.8)
    label_y(axes, "blocks saved: all over\nmean exit layer (×)")


def _measured(axes: Axes, rows: Sequence[tuple[Row, float]], styles: Mapping[str, SeriesStyle]) -> None:
    draw_floors(axes, [x for _, x in rows], [row for row, _ in rows], along="y")
    draw_lengths(axes, [x for _, x in rows], [row for row, _ in rows], along="y")
    for row, x in rows:
        if row["speedup"] is not None:
            style = styles[row["method"]]
            drawn_style = SeriesStyle(MUTED, style.marker) if row["inside_noise_floor"] else style
            draw_intervals(axes, [x], [(row["speedup_low"], row["speedup_high"])], drawn_style.colour, along="y")
            draw_points(axes, [x], [row["speedup"]], drawn_style, simulated=False, connect=False)
    label_y(axes, "measured speed-up (×)")
