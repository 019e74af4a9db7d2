"""Figures draw every point of their query, with the right marker."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from exitbench.reports import figures
from exitbench.reports.figures.mee import mee_fig1_no_change
from exitbench.reports.figures.ours import agreement, envelope, exit_histogram, frontier
from exitbench.reports.frame import Frame
from exitbench.reports.plotting.style import DARK, LIGHT, MUTED, series_styles, theme
from exitbench.reports.registry import discover
from exitbench.results.database.connection import Database, open_database
from exitbench.results.files.formats import content_id

OpenComputed = Callable[[Path], AbstractContextManager[Database]]
Rows = Callable[[Path, ModuleType, str], Frame]

# parts of names of figures with no axis of blocks
WITHOUT_DEPTH = (
    *("training", "mee_blog_quality_speed", "by_epsilon", "realised_speedup", "calibration", "cost_breakdown"),
    *("faithfulness", "between_random_and_oracle", "error_by_kv_policy", "suitability"),
)

POINT: dict[str, Any] = {
    "task": "squad",
    "model": "m",
    "setting": "float32, cpu, batch 1",
    "method": "calm",
    "params": '{"threshold": 0.5}',
    "kv_policy": "state-copy",
    "execution": "real",
    "metric": "f1",
    "value": 0.7,
    "ci_low": 0.6,
    "ci_high": 0.8,
    "full_value": 0.9,
    "mean_exit_layer": 3.0,
    "blocks": 8,
    "speedup": 1.5,
    "speedup_low": 1.4,
    "speedup_high": 1.6,
    "speed_status": "timed",
    "aa_low": 0.98,
    "aa_high": 1.02,
    "speedup_per_token": 1.3,
    "is_other_length": False,
    "timed_documents": 20,
    "inside_noise_floor": False,
    "n": 1200,
    "match": 0.8,
    "of_choices": False,
    "match_low": 0.75,
    "match_high": 0.85,
    "origin": "ours",
    "quality": 0.7 / 0.9,
    "quality_low": 0.6 / 0.9,
    "quality_high": 0.8 / 0.9,
    "depth": 3 / 8,
    "is_full_depth": False,
    "attainable": True,
    "is_recommended": False,
}


NO_SPEED = dict.fromkeys(("speedup", "speedup_low", "speedup_high", "aa_low", "aa_high", "speedup_per_token"))


def frame(*changes: dict[str, Any]) -> Frame:
    rows = tuple({**POINT, **change} for change in changes)
    return Frame(tuple(POINT), rows)


def points(axes: Axes) -> list[Line2D]:
    return [line for line in axes.lines if line.get_marker() not in ("None", None, "")]


def scattered(axes: Axes) -> list[Line2D]:
    """Return the lines with this project's points, without rings and published values."""
    return [line for line in points(axes) if line.get_markersize() != 11 and line.get_marker() != "x"]


def written(figure: Figure) -> str:
    """Return all texts of the figure, one per line."""
    return "\n".join(text.get_text() for text in figure.findobj(lambda artist: hasattr(artist, "get_text")))


@pytest.mark.parametrize(
    "name", [source.name for source in discover(figures) if not any(part in source.name for part in WITHOUT_DEPTH)]
)
def test_depth_axis_names_exit_layer_or_blocks_run(name: str, small_database: Path, rows_of: Rows) -> None:
    module = next(source.module for source in discover(figures) if source.name == name)
    rows = rows_of(small_database, figures, name)
    if not rows.rows:
        pytest.skip("the example database has nothing for it")
    labels = written(module.plot(rows))
    assert any(name in labels for name in ("exit layer", "blocks run", "(blocks executed"))


def test_the_frontier_draws_every_setting_by_depth_and_the_timed_ones_by_speed(
    small_database: Path, rows_of: Rows
) -> None:
    rows = rows_of(small_database, figures, "frontier")
    drawn = frontier.plot(rows)
    for offset, column in ((0, "depth"), (1, "speedup")):
        plotted = [x for axes in drawn.axes[offset::2] for line in scattered(axes) for x in line.get_xdata()]
        local_values = [row[column] for row in rows.rows]
        assert sorted(plotted) == sorted(x for x in local_values if x is not None)


def test_the_frontier_shows_intervals_noise_floor_and_n() -> None:
    drawn = frontier.plot(frame({}))
    depth, speed = drawn.axes
    (vertical,), (floor, horizontal) = depth.collections, speed.collections
    np.testing.assert_allclose(vertical.get_segments()[0][:, 1], [0.6 / 0.9, 0.8 / 0.9])
    np.testing.assert_allclose(horizontal.get_segments()[0][:, 0], [1.4, 1.6])
    np.testing.assert_allclose(floor.get_segments()[0], [[0.98, 0.7 / 0.9], [1.02, 0.7 / 0.9]])
    assert "n = 1,200 documents" in written(drawn) and "n = 20 timed" in written(drawn)
    assert "A/A noise floor, by point" in written(drawn)


def test_noise_floor_is_drawn_per_point() -> None:
    wide = {"params": '{"threshold": 0.1}', "quality": 0.5, "aa_low": 0.8, "aa_high": 3.6}
    speed = frontier.plot(frame({}, wide)).axes[1]
    assert not speed.patches
    drawn = {tuple(segment[:, 0]): segment[0, 1] for segment in speed.collections[0].get_segments()}
    assert drawn == {(0.98, 1.02): pytest.approx(0.7 / 0.9), (0.8, 3.6): 0.5}


def test_answers_of_different_length_are_marked_and_linked_to_speedup_per_token() -> None:
    short = {"params": '{"threshold": 0.1}', "quality": 0.995, "speedup": 3.5, "is_other_length": True}
    drawn = frontier.plot(frame({}, {**short, "speedup_per_token": 1.43, "is_recommended": True}))
    assert "†" in [text.get_text() for text in drawn.axes[1].texts]
    ways = [line for line in drawn.axes[1].lines if line.get_linestyle() == ":"]
    assert ([3.5, 1.43], [0.995, 0.995]) in [(list(line.get_xdata()), list(line.get_ydata())) for line in ways]
    assert "† 1.43× a token" in written(drawn) and "† other length" in written(drawn)
    assert "†" not in written(frontier.plot(frame({})))


def test_frontier_depth_axis_shows_mean_blocks_run(small_database: Path, rows_of: Rows) -> None:
    rows = rows_of(small_database, figures, "frontier")
    assert "mean blocks run, share of all blocks" in written(frontier.plot(rows))
    with open_database(small_database) as opened:
        depths = opened.query("SELECT cell_id, mean_blocks_run / blocks AS depth FROM frontier").to_pylist()
    by_cell = {row["cell_id"]: row["depth"] for row in depths}
    for row in rows.rows:
        assert row["depth"] == pytest.approx(by_cell[row["cell_id"]])


def test_frontier_rows_with_the_most_methods_come_first() -> None:
    pairs = [{"model": f"m{n}", "task": f"t{n}"} for n in range(8)]
    extra = {**pairs[7], "method": "static", "params": "{}"}
    drawn = frontier.plot(frame(*pairs, extra))
    assert [axes.get_title() for axes in drawn.axes[::2]] == [f"m{n} on t{n}" for n in (7, 0, 1, 2, 3, 4)]


def test_ring_marks_the_recommended_setting() -> None:
    settings = ((1.5, 1.0, False), (2.0, 0.991, True), (3.0, 0.995, False))
    drawn = frontier.plot(
        frame(
            *(
                {"params": f'{{"threshold": {x}}}', "speedup": x, "quality": y, "is_recommended": best}
                for x, y, best in settings
            )
        )
    )
    (ring,) = (line for line in drawn.axes[1].lines if line.get_markersize() == 11)
    assert (*ring.get_xdata(), *ring.get_ydata()) == (2.0, 0.991)
    assert "2.00×" in written(drawn)


def test_envelope_contains_only_undominated_points() -> None:
    assert envelope([(1, 1), (2, 0.9), (1.5, 0.8), (3, 0.9), (0.5, 1)]) == [(1, 1), (3, 0.9)]


def test_a_setting_inside_the_noise_floor_is_grey() -> None:
    speed = frontier.plot(frame({}, {"params": '{"threshold": 0.9}', "inside_noise_floor": True})).axes[1]
    assert sorted(line.get_color() == MUTED for line in points(speed)) == [False, True]


def test_a_task_that_was_not_timed_has_one_panel_and_shares_its_row() -> None:
    full = {"is_full_depth": True, "speedup": 1.0, "aa_low": None}
    untimed = [{**NO_SPEED, "speed_status": "not timed"}, full]
    assert len(frontier.plot(frame(*untimed)).axes) == 1
    others = ({**row, "task": task} for task in ("other", "third") for row in untimed)
    drawn = frontier.plot(frame({}, *others))
    assert [axes.get_subplotspec().rowspan.start for axes in drawn.axes] == [0, 0, 1, 1]
    assert [bool(axes.get_xlabel().startswith("measured")) for axes in drawn.axes] == [False, True, False, False]


def test_a_task_whose_speed_ups_are_not_measurable_says_so_and_has_no_axis() -> None:
    full = {"is_full_depth": True, "speedup": 1.0, "aa_low": None}
    rows = frame({**NO_SPEED, "speed_status": "not measurable"}, full)
    drawn = frontier.plot(rows)
    assert "not measurable now" in written(drawn) and len(drawn.axes) == 1
    assert frontier.finding(rows) == "Quality against depth; speed-ups are not measurable now."


def test_unmeasurable_settings_are_not_drawn_as_points() -> None:
    single, both = (
        frontier.plot(frame(*rows)).axes[1] for rows in ([{}], [{}, {**NO_SPEED, "speed_status": "not measurable"}])
    )
    assert len(points(single)) == len(points(both)) and single.get_xlim() == both.get_xlim()


def test_missing_interval_is_not_drawn() -> None:
    assert not frontier.plot(frame({"quality_low": None, "quality_high": None})).axes[0].collections


def test_exit_histogram_grid_has_no_empty_panel_for_disjoint_tasks() -> None:
    row = {**POINT, "params": "{}", "exit_layer": 1, "blocks": 2, "share": 1.0, "n": 5, "tokens": 5}
    pairs = [("a", "x"), ("b", "y"), ("a", "y"), ("b", "x")]

    def panels(count: int) -> list[Axes]:
        rows = tuple({**row, "model": model, "task": task} for model, task in pairs[:count])
        return [axes for axes in exit_histogram.plot(Frame(tuple(row), rows)).axes if axes.get_label() != "<colorbar>"]

    assert [len(axes.images) for axes in panels(2)] == [1, 1]
    assert [len(axes.images) for axes in panels(3)] == [1, 1, 0, 1], "one task in common: tasks side by side"
    assert "a on x" in written(panels(2)[0].get_figure(root=True))


@pytest.mark.parametrize("plot", [frontier.plot, agreement.plot])
def test_simulated_points_are_hollow(plot: Callable[[Frame], Figure]) -> None:
    sweep = [{"params": f'{{"threshold": {t}}}', "mean_exit_layer": 8 * t} for t in (0.5, 0.9)]
    drawn = plot(frame(*sweep, *({**point, "execution": "simulated"} for point in sweep)))
    faces = {line.get_markerfacecolor() for line in points(drawn.axes[0])}
    assert faces == {series_styles(["calm"])["calm"].colour, "none"}, "nothing hides behind a ring"
    assert "simulated (replay)" in written(drawn)


def test_a_real_setting_is_joined_to_its_replay() -> None:
    drawn = agreement.plot(frame({"depth": 0.5}, {"execution": "simulated", "depth": 0.4, "match": 0.9}))
    (thin,) = (line for line in drawn.axes[0].lines if line.get_linewidth() == 0.5)
    assert (list(thin.get_xdata()), list(thin.get_ydata())) == ([0.5, 0.4], [0.8, 0.9])


def test_only_sweeps_of_one_parameter_are_joined() -> None:
    two_parameters = [{"params": '{"a": 1, "b": 1}'}, {"params": '{"a": 2, "b": 2}'}]
    assert points(agreement.plot(frame(*two_parameters)).axes[0])[0].get_linestyle() == "None"


def test_settings_are_named_only_where_there_are_several() -> None:
    assert "batch 1" not in written(agreement.plot(frame({})))
    assert "batch 1" in written(agreement.plot(frame({}, {"setting": "float32, cpu, batch 8"})))


def test_the_histogram_shows_the_share_of_each_exit_layer(small_database: Path, rows_of: Rows) -> None:
    rows = rows_of(small_database, figures, "exit_histogram")
    total = sum(float(image.get_array().sum()) for axes in exit_histogram.plot(rows).axes for image in axes.images)
    assert total == pytest.approx(len({(r["model"], r["task"], r["method"], r["params"]) for r in rows.rows}))


def test_repeated_setting_has_one_histogram_row(
    example: ModuleType, world: Any, make_database: Callable[[Any], Path], rows_of: Rows
) -> None:
    """With newer source code, one setting exits at block 1. In a still newer run in batches of four, it exits at block
    2.
    """
    calm = world.swept[0]
    first = np.ones(world.documents * world.tokens, int)

    def write(world: Any, root: Path, model: Any, task: Any) -> None:
        full = world.cell(model, task, example.FULL, "quality")["cell_id"]
        newer = world.cell(model, task, calm, "quality", full, source="newer")
        batched = {**newer["identity"], "batch_size": 4}
        for cell, exits in (
            (newer, first),
            ({**newer, "batch_size": 4, "identity": batched, "cell_id": content_id(batched)}, 2 * first),
        ):
            world.write_quality(root, cell, task, world.beliefs(model, task), exits)

    database = make_database(replace(world, also=write))
    rows = [row for row in rows_of(database, figures, "exit_histogram").rows if row["method"] == calm.name]
    repeated = [row for row in rows if json.loads(row["params"]) == calm.params]
    assert [(row["exit_layer"], row["share"], row["tokens"], row["n"]) for row in repeated] == [(1, 1, len(first), 8)]
    assert {row["tokens"] for row in rows} != {len(first)}


def test_no_change_has_one_line_per_model_ending_at_one(small_database: Path, rows_of: Rows) -> None:
    rows = rows_of(small_database, figures, "mee_fig1_no_change")
    for axes in mee_fig1_no_change.plot(rows).axes:
        local_lines = [line for line in axes.lines if line.get_marker() != "x"]
        assert [line.get_ydata()[-1] for line in local_lines] == [1, 1]


def test_random_weights_are_not_drawn(untrained_database: Path, open_computed: OpenComputed) -> None:
    with open_computed(untrained_database) as opened:
        assert [source.name for source in discover(figures) if Frame.query(opened, source.sql).rows] == []


def test_special_characters_in_names_are_drawn_literally() -> None:
    names = ["$x_{$", "_hidden", "<script>", "A" * 10_000]
    with theme(LIGHT):
        drawn = agreement.plot(frame(*({"method": name, "model": name} for name in names)))
        drawn.draw_without_rendering()
    assert all(name in written(drawn) for name in names[:3])
    assert max(map(len, written(drawn).splitlines())) < 80


def test_methods_differ_in_colour_and_marker() -> None:
    styles = series_styles(f"method {i}" for i in range(66))
    assert len({(style.colour, style.marker) for style in styles.values()}) == 66


def test_each_theme_has_its_background_color() -> None:
    papers = []
    for which in (LIGHT, DARK):
        with theme(which):
            papers.append(to_hex(agreement.plot(frame({})).get_facecolor()))
    assert papers == [LIGHT.paper, DARK.paper]
