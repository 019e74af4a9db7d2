"""What the figures of work under pruned heads share: a row a read-out; score, FLOPs and speed side by side."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from exitbench.reports.figures.explain.explain_parts import FULL_DEPTH
from exitbench.reports.figures.prune.prune_parts import Series, trained_as
from exitbench.reports.frame import Frame, Row
from exitbench.reports.labels import NOT_MEASURABLE, count, shorten
from exitbench.reports.plotting.panels import (
    draw_intervals,
    draw_lengths,
    draw_published,
    grid_of_panels,
    legend_above,
    published_entry,
    title_panel,
)
from exitbench.reports.plotting.style import MUTED, SMALL_POINTS, SeriesStyle, quiet, series_styles
from exitbench.reports.sentences import of_which

FLOPS = {
    "model": "whole model",
    "head": "LM head, as we count",
    "rule": "LM head, published rule",
}
_FLOOR = "A/A noise floor"
_ROW_INCHES = 0.24
_DECADES = 100  # shown, up to which there is room for a number at 3 in each
_SHIFT = 0.22  # of a row, between the kinds of FLOPs


@dataclass(frozen=True)
class _Place:
    """Where the rows of one model begin, and what is drawn at each."""

    heading: float
    title: str
    rows: Mapping[float, Sequence[Row]]


def cheapest_head(frame: Frame, names: Series) -> str:
    """Return a sentence on the read-out whose LM head works least, as we count, and on its score."""
    ours = [row for row in frame.rows if row["origin"] == "ours" and (row["method"], row["head"]) in names]
    heads = [row for row in ours if row["quantity"] == "head"]
    if not heads:
        return "Score of the gates; the work of the LM head was not counted."
    least = min(heads, key=lambda row: float(row["value"]))
    key = ("task", "model", "setting", "method", "head")
    scores = [r for r in ours if r["quantity"] == "score" and all(r[one] == least[one] for one in key)]
    score = f"; its {scores[0]['metric']} is {scores[0]['value']:.1f}" if scores else ""
    if scores and scores[0]["full_value"] is not None:
        score += f", full depth's {scores[0]['full_value']:.1f}"
    label = names[least["method"], least["head"]]
    where = of_which(least, ("model", "task"))
    return f"Least work of the LM head: {label} ({where}), {least['value']:.2f}× full depth's{score}."


def costs(frame: Frame, names: Series, *, timed: bool) -> Figure:
    """Draw a line of panels a task: score, FLOPs and, if `timed`, speed-up; a row a model and read-out.

    Args:
        frame: One row a model, task, read-out and quantity (score; speedup; model, head, rule: FLOPs in multiples of
            full depth's): origin (ours, or the edition published), method, head, min_exit, blocks, value, ci_low,
            ci_high, full_value, aa_low, aa_high, n, and of a speed-up speedup_per_token and is_other_length.
        names: The read-outs.
        timed: Whether the speed-up has a panel.
    """
    columns = 3 if timed else 2
    groups = list(frame.groups("task"))
    figure, panels = grid_of_panels(columns * len(groups), columns=columns)
    styles = series_styles(FLOPS.values())
    most = 1
    for place, ((task,), rows) in enumerate(groups):
        line = panels[columns * place : columns * (place + 1)]
        places = list(_places(rows, names))
        most = max(most, round(max(at for one in places for at in one.rows)))
        _score(line[0], places)
        _flops(line[1], places, styles)
        if timed:
            _speed(line[2], places)
        scored = [row["n"] for row in rows.rows if row["origin"] == "ours" and row["quantity"] == "score"]
        title_panel(line[0], task, count(scored, "documents"))
        for axes in line:
            _rows_axis(axes, places, names, named=axes is line[0])
    figure.set_figheight(max(figure.get_figheight(), len(groups) * (1.0 + _ROW_INCHES * most)))
    legend_above(figure, _legend(styles, timed=timed))
    return figure


def _places(frame: Frame, names: Series) -> Iterator[_Place]:
    top = 0.0
    for _, rows in frame.groups("model", "setting"):
        first = rows.rows[0]
        title = (
            f"{shorten(first['model'], 24)}, {trained_as(first)}; asked from block {first['min_exit']} of "
            f"{first['blocks']} (blocks executed)"
        )
        present = [key for key in names if any((row["method"], row["head"]) == key for row in rows.rows)]
        at = {
            top + 1 + i: [row for row in rows.rows if (row["method"], row["head"]) == key]
            for i, key in enumerate(present)
        }
        yield _Place(top, title, at)
        top += 1.3 + len(present)


def _rows_axis(axes: Axes, places: Sequence[_Place], names: Series, *, named: bool) -> None:
    at = {y: names[rows[0]["method"], rows[0]["head"]] for one in places for y, rows in one.rows.items()}
    axes.set_yticks(list(at), list(at.values()) if named else [""] * len(at))
    axes.set_ylim(max(at) + 0.6, -0.6)
    axes.grid(visible=False, axis="y")
    if named:
        axes.set_zorder(1)  # headings run on into the next panel, whose row is empty there
        paper = {"facecolor": mpl.rcParams["axes.facecolor"], "edgecolor": "none", "pad": 0.8}
        for one in places:
            heading = axes.text(0.01, one.heading, one.title, transform=axes.get_yaxis_transform(), bbox=paper)
            heading.set(va="center", fontsize=SMALL_POINTS, in_layout=False)


def _ours(rows: Sequence[Row], quantity: str) -> list[Row]:
    return [row for row in rows if row["origin"] == "ours" and row["quantity"] == quantity]


def _score(axes: Axes, places: Sequence[_Place]) -> None:
    colour = mpl.rcParams["text.color"]
    for one in places:
        for y, rows in one.rows.items():
            for row in _ours(rows, "score"):
                axes.barh(y, row["value"], 0.62, color=MUTED, alpha=0.35)
                draw_intervals(axes, [y], [(row["ci_low"], row["ci_high"])], colour, along="x")
                if row["full_value"] is not None:
                    axes.vlines(row["full_value"], y - 0.4, y + 0.4, color=MUTED, linestyle=":", linewidth=1)
                axes.set_xlabel(row["metric"])
            _published(axes, rows, "score", y)
    axes.set_xlim(left=0)


def _flops(axes: Axes, places: Sequence[_Place], styles: Mapping[str, SeriesStyle]) -> None:
    axes.set_xscale("log", nonpositive="clip")  # an interval that begins at 0 goes to the edge
    axes.axvline(1, color=MUTED, linestyle=":", linewidth=1)
    for one in places:
        for y, rows in one.rows.items():
            for place, (quantity, name) in enumerate(FLOPS.items()):
                at, style = y + _SHIFT * (place - 1), styles[name]
                for row in _ours(rows, quantity):
                    if row["value"] == 0:  # no place on a logarithmic axis
                        edge = axes.text(0.01, at, "0", transform=axes.get_yaxis_transform())
                        edge.set(va="center", fontsize=SMALL_POINTS)
                        continue
                    draw_intervals(axes, [at], [(row["ci_low"], row["ci_high"])], style.colour, along="x")
                    axes.plot(row["value"], at, **_look(style, quantity))
            _published(axes, rows, "rule", y + _SHIFT)
    low, high = axes.get_xlim()
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0) if high < _DECADES * low else (1.0,)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}×"))
    axes.set_xlabel("FLOPs of an answer, full depth = 1×")


def _look(style: SeriesStyle, quantity: str) -> dict[str, Any]:
    hollow = mpl.rcParams["axes.facecolor"] if quantity == "rule" else style.colour
    look = {"color": style.colour, "marker": style.marker, "markerfacecolor": hollow}
    return {**look, "markersize": 4.5, "linestyle": "none", "zorder": 3}


def _speed(axes: Axes, places: Sequence[_Place]) -> None:
    times = [row for one in places for rows in one.rows.values() for row in _ours(rows, "speedup")]
    if not times:
        axes.text(
            0.5,
            0.5,
            f"not timed, or {NOT_MEASURABLE}",
            ha="center",
            va="center",
            color=quiet(),
            transform=axes.transAxes,
        )
        axes.set_xticks([])
        return
    axes.axvline(1, color=MUTED, linestyle=":", linewidth=1)
    colour = mpl.rcParams["text.color"]
    for one in places:
        for y, rows in one.rows.items():
            for row in _ours(rows, "speedup"):
                if row["aa_low"] is not None:
                    axes.barh(y, row["aa_high"] - row["aa_low"], 0.62, left=row["aa_low"], color=MUTED, alpha=0.25)
                draw_intervals(axes, [y], [(row["ci_low"], row["ci_high"])], colour, along="x")
                axes.plot(row["value"], y, color=colour, marker="o", markersize=4.5, zorder=3)
                draw_lengths(axes, [y], [{**row, "speedup": row["value"]}], along="x")
    title_panel(axes, "", count([row["n"] for row in times], "timed"))
    axes.set_xlabel("measured speed-up")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}×"))


def _published(axes: Axes, rows: Sequence[Row], quantity: str, y: float) -> None:
    printed = [row for row in rows if row["origin"] != "ours" and row["quantity"] == quantity]
    if printed:
        draw_published(axes, [row["value"] for row in printed], [y] * len(printed))


def _legend(styles: Mapping[str, SeriesStyle], *, timed: bool) -> list[Line2D | Patch]:
    kinds = [Line2D([], [], label=name, **_look(styles[name], quantity)) for quantity, name in FLOPS.items()]
    floor = [Patch(facecolor=MUTED, alpha=0.25, label=_FLOOR)] if timed else []
    return [*kinds, FULL_DEPTH, published_entry(), *floor]
