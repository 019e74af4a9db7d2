"""Checks whether a figure can be printed: it has one of two widths, is no taller than a page, and has legible texts."""

import warnings
from collections.abc import Iterator
from types import ModuleType

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.text import Text

from exitbench.reports.frame import Frame
from exitbench.reports.plotting.style import (
    DOUBLE_INCHES,
    LIGHT,
    SINGLE_INCHES,
    SMALL_POINTS,
    TALLEST_INCHES,
    lay_out,
    theme,
)

_SLACK_PIXELS = 1.5  # boxes of texts are a little larger than their ink


def drawn(module: ModuleType, frame: Frame) -> Figure:
    """Return the figure that a module draws from these rows, after checks: it can be printed, and its finding is a
    sentence.

    Raises:
        Warning: As matplotlib does if parts of the figure do not fit, or its font lacks a letter.
    """
    with theme(LIGHT), warnings.catch_warnings(action="error"):
        figure: Figure = module.plot(frame)
        lay_out(figure)
        figure.draw_without_rendering()
    faults = print_faults(figure)
    assert not faults, faults
    assert module.finding(frame).endswith(".")
    return figure


def print_faults(figure: Figure) -> list[str]:
    """Return the faults of a figure after layout, one phrase each; an empty list if it can be printed.

    Texts next to points within one panel may touch each other; other texts may not.
    """
    width, height = figure.get_size_inches()
    faults = [] if width in (SINGLE_INCHES, DOUBLE_INCHES) else [f"{width:g} in wide"]
    if height > TALLEST_INCHES:
        faults.append(f"{height:.2f} in tall")
    texts = [text for text in _texts(figure) if text.get_visible() and text.get_text().strip()]
    sizes = [(float(text.get_fontsize()), text.get_text()) for text in texts]
    faults += [f"{points:g} pt: {text!r}" for points, text in sizes if points < SMALL_POINTS]
    boxes = np.array([text.get_window_extent().extents for text in texts]).reshape(-1, 4)
    x0, y0, x1, y1 = boxes.T + np.array([[_SLACK_PIXELS]] * 2 + [[-_SLACK_PIXELS]] * 2)
    outside = (x0 < figure.bbox.x0) | (y0 < figure.bbox.y0) | (x1 > figure.bbox.x1) | (y1 > figure.bbox.y1)
    faults += [f"outside: {texts[place].get_text()!r}" for place in np.flatnonzero(outside)]
    touch = (x0[:, None] < x1) & (x0 < x1[:, None]) & (y0[:, None] < y1) & (y0 < y1[:, None])
    for first, other in zip(*np.nonzero(np.triu(touch, 1)), strict=True):
        if not _beside_points(texts[first], texts[other]):
            faults.append(f"overlap: {texts[first].get_text()!r}, {texts[other].get_text()!r}")
    return faults


def _beside_points(first: Text, other: Text) -> bool:
    panel = first.axes
    return panel is not None and panel is other.axes and first in panel.texts and other in panel.texts


def _texts(figure: Figure) -> Iterator[Text]:
    """Yield every drawn text, without tick labels outside the visible range."""
    yield from figure.texts
    for legend in figure.legends:
        yield from legend.get_texts()
    # the title and the labels of the whole figure are among its texts
    for axes in figure.axes:
        yield from axes.texts
        yield from _around(axes)


def _around(axes: Axes) -> Iterator[Text]:
    if (legend := axes.get_legend()) is not None:
        yield from (legend.get_title(), *legend.get_texts())
    if axes.axison:
        yield from (text for text in axes.get_children() if isinstance(text, Text) and text not in axes.texts)
        for axis in (axes.xaxis, axes.yaxis):
            yield axis.label
            yield from _ticks(axis)


def _ticks(axis: Axis) -> Iterator[Text]:
    low, high = sorted(axis.get_view_interval())
    for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
        if low <= tick.get_loc() <= high:
            yield from (tick.label1, tick.label2)
