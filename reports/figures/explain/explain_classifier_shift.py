"""Exit classifier under the published loss, whose labels are one block off, and under the intended losses."""

from collections.abc import Sequence
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from exitbench.reports.figures.explain import FULL_DEPTH, label_quality, pairs_of_panels, split
from exitbench.reports.frame import Frame, Row
from exitbench.reports.labels import join_words, percent
from exitbench.reports.plotting.panels import (
    draw_intervals,
    draw_points,
    exit_layer_axis,
    legend_of_series,
)
from exitbench.reports.plotting.style import MUTED, SeriesStyle, series_styles

TITLE = "Published claim: trained exit classifiers. Their labels were one block off"
CAPTION = (
    "One exit network (two layers, shared by all blocks), trained on the same states with three losses; each line is "
    "a sweep over the same thresholds. The published code teaches a block whether the previous block agrees with the "
    "last block but one; logit-adjusted is the same loss with the correct labels. Higher and further left is better. "
    "Bars are 95 % intervals over documents."
)

LOSSES = {
    "calm": "balanced a block (CALM)",
    "logit-adjusted": "logit-adjusted (as intended)",
    "free-code": "shifted labels: published",
}


def finding(frame: Frame) -> str:
    """Return a sentence on the share of tokens equal to full depth's under each training loss."""
    parts = [
        f"{percent(fmean([row['token_match'] for row in rows]))} with {label}"
        for label, rows in split(frame, "loss", LOSSES).items()
    ]
    return f"Tokens equal to full depth's, mean over thresholds (at different depths): {join_words(parts)}."


def plot(frame: Frame) -> Figure:
    """Draw two panels per task and model: x is the mean exit layer; one line per training loss of the classifier.

    Left, y is the share of tokens equal to full depth's (token_match, 0..1); right, the task's metric (value). Frame:
    one row per task, model, loss and threshold.
    """
    styles = series_styles(LOSSES.values())
    figure, panels = pairs_of_panels(frame)
    for match, quality, rows in panels:
        for label, part in split(rows, "loss", LOSSES).items():
            _line(match, part, styles[label], ("token_match", "token_match_low", "token_match_high"))
            _line(quality, part, styles[label], ("value", "ci_low", "ci_high"))
        quality.axhline(rows.rows[0]["full_value"], color=MUTED, linestyle=":", linewidth=1)
        match.set_ylabel("tokens equal to full depth")
        match.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        label_quality(quality, rows)
        for axes in (match, quality):
            exit_layer_axis(axes, max(rows.values("blocks")))
    legend_of_series(figure, styles, [FULL_DEPTH])
    return figure


def _line(axes: Axes, rows: Sequence[Row], style: SeriesStyle, columns: tuple[str, str, str]) -> None:
    value, low, high = columns
    x = [row["mean_exit_layer"] for row in rows]
    draw_intervals(axes, x, [(row[low], row[high]) for row in rows], style.colour, along="y")
    draw_points(axes, x, [row[value] for row in rows], style, simulated=False, connect=True)
