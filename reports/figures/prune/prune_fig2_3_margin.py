"""Margin of predictions, and task score of a static exit, at each block (PRUNE figures 2 and 3)."""

from matplotlib.figure import Figure

from exitbench.reports.figures.mee import block_axis
from exitbench.reports.figures.prune import STAND_INS, panel_title
from exitbench.reports.frame import Frame
from exitbench.reports.labels import count, percent, row_label
from exitbench.reports.plotting.panels import (
    draw_intervals,
    draw_published,
    grid_of_panels,
    legend_of_series,
    published_entry,
    title_panel,
)
from exitbench.reports.plotting.style import series_styles

TITLE = "Confidence of a block against the score of exiting there"
CAPTION = (
    "Left, the margin: probability of a block's most probable token minus that of the second, mean over the tokens of "
    "full depth's own output. Right, the score: the task's metric when every token exits at that block (static exit, "
    "run at every block; the last is full depth). If the margin is high and the score low, the block is confidently "
    "wrong, and no threshold on the margin can help. Bars are 95 % intervals over documents. Figures 2 and 3 of "
    f"PRUNE, on our models and data. {STAND_INS} Gray crosses: read by eye from figure 2 (t5-large on SQuAD), its "
    "layer i, counted from 0, of 24 drawn at (i + 1) L / 24 of our L."
)

MARGIN, SCORE = "margin", "score"
_SURE_AND_WRONG = 0.1
_FEW_GROUPS = 2  # pairs of model and task that get a row of the page each


def finding(frame: Frame) -> str:
    """Return a sentence on the most overconfident block: its mean margin exceeds its relative task score most."""
    overconfidence = []
    for _, rows in frame.filter(lambda r: r["origin"] == "ours").groups("task", "model", "setting"):
        margins = {row["block"]: row for row in rows.rows if row["quantity"] == MARGIN}
        scores = {row["block"]: row["value"] for row in rows.rows if row["quantity"] == SCORE}
        full = scores.get(rows.rows[0]["blocks"])
        for block in sorted(margins.keys() & scores.keys()) if full else ():
            share = scores[block] / full
            overconfidence.append((margins[block]["value"] - share, margins[block], share))
    worst = max(overconfidence, key=lambda candidate: candidate[0], default=None)
    if worst is None or worst[0] < _SURE_AND_WRONG:
        return "At no block does confidence exceed the score by more than 10 points."
    _, row, share = worst
    return (
        f"Most overconfident: block {row['block']:.0f} of {row_label(row, ('model', 'task'))} has a mean margin of "
        f"{row['value']:.2f}, and exiting there scores {percent(share)} of full depth."
    )


def plot(frame: Frame) -> Figure:
    """Draw two panels per task and model: x is the block.

    Left, y is the mean margin (0..1); right, the score (0..100) if all tokens exit at the block. Frame: one row per
    task, model, quantity (margin or score) and block, with value; origin marks published values.
    """
    styles = series_styles((MARGIN, SCORE))
    groups = list(frame.groups("task", "model", "setting"))
    figure, panels = grid_of_panels(2 * len(groups), columns=2 if len(groups) <= _FEW_GROUPS else 4)
    for (margin, score), (_, rows) in zip(zip(panels[::2], panels[1::2], strict=True), groups, strict=False):
        numbers = {}
        for axes, quantity, unit in ((margin, MARGIN, "tokens"), (score, SCORE, "documents")):
            selected = [row for row in rows.rows if row["quantity"] == quantity]
            local = [row for row in selected if row["origin"] == "ours"]
            style, x = styles[quantity], [row["block"] for row in local]
            draw_intervals(axes, x, [(row["ci_low"], row["ci_high"]) for row in local], style.colour, along="y")
            axes.plot(x, [row["value"] for row in local], color=style.colour, marker=style.marker, clip_on=False)
            read = [row for row in selected if row["origin"] == "published"]
            draw_published(axes, [row["block"] for row in read], [row["value"] for row in read])
            block_axis(axes, rows.rows[0]["blocks"])
            axes.set_xlim(left=min(0.5, min(rows.values("block")) - 0.2))
            numbers[quantity] = count([row["n"] for row in local], unit)
        margin.set(ylim=(-0.02, 1.02), ylabel="mean margin")
        metrics = [row["metric"] for row in rows.rows if row["quantity"] == SCORE and row["origin"] == "ours"]
        score.set(ylim=(-2, 102), ylabel=metrics[0] if metrics else "no static exit was run")
        title_panel(margin, panel_title(rows.rows[0]), numbers[MARGIN])
        title_panel(score, "\n", numbers[SCORE])
    legend_of_series(figure, styles, [published_entry()])
    return figure
