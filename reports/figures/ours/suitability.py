"""How early full depth's tokens are settled: measures of a model's suitability on a task, from a probe."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from exitbench.reports.frame import Frame
from exitbench.reports.labels import count, percent
from exitbench.reports.plotting.panels import draw_intervals, figure_of, interval_around
from exitbench.reports.plotting.style import COLOURS
from exitbench.terminal import abbreviate_uniquely

ORDER = 18
TITLE = "Is a model suited to early exit?"
CAPTION = (
    "From a probe, which reads every block of a full-depth run with the model's own LM head: no method is involved. "
    "First match: mean block at which full depth's token is first the most probable, as a share of all blocks. "
    "Stable: mean block from which it stays so. Agreement at L/2: share of full depth's tokens that the block at half "
    "the depth predicts; area: the same share, mean over all blocks. Lost again: share of tokens whose most probable "
    "token changes after the first match. The most suited pair is on top, by area. Bars are 95 % intervals over "
    "documents."
)
EMPTY = "No data yet: run `nox -s bench`, or any suite with `probe` cells of models with trained weights."

_MEASURES = {
    "first match": "first_match",
    "stable": "stable_from",
    "agreement at L/2": "agreement_mid",
    "area": "agreement_area",
    "lost again": "share_lost",
}
_MOST_LINES = 50
_LINE_INCHES, _MARGINS_INCHES = 0.16, 0.9
_LABEL_LENGTH = 40


def finding(frame: Frame) -> str:
    """Return a sentence on the pairs of model and task that are most and least suited to early exit."""
    best, worst = frame.rows[0], frame.rows[-1]
    sentence = (
        f"On {best['task']}, {best['model']} at half its depth predicts {percent(best['agreement_mid'])} of full "
        "depth's tokens"
    )
    if best is worst:
        return f"{sentence}."
    return f"{sentence}; on {worst['task']}, {worst['model']} predicts {percent(worst['agreement_mid'])}."


def plot(frame: Frame) -> Figure:
    """Draw one panel per measure of suitability: x is its value (0..1), y the pair of model and task.

    Frame: one row per model and task, as in the view `suitability`, sorted by agreement_area.
    """
    lines = Frame(frame.columns, frame.rows[:_MOST_LINES])
    figure = figure_of(_LINE_INCHES * len(lines.rows) + _MARGINS_INCHES)
    panels: list[Axes] = list(figure.subplots(1, len(_MEASURES), sharey=True, squeeze=False)[0])
    heights = [float(line) for line in range(len(lines.rows))]
    for axes, (heading, name) in zip(panels, _MEASURES.items(), strict=True):
        values = lines.values(name)
        intervals = list(map(interval_around, values, lines.values(f"{name}_half")))
        draw_intervals(axes, heights, intervals, COLOURS[0], along="x")
        axes.plot(values, heights, linestyle="none", color=COLOURS[0], marker="o", markersize=3.2)
        axes.set_title(heading.replace(" at ", "\nat "))
        axes.set_xlim(-0.03, 1.03)
        axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    several = len(lines.distinct("setting")) > 1
    names = [f"{row['model']} · {row['task']}" + (f" · {row['setting']}" if several else "") for row in lines.rows]
    panels[0].set_yticks(heights, abbreviate_uniquely(names, _LABEL_LENGTH))
    panels[0].set_ylim(len(heights) - 0.5, -0.5)
    panels[len(panels) // 2].set_xlabel(count(lines.values("documents"), "documents"))
    return figure
