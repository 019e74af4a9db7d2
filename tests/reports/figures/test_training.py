"""Figures of trainings: their queries, on a database with hand-written training logs, and the lines that are drawn."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import duckdb
import pytest
from matplotlib.axes import Axes
from print_rules import drawn

from exitbench.reports import figures
from exitbench.reports.figures.heads import heads_fig1_training
from exitbench.reports.figures.ours import training_loss
from exitbench.reports.frame import Frame
from exitbench.reports.registry import discover

Log = tuple[str, str, str, int, int | None, str, float]  # model, recipe, weights, step, block, metric, value

SQL = {source.name: source.sql for source in discover(figures)}

HEADS: list[Log] = [
    ("m", "heads", "aaaaaaaa", step, block, metric, value)
    for step, (accuracy, entropy) in {200: (0.75, 1.5), 100: (0.5, 2.0)}.items()
    for block, scale in ((2, 0.5), (12, 1.0), (9, 0.8))
    for metric, value in (("exit_head_accuracy", scale * accuracy), ("exit_head_entropy_nats", entropy / scale))
]
LOSSES: list[Log] = [("m", "heads", "aaaaaaaa", step, None, "loss_nats", 300 / step) for step in (300, 100, 200)]


def rows(name: str, log: Iterable[Log], folder: Path) -> Frame:
    """Return the rows of the figure's query on a database file with this log."""
    path = folder / "trainings.duckdb"
    path.unlink(missing_ok=True)
    with duckdb.connect(path) as connection:
        connection.execute(
            "CREATE TABLE training_curves (model VARCHAR, recipe VARCHAR, weights_sha256 VARCHAR, step INTEGER, "
            "block SMALLINT, metric VARCHAR, value DOUBLE)"
        )
        for entry in log:
            connection.execute("INSERT INTO training_curves VALUES (?, ?, ?, ?, ?, ?, ?)", list(entry))
        # what each minimised: weights whose digest begins with c something else than the others
        connection.execute(
            "CREATE TABLE trainings AS "
            "SELECT DISTINCT weights_sha256, if(weights_sha256[1] = 'c', 'free', 'last') AS loss FROM training_curves"
        )
        table = connection.sql(SQL[name]).to_arrow_table()
        return Frame(tuple(table.column_names), tuple(table.to_pylist()))


def panels(module: Any, frame: Frame) -> list[Axes]:
    return list(drawn(module, frame).axes)


def lines(axes: Axes) -> list[list[tuple[float, float]]]:
    """Return the points of every line."""
    return [list(zip(*line.get_data(), strict=True)) for line in axes.lines]


def test_training_figure_shows_accuracy_left_and_entropy_right(tmp_path: Path) -> None:
    frame = rows("heads_fig1_training", [*HEADS, *LOSSES], tmp_path)
    left_panel, right = panels(heads_fig1_training, frame)
    assert lines(left_panel) == [
        [(100, pytest.approx(scale * 0.5)), (200, pytest.approx(scale * 0.75))] for scale in (0.5, 0.8, 1.0)
    ]
    assert lines(right) == [
        [(100, pytest.approx(2 / scale)), (200, pytest.approx(1.5 / scale))] for scale in (0.5, 0.8, 1.0)
    ]
    assert "entropy" in right.get_ylabel()
    (legend,) = left_panel.figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [f"after block {block}" for block in (2, 9, 12)]


def test_a_head_has_one_colour_in_all_panels(tmp_path: Path) -> None:
    other = [("other", *log[1:]) for log in HEADS if log[4] != 2]
    first, _, second, _ = panels(heads_fig1_training, rows("heads_fig1_training", [*HEADS, *other], tmp_path))
    assert [line.get_color() for line in first.lines][1:] == [line.get_color() for line in second.lines]
    assert first.get_ylim() == second.get_ylim()


def test_model_loss_is_one_line_per_training(tmp_path: Path) -> None:
    of_blocks: list[Log] = [("m", "heads", "aaaaaaaa", 100, 4, "loss_nats", 9.0)]
    other: list[Log] = [("n", "r", "bbbbbbbb", 50, None, "loss_nats", 2.0)]
    (axes,) = panels(training_loss, rows("training_loss", [*HEADS, *LOSSES, *of_blocks, *other], tmp_path))
    assert lines(axes) == [[(100, 3), (200, 1.5), (300, 1)], [(50, 2)]]


def test_each_loss_has_a_panel_and_may_be_negative(tmp_path: Path) -> None:
    other: list[Log] = [("n", "r", "cccccccc", step, None, "loss_nats", -5.0 - step) for step in (1, 2)]
    first, second = panels(training_loss, rows("training_loss", [*LOSSES, *other], tmp_path))
    assert lines(first) == [[(1, -6), (2, -7)]]
    assert lines(second) == [[(100, 3), (200, 1.5), (300, 1)]]
    assert first.get_ylim()[0] < -7
    assert second.get_ylim()[0] == 0


@pytest.mark.parametrize(
    ("recipe", "weights", "names"),
    [
        ("heads", "aaaaaaaa", ["m"]),
        ("other", "bbbbbbbb", ["m · heads", "m · other"]),
        ("heads", "bbbbbbbb", ["m · aaaaaa", "m · bbbbbb"]),
    ],
)
def test_trainings_of_the_same_model_have_distinct_names(
    recipe: str, weights: str, names: list[str], tmp_path: Path
) -> None:
    repeated: list[Log] = [("m", recipe, weights, 400, None, "loss_nats", 0.5)]
    assert rows("training_loss", [*LOSSES, *repeated], tmp_path).distinct("training") == names


@pytest.mark.parametrize("name", ["heads_fig1_training", "training_loss"])
def test_without_logs_there_is_nothing_to_draw(name: str, tmp_path: Path) -> None:
    assert rows(name, [], tmp_path).rows == ()
