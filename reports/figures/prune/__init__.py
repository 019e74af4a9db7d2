"""Figures of vocabulary pruning and contrastive decoding. This module: shared drawing code.

Figures drawn by `costs` list pairs of method and head line by line: score, FLOPs and speed side by side.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from exitbench.reports.figures.explain import FIRST_GATED, FULL_DEPTH, draw_by_block
from exitbench.reports.frame import Frame, Row
from exitbench.reports.labels import NOT_MEASURABLE, count, row_label, shorten
from exitbench.reports.plotting.panels import (
    draw_intervals,
    draw_lengths,
    draw_published,
    grid_of_panels,
    legend_above,
    legend_of_series,
    published_entry,
    title_panel,
)
from exitbench.reports.plotting.style import MUTED, SMALL_POINTS, SeriesStyle, quiet, series_styles

EMPTY = "No data yet: run `nox -s paper -- prune`."
STAND_INS = (
    "A model trained for its last block replaces the published pre-trained t5-large; one trained for every block "
    "replaces the fine-tuned ones."
)
AT_RELATIVE_DEPTH = (
    "Gray crosses: published (t5-large, 100 samples, a repetition penalty of 1.2), block b of its 24 drawn at b L / "
    "24 of our L, on dotted lines in the colour of the series."
)

_TRAINED = {"last": "last block trained", "weighted": "every block trained", "unknown": "training not known"}
_USUAL = ("float32", "cpu", "batch 1", "threshold 0.9")
_FEW_GROUPS = 6  # pairs of model and task that get a row of the page each
_COLUMNS = 2

Series = Mapping[tuple[str, str], str]
"""Display names by (method, head), in the order drawn."""


def panel_title(row: Row) -> str:
    """Return a panel's title: task, model, how it was trained, and conditions that are not the usual ones."""
    return f"{shorten(row['task'], 18)} · {shorten(row['model'], 24)}\n{trained_as(row)}"


def trained_as(row: Row) -> str:
    """Return how the row's model was trained, and those of the row's conditions that are not the usual ones."""
    unusual = [part for part in row["setting"].split(", ") if part not in _USUAL]
    return ", ".join([_TRAINED[row["loss"]], *unusual])


def split_published(frame: Frame) -> tuple[Frame, Frame]:
    """Split a frame into the rows measured by this project and the rows of published values."""
    return frame.filter(lambda row: row["origin"] == "ours"), frame.filter(lambda row: row["origin"] != "ours")


def rows_by_series(frame: Frame, names: Series) -> dict[str, list[Row]]:
    """Return the rows of each (method, head) by its display name, in the order of `names`, without empty groups."""
    parts = {name: [row for row in frame.rows if (row["method"], row["head"]) == key] for key, name in names.items()}
    return {name: rows for name, rows in parts.items() if rows}


def mean_depths(frame: Frame, names: Series) -> str:
    """Return a sentence with each series' mean exit layer, over the tasks, models and gated blocks common to all."""
    local, _ = split_published(frame)
    depths: dict[str, dict[tuple[Any, ...], float]] = {
        label: {
            (row["task"], row["model"], row["setting"], row["min_exit"]): row["value"]
            for row in rows
            if row["is_depth"]
        }
        for label, rows in rows_by_series(local, names).items()
    }
    common = set.intersection(*(set(by_key) for by_key in depths.values())) if depths else set()
    if not common:
        return "Mean exit layer and score as functions of the first gated block."
    parts = [f"{label} {fmean(by_key[key] for key in common):.1f}" for label, by_key in depths.items()]
    return f"Mean exit layer over the {len(common)} cases in which all were run: {', '.join(parts)}."


def sweep(frame: Frame, names: Series) -> Figure:
    """Draw two panels per task and model: x is the first gated block; one line per (method, head).

    Left, y is the mean exit layer; right, the task's score.

    Args:
        frame: One row per setting and metric: origin, task, model, setting, loss, blocks, method, head, min_exit,
            is_depth, value (blocks, or the metric's unit), ci_low, ci_high, full_value, n.
        names: Display names of the series.
    """
    styles = series_styles(rows_by_series(frame, names).keys())
    groups = list(frame.groups("task", "model", "setting"))
    columns = _COLUMNS * (1 if len(groups) <= _FEW_GROUPS else 2)
    figure, panels = grid_of_panels(2 * len(groups), columns=columns)
    for (depth, score), (_, rows) in zip(zip(panels[::2], panels[1::2], strict=True), groups, strict=False):
        for axes, is_depth in ((depth, True), (score, False)):
            part = Frame(rows.columns, tuple(row for row in rows.rows if row["is_depth"] is is_depth))
            _sweep_panel(axes, part, names, styles)
        first = rows.rows[0]
        title_panel(depth, panel_title(first))
        if columns > _COLUMNS:
            for axes in (depth, score):
                axes.set_xlabel(FIRST_GATED.replace(", ", ",\n").replace(" (", "\n("))
        depth.set_ylabel("mean exit layer")
        depth.axhline(first["blocks"], color=MUTED, linestyle=":", linewidth=1)
        depth.plot([1, first["blocks"]], [1, first["blocks"]], color=MUTED, linewidth=0.6, zorder=1)
        if first["full_value"] is not None:
            score.axhline(first["full_value"], color=MUTED, linestyle=":", linewidth=1)
        score.set_xlim(depth.get_xlim())
        score.set_ylim(bottom=min(0, score.get_ylim()[0]))
    published = [published_entry()] if "published" in frame.values("origin") else []
    legend_of_series(figure, styles, [FULL_DEPTH, *published])
    return figure


def _sweep_panel(axes: Axes, frame: Frame, names: Series, styles: Mapping[str, SeriesStyle]) -> None:
    local, published = split_published(frame)
    draw_by_block(axes, rows_by_series(local, names), styles, ("value", "ci_low", "ci_high"), connect=True)
    for name, rows in rows_by_series(published, names).items():
        x, y = ([row[column] for row in rows] for column in ("min_exit", "value"))
        draw_published(axes, x, y, connect=True, line_colour=styles[name].colour)
    metric = local.rows[0]["metric"]
    if not local.rows[0]["is_depth"]:
        axes.set_ylabel(metric)
        title_panel(axes, "", count(local.values("n"), "documents"))


FLOPS = {
    "model": "whole model",
    "head": "LM head, our count",
    "rule": "LM head, published rule",
}
_FLOOR = "A/A noise floor"
_ROW_INCHES = 0.24
_DECADES = 100  # shown, up to which there is room for a number at 3 in each
_SHIFT = 0.22  # share of a row, between the kinds of FLOPs


@dataclass(frozen=True)
class _ModelLayout:
    """Place of one model on the y axis: y of its heading, its title, and the rows of each (method, head) by their y."""

    heading: float
    title: str
    rows: Mapping[float, Sequence[Row]]


def cheapest_head(frame: Frame, names: Series) -> str:
    """Return a sentence on the (method, head) with the least LM-head FLOPs, by this project's count, and its score."""
    local = [row for row in frame.rows if row["origin"] == "ours" and (row["method"], row["head"]) in names]
    heads = [row for row in local if row["quantity"] == "head"]
    if not heads:
        return "Score of the gates; the work of the LM head was not counted."
    least = min(heads, key=lambda row: float(row["value"]))
    key = ("task", "model", "setting", "method", "head")
    scores = [r for r in local if r["quantity"] == "score" and all(r[name] == least[name] for name in key)]
    score = f"; its {scores[0]['metric']} is {scores[0]['value']:.1f}" if scores else ""
    if scores and scores[0]["full_value"] is not None:
        score += f", full depth's {scores[0]['full_value']:.1f}"
    label = names[least["method"], least["head"]]
    scope = row_label(least, ("model", "task"))
    return f"Least work of the LM head: {label} ({scope}), {least['value']:.2f}× full depth's{score}."


def costs(frame: Frame, names: Series, *, timed: bool) -> Figure:
    """Draw one row of panels per task: x is score, FLOPs and, if `timed`, speed-up; y is model and (method, head).

    Args:
        frame: One row per model, task, (method, head) and quantity, with origin (ours, or the published edition),
            min_exit, blocks, value, ci_low, ci_high, full_value, aa_low, aa_high and n. Quantities are score, speedup
            (also with speedup_per_token and is_other_length) and FLOPs in multiples of full depth's: model, head, rule.
        names: Display names by (method, head).
        timed: Whether to draw a panel of speed-ups.
    """
    columns = 3 if timed else 2
    groups = list(frame.groups("task"))
    figure, panels = grid_of_panels(columns * len(groups), columns=columns)
    styles = series_styles(FLOPS.values())
    most = 1
    for place, ((task,), rows) in enumerate(groups):
        line = panels[columns * place : columns * (place + 1)]
        places = list(_places(rows, names))
        most = max(most, round(max(y for group in places for y in group.rows)))
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


def _places(frame: Frame, names: Series) -> Iterator[_ModelLayout]:
    top = 0.0
    for _, rows in frame.groups("model", "setting"):
        first = rows.rows[0]
        title = (
            f"{shorten(first['model'], 24)}, {trained_as(first)}; gated from block {first['min_exit']} of "
            f"{first['blocks']} (blocks executed)"
        )
        present = [key for key in names if any((row["method"], row["head"]) == key for row in rows.rows)]
        at = {
            top + 1 + i: [row for row in rows.rows if (row["method"], row["head"]) == key]
            for i, key in enumerate(present)
        }
        yield _ModelLayout(top, title, at)
        top += 1.3 + len(present)


def _rows_axis(axes: Axes, places: Sequence[_ModelLayout], names: Series, *, named: bool) -> None:
    at = {y: names[rows[0]["method"], rows[0]["head"]] for place in places for y, rows in place.rows.items()}
    axes.set_yticks(list(at), list(at.values()) if named else [""] * len(at))
    axes.set_ylim(max(at) + 0.6, -0.6)
    axes.grid(visible=False, axis="y")
    if named:
        axes.set_zorder(1)  # headings extend into the next panel, whose row is empty there
        paper = {"facecolor": mpl.rcParams["axes.facecolor"], "edgecolor": "none", "pad": 0.8}
        for place in places:
            heading = axes.text(0.01, place.heading, place.title, transform=axes.get_yaxis_transform(), bbox=paper)
            heading.set(va="center", fontsize=SMALL_POINTS, in_layout=False)


def _local_rows(rows: Sequence[Row], quantity: str) -> list[Row]:
    return [row for row in rows if row["origin"] == "ours" and row["quantity"] == quantity]


def _score(axes: Axes, places: Sequence[_ModelLayout]) -> None:
    colour = mpl.rcParams["text.color"]
    for place in places:
        for y, rows in place.rows.items():
            for row in _local_rows(rows, "score"):
                axes.barh(y, row["value"], 0.62, color=MUTED, alpha=0.35)
                draw_intervals(axes, [y], [(row["ci_low"], row["ci_high"])], colour, along="x")
                if row["full_value"] is not None:
                    axes.vlines(row["full_value"], y - 0.4, y + 0.4, color=MUTED, linestyle=":", linewidth=1)
                axes.set_xlabel(row["metric"])
            _published(axes, rows, "score", y)
    axes.set_xlim(left=0)


def _flops(axes: Axes, places: Sequence[_ModelLayout], styles: Mapping[str, SeriesStyle]) -> None:
    axes.set_xscale("log", nonpositive="clip")  # an interval that begins at 0 is drawn to the edge
    axes.axvline(1, color=MUTED, linestyle=":", linewidth=1)
    for group in places:
        for y, rows in group.rows.items():
            for place, (quantity, name) in enumerate(FLOPS.items()):
                at, style = y + _SHIFT * (place - 1), styles[name]
                for row in _local_rows(rows, quantity):
                    if row["value"] == 0:  # not drawable on a logarithmic axis
                        edge = axes.text(0.01, at, "0", transform=axes.get_yaxis_transform())
                        edge.set(va="center", fontsize=SMALL_POINTS)
                        continue
                    draw_intervals(axes, [at], [(row["ci_low"], row["ci_high"])], style.colour, along="x")
                    axes.plot(row["value"], at, **_marker_style(style, quantity))
            _published(axes, rows, "rule", y + _SHIFT)
    low, high = axes.get_xlim()
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0) if high < _DECADES * low else (1.0,)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}×"))
    axes.set_xlabel("FLOPs of an answer, full depth = 1×")


def _marker_style(style: SeriesStyle, quantity: str) -> dict[str, Any]:
    hollow = mpl.rcParams["axes.facecolor"] if quantity == "rule" else style.colour
    look = {"color": style.colour, "marker": style.marker, "markerfacecolor": hollow}
    return {**look, "markersize": 4.5, "linestyle": "none", "zorder": 3}


def _speed(axes: Axes, places: Sequence[_ModelLayout]) -> None:
    times = [row for place in places for rows in place.rows.values() for row in _local_rows(rows, "speedup")]
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
    for place in places:
        for y, rows in place.rows.items():
            for row in _local_rows(rows, "speedup"):
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
    kinds = [Line2D([], [], label=name, **_marker_style(styles[name], quantity)) for quantity, name in FLOPS.items()]
    floor = [Patch(facecolor=MUTED, alpha=0.25, label=_FLOOR)] if timed else []
    return [*kinds, FULL_DEPTH, published_entry(), *floor]
