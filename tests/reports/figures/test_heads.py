"""Figures of exit heads by epsilon: queries compared with NumPy over the same exits, and drawn marks."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import duckdb
import numpy as np
import pytest
from print_rules import drawn

from exitbench.reports import figures
from exitbench.reports.figures.heads import (
    heads_fig2_quality_by_epsilon,
    heads_fig3_speedup_by_epsilon,
    heads_fig4_exit_distribution,
)
from exitbench.reports.frame import Frame
from exitbench.results.database.connection import open_database

Rows = Callable[[Path, ModuleType, str], Frame]

EPSILONS = (0.5, 0.9)
BLOCKS = 4


def params(**changes: Any) -> dict[str, Any]:
    return {"rule": "epsilon", "epsilon": 0.9, "confidence": "margin", "exit_blocks": [], "temperature": 0.0, **changes}


def exits(margin: np.ndarray, epsilon: float) -> np.ndarray:
    """Return the exit layer of every token, with exit heads after blocks 1 and 2; at the larger epsilon, none exits
    after 1.
    """
    exits_here = np.stack([(margin[:, 0] > 0.5) & (epsilon < 0.8), margin[:, 1] > epsilon], axis=1)
    return np.where(exits_here.any(axis=1), exits_here.argmax(axis=1) + 1, BLOCKS)


@pytest.fixture(scope="module")
def database(example: ModuleType, world: Any, database_of: Callable[[Any], Path]) -> Path:
    """Return a database of one model with exit heads at two epsilons.

    Three other settings differ in the confidence, in the temperature, and in having a constant rule.
    """
    other_params = (params(confidence="entropy"), params(temperature=1.0), params(rule="constant"))
    swept = tuple(
        example.Method("heads", setting_params)
        for setting_params in (*(params(epsilon=e) for e in EPSILONS), *other_params)
    )

    def exit_rule(method: Any, beliefs: Any) -> np.ndarray:
        if method.name == "heads":
            return exits(beliefs.margin, method.params["epsilon"])
        rule: np.ndarray = world.exit_rule(method, beliefs)
        return rule

    return database_of(replace(world, methods=world.methods[:1], swept=swept, exit_rule=exit_rule))


def test_kept_quality_of_an_error_metric_falls_as_the_error_grows(
    database: Path, as_errors: Callable[[Path], Path], rows_of: Rows
) -> None:
    scores, errors = (
        rows_of(source_database, figures, "heads_fig2_quality_by_epsilon").rows
        for source_database in (database, as_errors(database))
    )
    assert [row["kept"] for row in scores] == pytest.approx([row["value"] / row["full_value"] for row in scores])
    assert [row["kept"] for row in errors] == pytest.approx([2 - row["value"] / row["full_value"] for row in errors])
    assert all((row["value"] > row["full_value"]) == (row["kept"] < 1) for row in errors)


def test_each_epsilon_is_a_point_with_its_interval(database: Path, rows_of: Rows) -> None:
    quality = rows_of(database, figures, "heads_fig2_quality_by_epsilon")
    speed = rows_of(database, figures, "heads_fig3_speedup_by_epsilon")
    with open_database(database) as opened:
        metric_rows = opened.query("FROM metric_values WHERE method = 'heads' AND execution = 'real'").to_pylist()
    for rows, metric in ((quality, "f1"), (speed, "speedup")):
        assert [(row["series"], row["epsilon"]) for row in rows.rows] == [
            ("entropy", 0.9),
            ("margin", 0.5),
            ("margin", 0.9),
        ], "neither drawn tokens nor constant thresholds"
        for row in rows.rows:
            (full_row,) = [
                other
                for other in metric_rows
                if other["metric"] == metric
                and f'"epsilon":{row["epsilon"]}' in other["params"].replace(" ", "")
                and row["series"] in other["params"]
                and '"temperature":0.0' in other["params"].replace(" ", "")
                and "constant" not in other["params"]
            ]
            assert [row[name] for name in ("value", "ci_low", "ci_high", "n")] == pytest.approx(
                [full_row[name] for name in ("value", "ci_low", "ci_high", "n")]
            )
    for module, rows in ((heads_fig2_quality_by_epsilon, quality), (heads_fig3_speedup_by_epsilon, speed)):
        (axes,) = drawn(module, rows).axes
        points = {line.get_marker(): list(line.get_ydata()) for line in axes.lines if line.get_marker() != "None"}
        assert sorted(points.values()) == sorted(
            [row["value"] for row in rows.rows if row["series"] == name] for name in ("entropy", "margin")
        )
    (floors,) = (bars for bars in axes.collections if bars.get_linewidth()[0] == 5)
    segments = sorted(tuple(segment[:, 1]) for segment in floors.get_segments())
    assert segments == sorted(zip(speed.values("aa_low"), speed.values("aa_high"), strict=True))


def test_exit_shares_of_every_head_have_per_document_intervals(database: Path, rows_of: Rows, world: Any) -> None:
    rows = rows_of(database, figures, "heads_fig4_exit_distribution")
    assert rows.distinct("series") == ["margin"], "one epsilon is no curve"
    assert [(row["epsilon"], row["exit_layer"]) for row in rows.rows] == [
        (epsilon, layer) for epsilon in EPSILONS for layer in (1, 2, BLOCKS)
    ]
    beliefs = world.beliefs(world.models[0], world.tasks[0])
    for row in rows.rows:
        here = (exits(beliefs.margin, row["epsilon"]) == row["exit_layer"]).reshape(world.documents, world.tokens)
        assert row["share"] == pytest.approx(here.mean())
        # documents are equally long, so that the ratio's interval is that of a mean over documents
        t = {8: 2.365}[world.documents]
        share, half = here.mean(), t * here.mean(axis=1).std(ddof=1) / np.sqrt(world.documents)
        if half:
            logit, steps = np.log(share / (1 - share)), half / (share * (1 - share))
            ends = 1 / (1 + np.exp(steps - logit)), 1 / (1 + np.exp(-steps - logit))
        else:  # no document differs: as far as others could move it that have not been seen
            ends = share * 0.025 ** (1 / world.documents), 1 - (1 - share) * 0.025 ** (1 / world.documents)
        assert row["half_width"] == pytest.approx(max(share - ends[0], ends[1] - share))
        assert row["n"] == here.size
    (axes,) = drawn(heads_fig4_exit_distribution, rows).axes
    assert [list(line.get_ydata()) for line in axes.lines] == [
        [row["share"] for row in rows.rows if row["exit_layer"] == layer] for layer in (1, 2, BLOCKS)
    ]
    (legend,) = axes.figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["after block 1", "after block 2", "all 4 blocks"]


def test_exit_distribution_compares_each_panels_own_epsilons() -> None:
    columns = ("task", "series", "setting", "epsilon", "exit_layer", "blocks", "share")
    rows = [
        dict(zip(columns, ("squad", series, "", epsilon, layer, BLOCKS, share), strict=True))
        for series, epsilon, stay in (("a", 0.5, 0.1), ("a", 0.9, 0.3), ("b", 0.8, 0.7), ("b", 0.95, 0.9))
        for layer, share in ((2, 1 - stay), (BLOCKS, stay))
    ]
    assert heads_fig4_exit_distribution.finding(Frame(columns, rows)) == (
        "Tokens that exit at a head: 60 % at the lowest epsilon and 40 % at the highest epsilon of a panel, "
        "mean over panels."
    )


def test_exit_distribution_includes_tokens_of_scored_choices(
    choice_database: Path, tmp_path: Path, rows_of: Rows
) -> None:
    path = Path(shutil.copy(choice_database, tmp_path / "heads.duckdb"))
    params_sql = """json_object('rule', 'epsilon', 'epsilon', (params ->> 'threshold')::DOUBLE, 'confidence', 'margin',
                           'exit_blocks', [])"""
    with duckdb.connect(path) as connection:
        connection.execute(f"UPDATE cell SET method = 'heads', params = {params_sql} WHERE method <> 'full'")
    with open_database(path) as opened:
        calibrations = opened.query(
            "SELECT params ->> 'epsilon' AS epsilon, exit_layer FROM token_trace WHERE method = 'heads'"
        )
    layers: dict[float, list[int]] = {}
    for row in calibrations.to_pylist():
        layers.setdefault(float(row["epsilon"]), []).append(row["exit_layer"])
    rows = rows_of(path, figures, "heads_fig4_exit_distribution").rows
    assert len(layers) == 2 and {row["epsilon"] for row in rows} == layers.keys()
    for row in rows:
        expected_layers = layers[row["epsilon"]]
        assert (row["share"], row["n"]) == (
            pytest.approx(expected_layers.count(row["exit_layer"]) / len(expected_layers)),
            len(expected_layers),
        )
