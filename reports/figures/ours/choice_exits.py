"""Where tokens of choices leave: whether right and chosen answers leave earlier than the others."""

from collections import Counter
from collections.abc import Mapping, Sequence

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from exitbench.reports.figures.ours.choice_parts import LEFT_OUT, NO_CHOICES, Panel, panels_of, rows_of
from exitbench.reports.frame import Frame
from exitbench.reports.labels import Setting, count, labels, listed, natural_key, percent, setting
from exitbench.reports.plotting.panels import (
    draw_intervals,
    exit_layer_axis,
    figure_of,
    legend_above,
    panel_titles,
    simulated_entry,
    title_panel,
)
from exitbench.reports.plotting.setting_grid import thinned
from exitbench.reports.plotting.style import COLOURS, SMALL_POINTS
from exitbench.terminal import told_apart

ORDER = 34
TITLE = "Where right and chosen answers exit"
CAPTION = (
    "Multiple-choice tasks: the mean exit layer of the tokens of choices, one line a setting, by whether the choice is "
    "right and whether the setting chose it (found it most probable). Filled markers are real (forced decode); hollow "
    "ones are simulated, from one pass at full depth. Bars are 95 % intervals, clustered by document, cut at the first "
    f"and the last block; none where all tokens leave at one block. Of more settings than fit some of each method are "
    f"drawn. {LEFT_OUT}"
)
EMPTY = NO_CHOICES

_LINE_INCHES = 0.26
_AXIS_INCHES = 0.65  # title, ticks and label of a panel
_ROOM_INCHES = 8.2  # of a page, for all panels
_MOST_PANELS = 6
_LABEL_LENGTH = 48
_BELOW_REAL = 0.07  # lines, so that intervals of both are seen
_MARKS = {  # is_right, is_chosen: name, colour, marker, lines below the middle
    (True, True): ("right, chosen", COLOURS[0], "o", -0.27),
    (True, False): ("right, not chosen", COLOURS[5], "D", -0.09),
    (False, True): ("wrong, chosen", COLOURS[1], "s", 0.09),
    (False, False): ("wrong, not chosen", COLOURS[3], "v", 0.27),
}


def finding(frame: Frame) -> str:
    """Return the mean depth at which tokens of right and of wrong choices leave, over all real settings."""
    real = [row for row in frame.rows if row["execution"] == "real"]
    told = []
    for is_right, word in ((True, "right"), (False, "wrong")):
        own = [row for row in real if row["is_right"] is is_right]
        if tokens := sum(row["tokens"] for row in own):
            depth = sum(row["tokens"] * row["mean_exit_layer"] / row["blocks"] for row in own) / tokens
            told.append(f"of {word} choices after {percent(depth)}")
    if not told:
        return "Only simulated settings were run."
    return (
        f"Over all real settings, tokens {listed(told)} of the blocks leave."
        if len(told) == 1
        else (f"Over all real settings, tokens {listed(told)} of the blocks.")
    )


def plot(frame: Frame) -> Figure:
    """Draw tasks and models below each other; frame: mean_exit_layer (blocks) with its interval, by kind of choice."""
    panels = panels_of(frame, _MOST_PANELS)
    shown = rows_of(panels, frame.columns)
    names, titles = labels(shown.rows, brief=True), panel_titles(shown)
    most = int((_ROOM_INCHES / len(panels) - _AXIS_INCHES) / _LINE_INCHES)
    lines = [_lines(panel, names, most) for panel in panels]
    entries = _entries(shown)
    heights = [_LINE_INCHES * len(own) + _AXIS_INCHES for own in lines]
    figure = figure_of(sum(heights))
    grid = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)
    for (axes,), (key, rows), own in zip(grid, panels, lines, strict=True):
        _panel(axes, rows, own)
        axes.set_yticks(range(len(own)), told_apart([names[one] for one in own], _LABEL_LENGTH), fontsize=SMALL_POINTS)
        title_panel(axes, titles[key], count(_tokens(rows), "tokens"))
    legend_above(figure, entries)
    return figure


def _lines(panel: Panel, names: Mapping[Setting, str], most: int) -> list[Setting]:
    return thinned(sorted(set(map(setting, panel[1].rows)), key=lambda one: natural_key(names[one])), most)


def _tokens(frame: Frame) -> list[int]:
    """Tokens of each setting, over all its choices."""
    tokens: Counter[tuple[Setting, str]] = Counter()
    for row in frame.rows:
        tokens[setting(row), row["execution"]] += row["tokens"]
    return list(tokens.values())


def _panel(axes: Axes, frame: Frame, lines: Sequence[Setting]) -> None:
    paper = mpl.rcParams["axes.facecolor"]
    for row in frame.rows:
        if setting(row) not in lines:
            continue
        _, colour, marker, below = _MARKS[row["is_right"], row["is_chosen"]]
        simulated = row["execution"] == "simulated"
        y = lines.index(setting(row)) + below + _BELOW_REAL * simulated
        draw_intervals(axes, [y], [(row["low"], row["high"])], colour, along="x")
        size, face = (6.5, paper) if simulated else (4, colour)
        axes.plot(
            row["mean_exit_layer"], y, marker, color=colour, markerfacecolor=face, markersize=size,
            zorder=2.5 if simulated else 3, clip_on=False,
        )  # fmt: skip
    exit_layer_axis(axes, max(frame.values("blocks")))
    axes.set_ylim(len(lines) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)


def _entries(frame: Frame) -> list[Line2D]:
    marks = [
        Line2D([], [], color=colour, marker=marker, markersize=4, linewidth=0.8, label=name)
        for name, colour, marker, _ in _MARKS.values()
    ]
    return [*marks, simulated_entry()] if "simulated" in frame.values("execution") else marks
