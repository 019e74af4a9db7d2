"""Quality against speed of the MEE measures: local and published runs, both as shares of full depth's values."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes
from print_rules import drawn

from exitbench.reports import figures
from exitbench.reports.figures.mee import filter_origin, mee_blog_quality_speed
from exitbench.reports.frame import Frame
from exitbench.reports.plotting.style import MUTED, series_styles
from exitbench.results.database.connection import open_database

NAME = "mee_blog_quality_speed"


@pytest.fixture(scope="module")
def rows(small_database: Path, rows_of: Any) -> Frame:
    return rows_of(small_database, figures, NAME)


def metrics(database: Path, kind: str) -> dict[tuple[str, str, str], dict[str, float]]:
    """Return the metric values of real cells of one kind: by model, method and parameters, and then by metric."""
    printed_values: dict[tuple[str, str, str], dict[str, float]] = {}
    with open_database(database) as opened:
        for row in opened.query("FROM metric_values WHERE execution = 'real'").to_pylist():
            if row["kind"] == kind:
                printed_values.setdefault((row["model"], row["method"], row["params"]), {})[row["metric"]] = row[
                    "value"
                ]
    return printed_values


def test_quality_and_speed_are_shares_of_full_depth(rows: Frame, small_database: Path) -> None:
    scores, times = metrics(small_database, "quality"), metrics(small_database, "timing")
    local_rows = filter_origin(rows, "ours")
    assert {row["method"] for row in local_rows.rows} == {"full", "calm-softmax"}
    for row in local_rows.rows:
        key = (row["model"], row["method"], row["params"])
        full = scores[row["model"], "full", "{}"]["f1"]
        assert row["quality"] == pytest.approx(scores[key]["f1"] / full)
        if row["method"] != "full":
            assert row["speedup"] == pytest.approx(times[key]["speedup"])
            assert row["tokens_per_second"] == pytest.approx(1000 / times[key]["ms_per_token"])
    assert len(local_rows.rows) == len([key for key in scores if key[1] in ("full", "calm-softmax")])


def test_relative_quality_falls_when_an_error_metric_grows(
    small_database: Path, as_errors: Callable[[Path], Path], rows_of: Any
) -> None:
    local_rows = filter_origin(rows_of(as_errors(small_database), figures, NAME), "ours").rows
    full = {row["model"]: row["full_value"] for row in local_rows}
    scores = metrics(as_errors(small_database), "quality")
    for row in local_rows:
        error = scores[row["model"], row["method"], row["params"]]["f1"]
        assert row["quality"] == pytest.approx(1 - (error - full[row["model"]]) / full[row["model"]])
        assert row["quality_low"] <= row["quality"] <= row["quality_high"]


def test_published_runs_are_relative_to_the_published_full_depth(rows: Frame) -> None:
    printed = filter_origin(rows, "published").rows
    assert len(printed) == 12 and {row["task"] for row in printed} == {"squad", "samsum"}, "none of IWSLT's"
    quality_and_speed = {(row["task"], row["method"]): (row["quality"], row["speedup"]) for row in printed}
    assert quality_and_speed["squad", "calm-softmax"] == pytest.approx((78.4632 / 88.8409, 18.603 / 11.036))
    assert quality_and_speed["squad", "mee-lstm"] == pytest.approx((88.5731 / 88.8409, 8.655 / 11.036))
    assert quality_and_speed["samsum", "mee-mlp3"] == pytest.approx((40.4773 / 43.7501, 1.398 / 2.111))


def points(axes: Axes, *, published: bool) -> list[tuple[float, float]]:
    """Return the local points (filled markers) or the published ones (crosses)."""
    lines = [line for line in axes.lines if line.get_marker() not in ("None", "", None)]
    selected = [
        line
        for line in lines
        if (line.get_marker() == "x" if published else line.get_color() != MUTED and line.get_markersize() < 10)
    ]
    return sorted((x, y) for line in selected for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True))


def test_every_run_is_drawn_and_published_ones_use_the_marker_of_their_method(rows: Frame) -> None:
    figure = drawn(mee_blog_quality_speed, rows)
    printed = sorted(
        (r["speedup"], r["quality"]) for r in rows.rows if (r["origin"], r["task"]) == ("published", "squad")
    )
    styles = series_styles({row["method"] for row in rows.rows})
    for axes, ((_,), part) in zip(figure.axes, filter_origin(rows, "ours").groups("model"), strict=True):
        assert points(axes, published=False) == sorted((row["speedup"], row["quality"]) for row in part.rows)
        assert points(axes, published=True) == printed
        outlines = {line.get_marker() for line in axes.lines if line.get_markersize() == 10}
        assert outlines == {styles[method].marker for method in styles if method != "full"}
        assert any(text.get_text().startswith("full depth:\nf1 ") for text in axes.texts)
