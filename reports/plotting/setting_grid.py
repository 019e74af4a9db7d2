"""Figures that list the settings of methods line by line: models below each other, one column per task or measure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from exitbench.reports.frame import Frame, Row
from exitbench.reports.labels import Setting, labels, natural_key, setting, shorten
from exitbench.reports.plotting.panels import draw_intervals, figure_of
from exitbench.reports.plotting.style import SeriesStyle
from exitbench.terminal import abbreviate_uniquely, number_of

_LINE_INCHES = 0.14
_MARGINS_INCHES = 0.8  # room for headings and for the axis below
_TICKS_INCHES = 0.3  # room for a model's own axis
_LABEL_LENGTH = 48
_SPREAD = 0.75  # distance between the first and the last marker of one setting, in lines
_FEWEST = 3  # tasks for which that room is divided, so that markers of two tasks are not far apart
_MOST_MODELS = 10  # those with the most settings; fewer if each has an axis of its own
_MOST_AXES = 6
_MOST_LINES = 50  # lines that fit a page: settings of all models, and a line between models


@dataclass(frozen=True)
class ModelLines:
    """Panels of one model, and the settings that they show, one setting per line.

    Attributes:
        rows: The model's rows of the frame, for the settings in `lines`.
        lines: Settings from top to bottom: line i is at y = i. If there are too many, `subsample` keeps
            some per method.
        panels: One panel per column.
    """

    rows: Frame
    lines: list[Setting]
    panels: Sequence[Axes]


@dataclass(frozen=True)
class Measure:
    """Quantity shown in one column of panels: its heading, and the frame's columns of its value and interval ends."""

    heading: str
    value: str
    low: str
    high: str


def setting_grid(frame: Frame, headings: Sequence[str], *, share_x: bool = True) -> tuple[Figure, list[ModelLines]]:
    """Return a figure with the settings of every model listed on the left, and the empty panels to draw in.

    Args:
        frame: Rows with model, method, params and kv_policy.
        headings: Heading of each column of panels.
        share_x: Whether all models share the x axis; else each model has ticks of its own.
    """
    names = labels(frame.rows, brief=True)
    every_model = list(frame.groups("model"))
    by_size = sorted(every_model, key=lambda group: -len(group[1].rows))
    kept = {model for (model,), _ in by_size[: _MOST_MODELS if share_x else _MOST_AXES]}
    models = [group for group in every_model if group[0][0] in kept]
    settings = [sorted(set(map(setting, rows.rows)), key=lambda group: natural_key(names[group])) for _, rows in models]
    axes_inches = 0 if share_x else _TICKS_INCHES * len(models)
    room = _MOST_LINES - len(settings) - ceil(axes_inches / _LINE_INCHES)
    most = _fair_share([len(group) for group in settings], room)
    lines = [subsample(group, most) for group in settings]
    heights = [len(group) + 1.0 for group in lines]
    figure = figure_of(_LINE_INCHES * sum(heights) + _MARGINS_INCHES + axes_inches)
    grid = figure.subplots(
        len(models), len(headings), squeeze=False, height_ratios=heights, sharex="col" if share_x else False
    )
    for heading, axes in zip(headings, grid[0], strict=True):
        axes.set_title(shorten(heading, 64 // len(headings)))
    for panels, ((model,), _), every, kept_lines in zip(grid, models, settings, lines, strict=True):
        for axes in panels:
            axes.set_ylim(len(kept_lines) - 0.5, -0.5)
            axes.set_yticks(range(len(kept_lines)), [""] * len(kept_lines))
            axes.tick_params(axis="y", length=0)
        panels[0].set_yticklabels(abbreviate_uniquely([names[group] for group in kept_lines], _LABEL_LENGTH))
        note = f" ({len(kept_lines)} of {len(every)} settings)" if len(kept_lines) < len(every) else ""
        # above the lines: rotated next to only a few lines, it would not fit
        place: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points", "ha": "right"}
        panels[0].annotate(shorten(model, _LABEL_LENGTH) + note, (0, 1), (-3, 2), fontweight="bold", **place)
    if (more := len(every_model) - len(models)) > 0:
        place = {"xycoords": "axes fraction", "textcoords": "offset points", "ha": "right", "va": "top"}
        grid[-1][0].annotate(f"{number_of(more, 'more model')} in the data", (0, 0), (-3, -12), **place)
    return figure, [
        ModelLines(
            Frame(rows.columns, tuple(row for row in rows.rows if setting(row) in kept_lines)), kept_lines, panels
        )
        for (_, rows), kept_lines, panels in zip(models, lines, grid, strict=True)
    ]


def subsample(lines: Sequence[Setting], most: int) -> list[Setting]:
    """Return at most `most` of the settings, in their order: about equally many per method, evenly spaced."""
    if len(lines) <= most:
        return list(lines)
    by_method: dict[str, list[Setting]] = {}
    for line in lines:
        by_method.setdefault(line[0], []).append(line)
    each = _fair_share([len(group) for group in by_method.values()], most)
    selected = {
        group[round(place * (len(group) - 1) / max(1, min(each, len(group)) - 1))]
        for group in by_method.values()
        for place in range(min(each, len(group)))
    }
    result = [line for line in lines if line in selected]
    return result if len(result) <= most else [result[place * len(result) // most] for place in range(most)]


def _fair_share(sizes: Sequence[int], most: int) -> int:
    """Return the largest n, at least 1, such that n items of each group (or all it has) are at most `most` in total."""
    return max(n for n in range(1, max(1, most) + 1) if n == 1 or sum(min(n, size) for size in sizes) <= most)


def draw_measures(model: ModelLines, measures: Sequence[Measure], styles: Mapping[str, SeriesStyle]) -> None:
    """Draw one marker with its interval per measure (panel), setting (line) and task (style); leave out NULL values."""
    for axes, measure in zip(model.panels, measures, strict=True):
        for task, style in styles.items():
            rows = [row for row in model.rows.rows if row["task"] == task and row[measure.value] is not None]
            if not rows:
                continue  # layout would place an empty line at the figure's corner
            y = [height_of(model, row, list(styles)) for row in rows]
            intervals = [(row[measure.low], row[measure.high]) for row in rows]
            draw_intervals(axes, y, intervals, style.colour, along="x")
            x = [row[measure.value] for row in rows]
            axes.plot(x, y, linestyle="none", color=style.colour, marker=style.marker, markersize=3.2, clip_on=False)


def height_of(model: ModelLines, row: Row, tasks: Sequence[str]) -> float:
    """Return the y of a row's marker: the line of its setting, shifted by task so that the tasks' markers are apart."""
    shift = tasks.index(row["task"]) - (len(tasks) - 1) / 2
    return model.lines.index(setting(row)) + _SPREAD / max(_FEWEST, len(tasks)) * shift
