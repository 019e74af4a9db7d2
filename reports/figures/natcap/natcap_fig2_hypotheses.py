"""Candidates of one token at each block (Figure 2c of the natural-capability paper)."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from exitbench.reports.figures.natcap import written_token
from exitbench.reports.frame import Frame
from exitbench.reports.labels import shorten
from exitbench.reports.plotting.panels import MOST_PANELS, figure_of, title_panel
from exitbench.reports.plotting.style import LETTERS, SMALL_POINTS

TITLE = "Candidates for one token at each block"
CAPTION = (
    "The three most probable tokens after each block, with their probabilities; the final token in bold. One token "
    "per model: of the tokens whose final token becomes the most probable at the latest block, the one with the "
    "highest probability at the last block. So it is a late token, not a typical one. Models give different answers, "
    "so the token differs between models. Tokens are spelled as in the tokenizer (▁: a preceding space), or by id if "
    "the database has no spelling. After Figure 2 (c) of Early Exit Is a Natural Capability, which shows one example "
    "of another model; (a) and (b) there are drawings."
)

_COLUMNS = 2
_LINE_INCHES = 0.18
_FEWEST_LINES = 8  # leaves room for the axis label
_RANKS = ("most likely", "second", "third")


def finding(frame: Frame) -> str:
    """Return a sentence on the block at which full depth's token becomes the most likely, for the tokens shown."""
    layers = frame.distinct("first_match")
    last = "" if len(layers) == 1 else f" to {layers[-1]}"
    return f"Examples: late tokens, whose final word becomes the most likely at block {layers[0]}{last} only."


def plot(frame: Frame) -> Figure:
    """Draw one table per model as a heat map: rows are blocks, columns ranks 1 to 3, cells a token and its probability.

    Frame: one row per model, block and rank, with text, token_id, probability and is_final.
    """
    models = list(frame.groups("model"))[:MOST_PANELS]
    columns = min(_COLUMNS, len(models))
    lines = [models[i : i + columns] for i in range(0, len(models), columns)]
    most = [max(max(rows.values("block")) for _, rows in line) for line in lines]
    heights = [_LINE_INCHES * max(_FEWEST_LINES, blocks) + 0.75 for blocks in most]
    figure = figure_of(sum(heights))
    grid = figure.subplots(len(lines), columns, squeeze=False, height_ratios=heights)
    panels = list(grid.flat)
    for axes, ((model,), rows) in zip(panels, models, strict=False):
        _panel(axes, rows)
        row = rows.rows[0]
        place = f"{shorten(row['task'], 16)}, {shorten(row['doc_key'], 18)}, token {row['position']}"
        title_panel(axes, model, place, note_below=True)
    for spare in panels[len(models) :]:
        spare.remove()
    return figure


def _panel(axes: Axes, frame: Frame) -> None:
    blocks = max(frame.values("block"))
    shares = np.zeros((blocks, len(_RANKS)))
    for row in frame.rows:
        shares[row["block"] - 1, row["rank"] - 1] = row["probability"]
    axes.imshow(shares, vmin=0, vmax=1, aspect="auto", extent=(0.5, len(_RANKS) + 0.5, blocks + 0.5, 0.5))
    for row in frame.rows:
        p = row["probability"]
        axes.text(
            row["rank"],
            row["block"],
            f"{written_token(row['text'], row['token_id'], 11)} {p:.2f}",
            ha="center",
            va="center",
            fontsize=SMALL_POINTS,
            fontweight="bold" if row["is_final"] else "normal",
            color=LETTERS[p > 0.55],
        )
    axes.grid(False)
    axes.set_xticks(range(1, len(_RANKS) + 1), _RANKS)
    axes.tick_params(length=0)
    axes.set_yticks(range(1, blocks + 1))
    axes.set_ylabel("layer (blocks executed)")
