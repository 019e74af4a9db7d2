"""Margin of predictions and score of a static exit by block (PRUNE figures 2 and 3)."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from exitbench.reports.figures.mee.mee_parts import block_axis
from exitbench.reports.figures.prune.prune_parts import EMPTY, STAND_INS, panel_title
from exitbench.reports.frame import Frame
from exitbench.reports.labels import count
from exitbench.reports.plotting.panels import (
    draw_intervals,
    draw_published,
    grid_of_panels,
    legend_of_series,
    published_entry,
    title_panel,
)
from exitbench.reports.plotting.style import series_styles

__all__ = ["CAPTION", "EMPTY", "TITLE", "plot"]

TITLE = "Confidence of a block against the score of leaving there"
CAPTION = (
    "Margin: probability of a block's most likely token less that of the second, mean over the tokens of full depth's "
    "own output. Score: the task's metric when every token leaves at that block (static exit, run at every block; the "
    "last is full depth). Where the margin is high and the score low the block is confident nonsense, and no "
    "threshold on the margin can help. Bars are 95 % intervals over documents. Figures 2 and 3 of PRUNE, on our "
    f"models and data. {STAND_INS} Grey crosses: read by eye from figure 2 (t5-large on SQuAD), its layer i, counted "
    "from 0, of 24 drawn at (i + 1) L / 24 of our L."
)

MARGIN, SCORE = "margin", "score"
_NAMES = {MARGIN: "mean margin (left)", SCORE: "score, static exit (right)"}


def plot(frame: Frame) -> Figure:
    """Draw a panel a model and task; frame: margin (0..1) and score (0..100) by block, n (tokens, documents)."""
    styles = series_styles(_NAMES.values())
    groups = list(frame.groups("task", "model", "setting"))
    figure, panels = grid_of_panels(len(groups))
    for axes, (_, rows) in zip(panels, groups, strict=False):
        twin = axes.twinx()
        for quantity, on in ((MARGIN, axes), (SCORE, twin)):
            own = [row for row in rows.rows if row["quantity"] == quantity and row["origin"] == "ours"]
            style = styles[_NAMES[quantity]]
            x = [row["block"] for row in own]
            draw_intervals(on, x, [(row["ci_low"], row["ci_high"]) for row in own], style.colour, along="y")
            on.plot(x, [row["value"] for row in own], color=style.colour, marker=style.marker, clip_on=False)
            read = [row for row in rows.rows if row["quantity"] == quantity and row["origin"] == "published"]
            x, y = ([row[column] for row in read] for column in ("block", "value"))
            draw_published(on, x, y, connect=True, line_colour=style.colour)
        _axes(axes, twin, rows)
    legend_of_series(figure, styles, [published_entry()])
    return figure


def _axes(axes: Axes, twin: Axes, rows: Frame) -> None:
    block_axis(axes, rows.rows[0]["blocks"])
    axes.set_xlim(left=min(0.5, min(rows.values("block")) - 0.2))
    axes.set_ylim(-0.02, 1.02)
    twin.set_ylim(-2, 102)  # the same place on both axes
    twin.grid(False)
    axes.set_ylabel("mean margin")
    scores = [row for row in rows.rows if row["quantity"] == SCORE and row["origin"] == "ours"]
    margins = [row for row in rows.rows if row["quantity"] == MARGIN and row["origin"] == "ours"]
    twin.set_ylabel(scores[0]["metric"] if scores else "no static exit was run")
    title_panel(axes, panel_title(rows.rows[0]))
    numbers = count([row["n"] for row in margins], "tokens")
    if scores:
        numbers += f", {count([row['n'] for row in scores], 'documents').removeprefix('n = ')}"
    axes.set_xlabel(f"{axes.get_xlabel()}\n{numbers}")
