"""Agreement of answers with full depth's, and the first position at which they differ."""

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from exitbench.reports.frame import Frame
from exitbench.reports.labels import count, extremes, label_of, labels, percent, row_label
from exitbench.reports.plotting.panels import legend_of_series
from exitbench.reports.plotting.setting_grid import Measure, draw_measures, setting_grid
from exitbench.reports.plotting.style import series_styles

ORDER = 24
TITLE = "Agreement and first difference from full depth"
CAPTION = (
    "Real decodes against full depth of the same checkpoint on the same documents. Left: agreement, the share of "
    "tokens that are equal at the same position. Middle: share of full depth's answer before the first difference; "
    "all of it if the answers are identical. Right: share of first differences that are near-ties: the logits of full "
    "depth's two most probable tokens are less than 0.1 nats apart, by the probe. Rounding alone might swap them. "
    "Continuing after full depth has ended is not a near-tie. No marker: nothing differs, or nothing was probed. Bars "
    "are 95 % intervals over documents. After the first difference, the two answers no longer have the same context."
)
EMPTY = (
    "No data yet: run `nox -s bench`, or any suite with `quality` cells (and, for near-ties, `probe` cells) of models "
    "with trained weights."
)

_FAITHFUL = 0.99
_MEASURES = (
    Measure("tokens equal", "match", "match_low", "match_high"),
    Measure("before 1st difference", "before", "before_low", "before_high"),
    Measure("near-ties", "near_tie", "near_tie_low", "near_tie_high"),
)


def finding(frame: Frame) -> str:
    """Return a sentence on how many settings reproduce at least 99 % of full depth's tokens.

    It also names the setting that reproduces the smallest share.
    """
    names = labels(frame.rows, brief=True)
    n_faithful = sum(row["match"] >= _FAITHFUL for row in frame.rows)
    worst, _ = extremes(frame.rows, "match")
    return (
        f"{n_faithful} of {len(frame.rows)} settings (each task counts) have at least {percent(_FAITHFUL)} of full "
        f"depth's tokens; the least faithful, {label_of(names, worst)} ({row_label(worst, ('model', 'task'))}), has "
        f"{percent(worst['match'])}."
    )


def plot(frame: Frame) -> Figure:
    """Draw three panels per model: y is the setting, one row each; one marker per task; x is a share (0..1).

    Left, of tokens equal to full depth's (match); middle, of the answer before the first difference (before); right, of
    first differences that are near-ties (near_tie). Frame: one row per task and setting.
    """
    styles = series_styles(frame.distinct("task"))
    figure, models = setting_grid(frame, [measure.heading for measure in _MEASURES])
    for model in models:
        draw_measures(model, _MEASURES, styles)
    words = (
        count(frame.values("n"), "documents"),
        "of full depth's tokens",
        f"of the first differences\n{count(frame.values('divergences'), 'documents')}",
    )
    for axes, text in zip(models[-1].panels, words, strict=True):
        axes.set_xlim(-0.03, 1.03)
        axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axes.set_xlabel(text)
    legend_of_series(figure, styles)
    return figure
