"""What the figures of the blog on vocabulary pruning and contrastive decoding share."""

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from exitbench.reports.figures.explain.explain_parts import FIRST_ASKED, FULL_DEPTH, draw_by_block
from exitbench.reports.frame import Frame, Row
from exitbench.reports.labels import count, shorten
from exitbench.reports.plotting.panels import (
    draw_published,
    grid_of_panels,
    legend_of_series,
    published_entry,
    title_panel,
)
from exitbench.reports.plotting.style import MUTED, SeriesStyle, series_styles

EMPTY = "No data yet: run `nox -s paper -- prune`."
STAND_INS = (
    "A model trained for its last block stands in for the published pre-trained t5-large, one trained for every block "
    "for the fine-tuned ones."
)
AT_RELATIVE_DEPTH = (
    "Grey crosses: published (t5-large, 100 samples, a repetition penalty of 1.2), block b of its 24 drawn at b L / "
    "24 of our L, on dotted lines in the colour of the series."
)

_TRAINED = {"last": "last block trained", "weighted": "every block trained", "unknown": "training not known"}
_USUAL = ("float32", "cpu", "batch 1", "threshold 0.9")
_FEW_GROUPS = 6  # models on tasks with a line of the page each
_COLUMNS = 2

Series = Mapping[tuple[str, str], str]
"""Names for readers by (method, head), in the order drawn."""


def panel_title(row: Row) -> str:
    """Return task, model and how it was trained; the setting is told where it is not the published one."""
    return f"{shorten(row['task'], 18)} · {shorten(row['model'], 24)}\n{trained_as(row)}"


def trained_as(row: Row) -> str:
    """Return how a model was trained, and what of its setting is not the usual."""
    unusual = [part for part in row["setting"].split(", ") if part not in _USUAL]
    return ", ".join([_TRAINED[row["loss"]], *unusual])


def split_published(frame: Frame) -> tuple[Frame, Frame]:
    """Return our rows and the published ones."""
    ours, published = (
        Frame(frame.columns, tuple(row for row in frame.rows if (row["origin"] == "ours") is own))
        for own in (True, False)
    )
    return ours, published


def series_of(frame: Frame, names: Series) -> dict[str, list[Row]]:
    """Return the rows of each (method, head) that occurs under its name, in the order of `names`."""
    parts = {name: [row for row in frame.rows if (row["method"], row["head"]) == key] for key, name in names.items()}
    return {name: rows for name, rows in parts.items() if rows}


def mean_depths(frame: Frame, names: Series) -> str:
    """Return a sentence with each series' mean exit layer over the models, tasks and blocks that all series have."""
    ours, _ = split_published(frame)
    depths: dict[str, dict[tuple[Any, ...], float]] = {
        label: {
            (row["task"], row["model"], row["setting"], row["min_exit"]): row["value"]
            for row in rows
            if row["is_depth"]
        }
        for label, rows in series_of(ours, names).items()
    }
    common = set.intersection(*(set(of) for of in depths.values())) if depths else set()
    if not common:
        return "Mean exit layer and score by the first block that is asked."
    told = [f"{label} {fmean(of[key] for key in common):.1f}" for label, of in depths.items()]
    return f"Mean exit layer over the {len(common)} cases that all were run in: {', '.join(told)}."


def sweep(frame: Frame, names: Series) -> Figure:
    """Draw depth and score by the first block asked, two panels a model and task, a line a (method, head).

    Args:
        frame: One row a setting and metric: origin, task, model, setting, loss, blocks, method, head, min_exit,
            is_depth, value (blocks, or the metric's unit), ci_low, ci_high, full_value, n.
        names: The series.
    """
    styles = series_styles(series_of(frame, names).keys())
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
                axes.set_xlabel(FIRST_ASKED.replace(", ", ",\n").replace(" (", "\n("))
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
    ours, published = split_published(frame)
    draw_by_block(axes, series_of(ours, names), styles, ("value", "ci_low", "ci_high"), connect=True)
    for name, rows in series_of(published, names).items():
        x, y = ([row[column] for row in rows] for column in ("min_exit", "value"))
        draw_published(axes, x, y, connect=True, line_colour=styles[name].colour)
    metric = ours.rows[0]["metric"]
    if not ours.rows[0]["is_depth"]:
        axes.set_ylabel(metric)
        title_panel(axes, "", count(ours.values("n"), "documents"))
