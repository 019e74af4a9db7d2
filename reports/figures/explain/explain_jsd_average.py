"""Mean gain of PRUNE's JSD gate over the softmax gate, which includes settings that gain at the cost of quality."""

from collections.abc import Mapping

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from exitbench.reports.figures.explain import FULL_DEPTH, draw_by_block, label_quality, pairs_of_panels
from exitbench.reports.frame import Frame
from exitbench.reports.labels import row_label
from exitbench.reports.plotting.panels import draw_intervals, legend_above
from exitbench.reports.plotting.style import MUTED, SMALL_POINTS, SeriesStyle, series_styles

TITLE = "Published claim: the contrastive gate exits earlier. Means over settings hide what the gain costs"
CAPTION = (
    "Left: blocks that the contrastive gate (JSD) saves compared with the softmax gate, for each first gated block, "
    "and the mean of these savings over three sets of settings. all: every setting. not coll.: those where neither "
    "output has collapsed (below half of full depth's value). kept: of these, those where the contrastive gate keeps "
    "95 % of the softmax gate's value. In parentheses: number of settings. Hollow settings are not in the last set: "
    "their saving costs quality, or there is no quality left. Right: the quality of both. Both emit the plain most "
    "probable token. Bars are 95 % intervals over documents."
)

SOFTMAX, CONTRAST = "softmax gate", "contrastive gate (JSD)"
MEANS = (
    ("all", "all", "settings"),
    ("alive", "not coll.", "settings_alive"),
    ("kept", "kept", "settings_kept"),
)


def finding(frame: Frame) -> str:
    """Return a sentence on one model and task: mean blocks saved in all settings, and in those that keep quality."""
    row = frame.rows[0]
    gain = "none keeps the quality" if row["mean_kept"] is None else f"{row['mean_kept']:.2f} where quality is kept"
    scope = row_label(row, ("model", "task"))
    return f"The contrastive gate saves {row['mean_all']:.2f} blocks over all settings of {scope}, and {gain}."


def plot(frame: Frame) -> Figure:
    """Draw two panels per task and model: x is the first gated block (min_exit).

    Left, y is the number of blocks that the JSD gate saves over the softmax gate (gain); their means over sets of
    settings are at the far right. Right, y is the task's metric with either gate (baseline, contrast). Frame: one row
    per task, model and min_exit.
    """
    styles = series_styles((SOFTMAX, CONTRAST))
    figure, panels = pairs_of_panels(frame)
    for gains, quality, rows in panels:
        _gains(gains, rows, styles[CONTRAST])
        _quality(quality, rows, styles)
        label_quality(quality, rows)
    _legend(figure, styles)
    return figure


def _legend(figure: Figure, styles: Mapping[str, SeriesStyle]) -> None:
    colour, paper = styles[CONTRAST].colour, mpl.rcParams["axes.facecolor"]
    points = [
        Line2D([], [], color=style.colour, marker=style.marker, linestyle="none", label=name)
        for name, style in styles.items()
    ]
    hollow = Line2D([], [], color=colour, marker=styles[CONTRAST].marker, markerfacecolor=paper, linestyle="none")
    hollow.set_label("gain without the quality")
    mean = Line2D([], [], color=colour, linewidth=2, label="mean of settings")
    half = Line2D([], [], color=MUTED, linestyle="--", label="half of full depth: collapsed below")
    legend_above(figure, [*points, FULL_DEPTH, hollow, mean, half])


def _gains(axes: Axes, frame: Frame, style: SeriesStyle) -> None:
    for keeps_quality in (False, True):
        rows = tuple(row for row in frame.rows if row["kept"] is keeps_quality)
        columns = ("gain", "gain_low", "gain_high")
        draw_by_block(axes, {CONTRAST: rows}, {CONTRAST: style}, columns, hollow=() if keeps_quality else (CONTRAST,))
    first, last = min(frame.values("min_exit")), max(frame.values("min_exit"))
    places = [last + 1.6 + 1.7 * i for i in range(len(MEANS))]
    row = frame.rows[0]
    for place, (name, _, _) in zip(places, MEANS, strict=True):
        mean = row[f"mean_{name}"]
        if mean is None:
            continue
        draw_intervals(axes, [place], [(row[f"mean_{name}_low"], row[f"mean_{name}_high"])], style.colour, along="y")
        axes.plot([place - 0.5, place + 0.5], [mean, mean], color=style.colour, linewidth=2)
        axes.annotate(f"{mean:.2f}", (place, mean), (4, 3), textcoords="offset points", fontsize=SMALL_POINTS)
    axes.axhline(0, color=MUTED, linewidth=0.8)
    axes.axvline(last + 0.6, color=MUTED, linewidth=0.8)
    names = [f"{text}\n({row[column]})" for _, text, column in MEANS]
    ticks = list(range(first, last + 1))
    axes.set_xticks([*ticks, *places], [*map(str, ticks), *names])
    axes.set_xlim(first - 0.5, places[-1] + 0.9)
    axes.set_xlabel("first gated block (blocks executed);  right: means")
    axes.set_ylabel("blocks saved")


def _quality(axes: Axes, frame: Frame, styles: Mapping[str, SeriesStyle]) -> None:
    rows = {
        name: [
            {"min_exit": row["min_exit"], "y": row[key], "low": row[f"{key}_low"], "high": row[f"{key}_high"]}
            for row in frame.rows
        ]
        for name, key in ((SOFTMAX, "baseline"), (CONTRAST, "contrast"))
    }
    draw_by_block(axes, rows, styles, ("y", "low", "high"))
    full = frame.rows[0]["full_value"]
    axes.axhline(full, color=MUTED, linestyle=":", linewidth=1)
    axes.axhline(full * 1.5 if frame.rows[0]["lower_is_better"] else full / 2, color=MUTED, linestyle="--", linewidth=1)
    axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))
