"""Depth at which words are settled, by kind of word: do tokens need different numbers of blocks?"""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import product
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from exitbench.reports.frame import Frame, Row
from exitbench.reports.labels import natural_key, percent, short_name, shorten
from exitbench.reports.plotting.panels import draw_intervals, figure_of, interval_around, legend_above, title_panel
from exitbench.reports.plotting.style import COLOURS, MUTED
from exitbench.terminal import abbreviate_uniquely

ORDER = 18
TITLE = "Where words are settled, by kind"
CAPTION = (
    "Do tokens need different depths? Full-depth passes over each model's own answers to generated data, whose words "
    "have a kind: the information that determines them (defined in the view `exit_by_kind`; a token has the kind of "
    "the reference's word at its position). Circles: first match, the mean of the first block whose most probable "
    "token is full depth's final one. Small diamonds: stable from, the mean of the first block from which it stays "
    "so. Gray columns: share of a kind's tokens by their first match; a column as high as its row is 100 %. Thin "
    "lines are 95 % intervals, clustered by document, cut at the first and the last block. In parentheses: number of "
    "tokens, fewest and most of a model. Kinds are ordered by their mean first match over the models, numbered ones "
    "together. An empty panel was not probed."
)
EMPTY = "No data yet: run `nox -s bench`, or any suite with `probe` cells of trained models on the built-in data."

_ACROSS = 5  # models side by side
_MOST_BANDS = 3
_LINE_INCHES = 0.2
_AXIS_INCHES = 0.3  # margin of a panel, and of a group of panels
_MARGIN_INCHES = 0.4
_FULL_COLUMN = 0.84  # share of a line and of a block that a full column takes
_SHADE = 0.35
_MARKS = (  # name, colour, marker, its size, lines below the middle
    ("first_match", COLOURS[0], "o", 4.0, -0.14),
    ("stable_from", COLOURS[1], "D", 2.4, 0.19),
)


def finding(frame: Frame) -> str:
    """Return a sentence on the kinds of words settled first and last, for the task on which these differ most."""
    depths: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for row in frame.rows:
        depths[row["task"], row["token_kind"]][row["model"]] = row["mean_first_match"] / row["blocks"]
    means = {key: fmean(by_model.values()) for key, by_model in depths.items()}
    spread = {task: [mean for (name, _), mean in means.items() if name == task] for task in frame.distinct("task")}
    task = max(spread, key=lambda name: max(spread[name]) - min(spread[name]))
    kinds = sorted((mean, kind) for (name, kind), mean in means.items() if name == task)
    (early, first), (late, last) = kinds[0], kinds[-1]
    if first == last:
        return f"On {short_name(task)} all words are of one kind."
    return (
        f"On {short_name(task)} words of kind {short_name(last)} are settled last, after {percent(late)} of the blocks "
        f"(mean over models), those of kind {short_name(first)} first, after {percent(early)}."
    )


def plot(frame: Frame) -> Figure:
    """Draw one row of panels per task, one column per model: x is the block, y the kind of word.

    Markers are mean first match and mean stable-from block, bars the share of a kind's tokens by first match. Frame:
    one row per task, model, token_kind and block.
    """
    blocks = {row["model"]: row["blocks"] for row in frame.rows}
    models = sorted(blocks)[: _MOST_BANDS * _ACROSS]
    bands = [models[first : first + _ACROSS] for first in range(0, len(models), _ACROSS)]
    tasks = [(task, rows, kinds_in_order(rows.rows)) for (task,), rows in frame.groups("task")]
    lines = [len(kinds) for _, _, kinds in tasks] * len(bands)
    height = _LINE_INCHES * sum(lines) + _AXIS_INCHES * (len(lines) + len(bands)) + _MARGIN_INCHES
    figure = figure_of(height)
    grid = figure.subplots(len(lines), len(bands[0]), squeeze=False, height_ratios=lines)
    titles = dict(zip(models, abbreviate_uniquely(models, 16), strict=True))
    for panels, (band, (task, rows, kinds)) in zip(grid, product(bands, tasks), strict=True):
        by_model = dict(rows.groups("model"))
        for axes, model in zip(panels, band, strict=False):
            _panel(axes, by_model.get((model,)), kinds, blocks[model])
            if task == tasks[0][0]:
                title_panel(axes, titles[model])
            axes.tick_params(labelbottom=task == tasks[-1][0])
        panels[0].set_yticklabels([f"{shorten(kind, 20)} ({_tokens(rows, kind)})" for kind in kinds])
        panels[0].set_ylabel(shorten(task, max(12, 2 * len(kinds))), fontweight="bold")
        for spare in panels[len(band) :]:
            spare.remove()
    figure.align_ylabels()
    figure.supxlabel("layer (blocks executed)")
    legend_above(figure, _entries())
    return figure


def kinds_in_order(rows: Iterable[Row]) -> list[str]:
    """Return the kinds of words of a task, sorted by mean first match over models; numbered kinds stay together."""
    depths: dict[str, dict[tuple[str, str], float]] = defaultdict(dict)
    for row in rows:
        kind = row["token_kind"]
        depths[_family(kind)][row["model"], kind] = row["mean_first_match"] / row["blocks"]
    families = sorted(depths, key=lambda family: (fmean(depths[family].values()), family))
    return [kind for family in families for kind in sorted({kind for _, kind in depths[family]}, key=natural_key)]


def _family(kind: str) -> str:
    return re.sub(r"\d+$", "", kind)


def _tokens(frame: Frame, kind: str) -> str:
    """Return the number of tokens of a kind as text: one number, or the lowest and highest over models."""
    counts = sorted({row["n"] for row in frame.rows if row["token_kind"] == kind})
    return "–".join(f"{tokens:,}" for tokens in (counts[0], counts[-1])[: len(counts)])


def _panel(axes: Axes, frame: Frame | None, kinds: Sequence[str], blocks: int) -> None:
    """Draw the panel of one model on one task, with one line per kind of word; None leaves it empty."""
    for (kind,), rows in frame.groups("token_kind") if frame else ():
        y, row = kinds.index(kind), rows.rows[0]
        heights = [-_FULL_COLUMN * share for share in rows.values("share")]  # y grows downwards
        axes.bar(
            rows.values("block"), heights, _FULL_COLUMN, y + _FULL_COLUMN / 2, color=MUTED, alpha=_SHADE, linewidth=0
        )
        for name, colour, marker, size, lines in _MARKS:
            mean, half = row[f"mean_{name}"], row[f"{name}_half"]
            draw_intervals(axes, [y + lines], [interval_around(mean, half, 1, blocks)], colour, along="x")
            axes.plot(mean, y + lines, marker, color=colour, markersize=size)
    axes.set_xlim(0.4, blocks + 0.6)
    axes.set_xticks(sorted({1, (blocks + 1) // 2, blocks}))
    axes.set_ylim(len(kinds) - 0.5, -0.5)
    axes.set_yticks(range(len(kinds)), [""] * len(kinds))
    axes.tick_params(axis="y", length=0)


def _entries() -> list[Line2D | Patch]:
    marks = [
        Line2D([], [], color=colour, marker=marker, markersize=size, linewidth=0.8, label=name.replace("_", " "))
        for name, colour, marker, size, _ in _MARKS
    ]
    return [*marks, Patch(color=MUTED, alpha=_SHADE, linewidth=0, label="tokens by first match")]
