"""What the figures of the Monotonic Early Exiting paper share: one panel a task, one series a model, blocks across."""

from itertools import pairwise

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from exitbench.reports.frame import Frame, Row
from exitbench.reports.labels import count
from exitbench.reports.plotting.panels import (
    Interval,
    draw_intervals,
    draw_published,
    grid_of_panels,
    label_y,
    legend_of_series,
    published_entry,
    title_panel,
)
from exitbench.reports.plotting.style import SMALL_POINTS, quiet, series_styles

EMPTY = "No data yet: run `nox -s paper -- mee`, or any suite with `probe` cells of models with trained weights."

PUBLISHED_MODELS = (
    "Grey: the three curves that the authors printed, of LongT5-base (12 decoder blocks) on BigPatent, as it is "
    "(vanilla), trained on every block (CALM) and as FREE; block b of 12 is drawn at the same share of our depth."
)


_STEEP = 2  # points at the left end of published curves, where a name would stand on them


def block_axis(axes: Axes, blocks: int) -> None:
    """Label x as the block after which the state was read out, from 1 to the last of `blocks`."""
    axes.set_xlim(0.5, blocks + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("layer (blocks executed)")


def halfway(frame: Frame) -> list[Row]:
    """Return our rows of the block in the middle of each model."""
    return [row for row in of_origin(frame, "ours").rows if row["block"] == max(1, row["blocks"] // 2)]


def of_origin(frame: Frame, origin: str) -> Frame:
    """Return the rows of one origin, ``'ours'`` or ``'published'``."""
    return Frame(frame.columns, tuple(row for row in frame.rows if row["origin"] == origin))


def share_by_block(frame: Frame, label: str, dashed: str | None = None) -> Figure:
    """Draw shares of tokens (0..1) that grow with the block, with intervals: a panel a task and a line a model.

    Args:
        frame: origin, task, model, block, blocks, share, half_width and n; of published rows only model, block,
            blocks and share.
        label: Of the shares.
        dashed: Column that tells the lines of a model apart: where it is not 0 they are dashed.
    """
    ours, published = of_origin(frame, "ours"), of_origin(frame, "published")
    styles = series_styles(ours.distinct("model"))
    tasks = list(ours.groups("task"))
    figure, panels = grid_of_panels(len(tasks))
    for axes, ((task,), rows) in zip(panels, tasks, strict=False):
        blocks = max(rows.values("blocks"))
        published_curves(axes, published, "share", blocks, named=True)
        for (model, *apart), line in rows.groups("model", *([dashed] if dashed else [])):
            x, y = line.values("block"), line.values("share")
            drawn = "--" if any(apart) else "-"
            draw_intervals(axes, x, intervals(line, "share"), styles[model].colour, along="y")
            axes.plot(x, y, drawn, color=styles[model].colour, marker=styles[model].marker, clip_on=False)
        axes.set_ylim(0, 1.02)
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        label_y(axes, label)
        block_axis(axes, blocks)
        title_panel(axes, task, count(rows.values("n"), "tokens a model"))
    legend_of_series(figure, styles, [published_entry()] if published.rows else [])
    return figure


def intervals(frame: Frame, column: str, lowest: float = 0.0) -> list[Interval]:
    """Return `column` less and plus half_width, cut at `lowest` and 1; none where half_width is NULL."""
    return [
        (None, None)
        if row["half_width"] is None
        else (max(lowest, row[column] - row["half_width"]), min(1.0, row[column] + row["half_width"]))
        for row in frame.rows
    ]


def published_curves(axes: Axes, frame: Frame, column: str, blocks: int, *, named: bool) -> None:
    """Draw published curves at relative depth of `blocks`, `named` where they are furthest apart."""
    curves = {
        model: [(blocks * row["block"] / row["blocks"], row[column]) for row in rows.rows]
        for (model,), rows in frame.groups("model")
    }
    if not curves:
        return
    heights = list(zip(*([y for _, y in curve] for curve in curves.values()), strict=True))
    across = [x for x, _ in next(iter(curves.values()))]
    # apart from each other, and between blocks, where no point of ours stands
    place = max(
        range(_STEEP, len(across)), key=lambda i: _least_gap(heights[i]) * (0.1 + abs(across[i] - round(across[i])))
    )
    for name, curve in curves.items():
        draw_published(axes, *zip(*curve, strict=True), connect=True)
        if not named:
            continue
        axes.annotate(
            name,
            curve[place],
            xytext=(0, 3),
            textcoords="offset points",
            ha="center",
            fontsize=SMALL_POINTS,
            color=quiet(),
            zorder=5,
            bbox={"facecolor": mpl.rcParams["axes.facecolor"], "edgecolor": "none", "alpha": 0.8, "pad": 0.5},
        )


def _least_gap(values: tuple[float, ...]) -> float:
    ordered = sorted(values)
    return min((high - low for low, high in pairwise(ordered)), default=0.0)
