"""Every figure can be printed as drawn; faults are reported."""

from collections.abc import Callable
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from print_rules import print_faults

from exitbench.reports.plotting.panels import MOST_PANELS, grid_of_panels, legend_of_series, title_panel
from exitbench.reports.plotting.style import (
    DOUBLE_INCHES,
    LIGHT,
    SINGLE_INCHES,
    TALLEST_INCHES,
    lay_out,
    series_styles,
    theme,
)


def test_every_figure_of_the_report_can_be_printed_and_no_label_is_cut(drawn_report: Any) -> None:
    names = drawn_report.summary.figures
    assert len(names) > 10
    for name, figure in zip(names, drawn_report.laid_out, strict=True):
        assert print_faults(figure) == [], name
        assert [text.get_text() for text in figure.findobj(Text) if "…" in text.get_text()] == [], name


def faults_of(change: Callable[[Figure, Axes], object]) -> list[str]:
    """Return the faults of a small figure after a change."""
    with theme(LIGHT):
        figure = Figure(figsize=(SINGLE_INCHES, 2))
        axes = figure.subplots()
        axes.plot([0, 1])
        change(figure, axes)
        figure.draw_without_rendering()
        return print_faults(figure)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda figure, axes: figure.set_figwidth(5), "5 in wide"),
        (lambda figure, axes: figure.set_figheight(9.1), "9.10 in tall"),
        (lambda figure, axes: axes.set_title("tiny", fontsize=6.5), "6.5 pt: 'tiny'"),
        (lambda figure, axes: axes.set_title("long " * 20), f"outside: {'long ' * 20!r}"),
        (
            lambda figure, axes: figure.text(0.5, 0.95, "here", va="top") and axes.set_title("here too", loc="center"),
            "",
        ),
        (lambda figure, axes: axes.set_xticks([0.5, 0.51], ["one tick", "next"]), "overlap: 'one tick', 'next'"),
    ],
)
def test_print_faults_are_reported(change: Callable[[Figure, Axes], object], fault: str) -> None:
    assert any(found_fault.startswith(fault) for found_fault in faults_of(change))


def test_touching_point_labels_and_hidden_ticks_are_no_print_faults() -> None:
    assert faults_of(lambda figure, axes: axes.set_xticks([0, 0.5, 1])) == []
    assert faults_of(lambda figure, axes: [axes.text(0.5, 0.5, word) for word in ("one", "other")]) == []
    assert faults_of(lambda figure, axes: axes.set(xticks=[0, 1], xlim=(0.4, 0.6))) == []


ALIKE = [pytest.param(count, marks=pytest.mark.exhaustive) for count in (2, 5)]


@pytest.mark.parametrize("count", [1, *ALIKE, 3, MOST_PANELS, MOST_PANELS + 30])
def test_any_number_of_panels_fits_a_page_with_a_long_legend(count: int) -> None:
    with theme(LIGHT):
        figure, panels = grid_of_panels(count)
        for axes in panels:
            axes.plot([0, 1])
            title_panel(axes, "a task of some length", "n = 1,234 to 5,678 documents")
        legend_of_series(figure, series_styles([f"{number}, a series with a long name" for number in range(12)]))
        lay_out(figure)
        figure.draw_without_rendering()
    assert print_faults(figure) == []
    assert len(panels) == min(count, MOST_PANELS)
    assert figure.get_figwidth() == (SINGLE_INCHES if count == 1 else DOUBLE_INCHES)
    assert figure.get_figheight() <= TALLEST_INCHES
    noted = any("of 54 panels" in text.get_text() for text in figure.texts)
    assert noted == (count > MOST_PANELS), "what is left out is said"
