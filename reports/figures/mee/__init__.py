"""Figures of Monotonic Early Exiting. This module: shared panels over blocks, one per task, with one line per model."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy.typing import ArrayLike, NDArray

from exitbench.reports.frame import Frame, Row
from exitbench.reports.labels import count
from exitbench.reports.plotting.panels import (
    Interval,
    draw_intervals,
    draw_published,
    grid_of_panels,
    interval_around,
    label_y,
    legend_of_series,
    published_entry,
    title_panel,
)
from exitbench.reports.plotting.style import SMALL_POINTS, quiet, series_styles

EMPTY = "No data yet: run `nox -s paper -- mee`, or any suite with `probe` cells of models with trained weights."

PUBLISHED_MODELS = (
    "Gray: the three published curves, of LongT5-base (12 decoder blocks) on BigPatent: unmodified (vanilla), trained "
    "on every block (CALM), and as FREE; block b of 12 is drawn at the same share of our depth."
)


Curves = Mapping[str, Sequence[tuple[float, float]]]

_LETTER: Final = 0.62  # width of a letter over its height
_LINE: Final = 1.7  # height of a name next to markers, over that of a letter
_AWAY: Final = (0.7, -0.7, 1, -1, 1.5, -1.5, 2, -2)  # distances of a name from its curve, in its heights
_POINTS_AN_INCH: Final = 72
_BETWEEN: Final = 16  # points interpolated between those of a line


def block_axis(axes: Axes, blocks: int) -> None:
    """Label the x axis as the block after which the state was read out, 1..`blocks`."""
    axes.set_xlim(0.5, blocks + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("layer (blocks executed)")


def middle_block_rows(frame: Frame) -> list[Row]:
    """Return the frame's rows at each model's middle block, without published values."""
    return [row for row in filter_origin(frame, "ours").rows if row["block"] == max(1, row["blocks"] // 2)]


def filter_origin(frame: Frame, origin: str) -> Frame:
    """Return the frame's rows of one origin: ``'ours'``, measured by this project, or ``'published'``."""
    return frame.filter(lambda row: row["origin"] == origin)


def share_by_block(frame: Frame, label: str, dashed: str | None = None) -> Figure:
    """Draw shares of tokens (0..1) by block, with intervals: one panel per task and one line per model.

    Args:
        frame: One row per origin, task, model and block, with blocks, share, half_width and n. Published rows have
            only model, block, blocks and share.
        label: Label of the y axis.
        dashed: Column that distinguishes the lines of a model; a line is dashed if it is not 0.
    """
    local, published = filter_origin(frame, "ours"), filter_origin(frame, "published")
    styles = series_styles(local.distinct("model"))
    tasks = list(local.groups("task"))
    figure, panels = grid_of_panels(len(tasks))
    for axes, ((task,), rows) in zip(panels, tasks, strict=False):
        blocks = max(rows.values("blocks"))
        curves = published_curves(axes, published, "share", blocks)
        for (model, *flags), line in rows.groups("model", *([dashed] if dashed else [])):
            x, y = line.values("block"), line.values("share")
            drawn = "--" if any(flags) else "-"
            draw_intervals(axes, x, intervals(line, "share"), styles[model].colour, along="y")
            axes.plot(x, y, drawn, color=styles[model].colour, marker=styles[model].marker, clip_on=False)
        axes.set_ylim(0, 1.02)
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        label_y(axes, label)
        block_axis(axes, blocks)
        name_curves(figure, axes, curves)
        title_panel(axes, task, count(rows.values("n"), "tokens a model"))
    legend_of_series(figure, styles, [published_entry()] if published.rows else [])
    return figure


def intervals(frame: Frame, column: str, lowest: float = 0.0) -> list[Interval]:
    """Return each row's interval: `column` minus and plus half_width, clipped to [`lowest`, 1]."""
    return [interval_around(row[column], row["half_width"], lowest, 1.0) for row in frame.rows]


def published_curves(axes: Axes, frame: Frame, column: str, blocks: int) -> Curves:
    """Draw each published curve, its blocks rescaled to 1..`blocks`; return the curves' points by name."""
    curves = {
        model: [(blocks * row["block"] / row["blocks"], row[column]) for row in rows.rows]
        for (model,), rows in frame.groups("model")
    }
    for curve in curves.values():
        draw_published(axes, *zip(*curve, strict=True), connect=True)
    return curves


def name_curves(figure: Figure, axes: Axes, curves: Curves) -> None:
    """Write the name of each published curve above or below it, where it covers no line.

    Call it when everything is drawn and the axes have their limits.
    """
    to_panel = axes.transData + axes.transAxes.inverted()
    points = [_interpolate(to_panel.transform(line.get_xydata())) for line in axes.lines]
    panel = axes.get_window_extent().transformed(figure.dpi_scale_trans.inverted())
    height = _LINE * SMALL_POINTS / _POINTS_AN_INCH / panel.height
    for name, curve in curves.items():
        width = SMALL_POINTS * (_LETTER * len(name) + 1) / _POINTS_AN_INCH / panel.width
        drawn, samples = np.concatenate(points), _interpolate(to_panel.transform(curve))
        spots = np.concatenate([samples + np.array([0, away * height]) for away in _AWAY])
        inside = (np.abs(spots - 0.5) < (0.5 - width / 2, 0.5 - height / 2)).all(axis=1)
        distance = (np.abs(spots[:, None] - drawn) / (width / 2, height / 2)).max(axis=2).min(axis=1)
        free = np.minimum(distance, 1) + 0.1 * np.minimum(distance, 2)
        spot = spots[(free - 0.1 * np.repeat(np.abs(_AWAY), len(samples)) - ~inside).argmax()]
        style: dict[str, Any] = {"ha": "center", "va": "center", "transform": axes.transAxes, "zorder": 5}
        axes.text(spot[0], spot[1], name, fontsize=SMALL_POINTS, color=quiet(), **style)
        points.append(spot + np.array([(-width / 2, 0), (0, 0), (width / 2, 0)]))


def _interpolate(points: ArrayLike) -> NDArray[np.float64]:
    """Return the points of a line and more points interpolated between them, [n, 2]."""
    vertices = np.asarray(points, dtype=np.float64)
    places = np.linspace(0, len(vertices) - 1, _BETWEEN * len(vertices))
    return np.stack([np.interp(places, range(len(vertices)), vertices[:, axis]) for axis in (0, 1)], axis=1)
