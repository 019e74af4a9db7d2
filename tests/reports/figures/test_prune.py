"""Figures and the table of the pruning blog: queries compared with slow sums over the same tokens, and drawn marks."""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import floor
from pathlib import Path
from types import ModuleType
from typing import Any

import duckdb
import numpy as np
import pytest
from intervals import T, half_of_share
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from print_rules import drawn

from exitbench.harness.planning.suite import load_suite
from exitbench.reports import figures, tables
from exitbench.reports.figures.prune import (
    prune_fig1_rank,
    prune_fig2_3_margin,
    prune_fig4_5_pruning,
    prune_fig6_7_gates,
    prune_fig8_9_late_exit,
    prune_fig10_11_pruned_jsd,
)
from exitbench.reports.frame import Frame
from exitbench.reports.registry import discover
from exitbench.results.database.connection import open_database
from exitbench.results.files.formats import content_id
from exitbench.results.side_records.trainings import record_training

Rows = Callable[[Path, ModuleType, str], Frame]

BLOCKS = 8
FIRST_GATE_BLOCKS = (1, 2, 6)
K_FIRST, K_MIN = 60, 5
VOCABULARY = 100
LOSSES = {"vanilla": "last", "weighted": "weighted"}
SWEEPS = {"prune_fig6_7_gates", "prune_fig10_11_pruned_jsd", "prune_fig12_13_baselines"}
COSTS = {"prune_fig4_5_pruning", "prune_fig8_9_late_exit"}
CHECKED_FIGURES = (
    ("calm-softmax", "full"),
    ("calm-softmax", "pruned-fixed"),
    ("calm-softmax", "pruned-decaying-idsorted"),
    ("contrastive-jsd", "full"),
    ("contrastive-jsd", "pruned-adaptive-code"),
)
SQL = {source.name: source.sql for package in (figures, tables) for source in discover(package)}


def size(block: int) -> int:
    """Return the number of ids that a pruned head keeps at a block."""
    return min(VOCABULARY, max(K_MIN, floor(K_FIRST / (1 + (K_FIRST - K_MIN) / K_MIN * block / BLOCKS))))


def counted_by_rule(head: str, min_exit: int, exit_layer: int) -> int:
    """Return the LM-head rows that the published counting rule gives for one token, summed over its blocks."""
    rows = 0
    for block in range(min_exit, exit_layer + 1):
        if head == "full" or block == BLOCKS:
            rows += VOCABULARY
        elif block > min_exit:
            rows += size(block if head.startswith("pruned-decaying") else min_exit)
    return rows


def head_rows_multiplied(method: str, head: str, min_exit: int, exit_layer: int) -> int:
    """Return the LM-head rows really multiplied for one token.

    Choosing the ids of a pruned head reads all rows once. A contrast also reads all rows at earlier blocks, from block
    2 on.
    """
    chosen = 0 if head == "full" or min_exit == BLOCKS else VOCABULARY
    looked_back = VOCABULARY * (min_exit - 2) if method == "contrastive-jsd" and min_exit > 2 else 0
    return counted_by_rule(head, min_exit, exit_layer) + chosen + looked_back


def exits(method: Any, beliefs: Any) -> np.ndarray:
    """Return the exit layers that a method would give; the contrastive gate's scores are 0.1 higher."""
    params = method.params
    margin = beliefs.margin + 0.1 * (method.name == "contrastive-jsd")
    allowed = (margin >= params.get("threshold", 9)) & (np.arange(1, BLOCKS + 1) >= params.get("min_exit", 1))
    if method.name == "static":
        return np.full(len(margin), params["exit_layer"])
    return np.where(allowed.any(1), allowed.argmax(1) + 1, BLOCKS)


@pytest.fixture(scope="module")
def world(example: ModuleType) -> Any:
    """Return settings of synthetic data for two models.

    Each gate of `CHECKED_FIGURES` starts at each block of `FIRST_GATE_BLOCKS`; `static` exits at every block.
    """
    usual = {"threshold": 0.9, "rule": "constant", "decay": "none", "every": 1, "k_first": K_FIRST, "k_min": K_MIN}
    return replace(
        example.WORLD,
        tasks=example.TASKS[:1],
        models=tuple(example.Model(name, "seq2seq", BLOCKS, 2) for name in LOSSES),
        methods=(example.FULL, *(example.Method("static", {"exit_layer": block}) for block in range(1, BLOCKS))),
        swept=tuple(
            example.Method(method, {**usual, "head": head, "min_exit": block})
            for method, head in CHECKED_FIGURES
            for block in FIRST_GATE_BLOCKS
        ),
        exit_rule=exits,
        head_rows=head_rows,
        final_ranks=ranks,
        also=_write_unswept_run,
    )


@pytest.fixture(scope="module")
def database(world: Any, database_of: Callable[[Any], Path]) -> Path:
    return database_of(world)


def _write_unswept_run(world: Any, root: Path, model: Any, task: Any) -> None:
    """Write the record of the model's training, and a run outside the sweep: another seed and full-depth cell."""
    trained = root.parent / model.name
    trained.mkdir()
    card = {"recipe": {"name": model.name, "objective": {"loss": LOSSES[model.name]}}}
    (trained / "card.json").write_text(json.dumps(card))
    (trained / "training_log.csv").write_text("step,block,metric,value\n")
    record_training(root, content_id([model.name, "weights"]), trained)
    method = world.swept[0]
    cell = world.cell(model, task, method, "quality", "other")
    identity = {**cell["identity"], "seed": 8}
    cell |= {"cell_id": content_id(identity), "identity": identity, "seed": 8}
    beliefs = world.beliefs(model, task)
    world.write_quality(root, cell, task, beliefs, exits(method, beliefs))


def head_rows(method: Mapping[str, Any], exit_layers: np.ndarray) -> np.ndarray:
    """Return the LM-head rows that are multiplied for every token."""
    params = method["params"]
    key = (method["name"], params["head"], params["min_exit"])
    return np.array([head_rows_multiplied(*key, exit_layer) for exit_layer in exit_layers])


def ranks(tokens: int) -> np.ndarray:
    """Return random ranks of the final token, [N, L]."""
    return np.random.default_rng(0).integers(1, VOCABULARY, (tokens, BLOCKS))


def beliefs_of(world: Any, model: str) -> Any:
    return world.beliefs(next(spec for spec in world.models if spec.name == model), world.tasks[0])


def exits_of(world: Any, row: Mapping[str, Any]) -> np.ndarray:
    """Return the exit layers of the tokens that a figure's row summarizes."""
    params = {"threshold": 0.9, "min_exit": row["min_exit"]}
    return exits(replace(world.swept[0], name=row["method"], params=params), beliefs_of(world, row["model"]))


def half_width(world: Any, values: np.ndarray, counts: np.ndarray) -> float:
    """Return half of the 95 % interval of a ratio of sums over documents."""
    s, c = (column.reshape(world.documents, -1).sum(1) for column in (values, counts))
    residual = s - s.sum() / c.sum() * c
    half = float(T[len(s)] * np.sqrt(len(s) / (len(s) - 1) * (residual**2).sum()) / c.sum())
    return half_of_share(s.sum() / c.sum(), half, len(s)) if ((s >= 0) & (s <= c)).all() else half


def local_rows(frame: Frame, **values: Any) -> list[Mapping[str, Any]]:
    return [
        row
        for row in frame.rows
        if row["origin"] == "ours" and all(row[name] == value for name, value in values.items())
    ]


def points(axes: Axes, *, published: bool = False) -> list[tuple[float, float]]:
    lines = [line for line in axes.lines if line.get_marker() not in ("None", "") and len(line.get_xdata())]
    return sorted(
        place
        for line in lines
        if (line.get_marker() == "x") is published
        for place in zip(map(float, line.get_xdata()), map(float, line.get_ydata()), strict=True)
    )


def texts(figure: Figure) -> str:
    return "\n".join(text.get_text() for text in figure.findobj(lambda artist: hasattr(artist, "get_text")))


def test_gate_depth_is_shown_by_first_evaluated_block(world: Any, database: Path, rows_of: Rows) -> None:
    frame = rows_of(database, figures, "prune_fig6_7_gates")
    depths = local_rows(frame, is_depth=True)
    assert len(depths) == len(LOSSES) * len(FIRST_GATE_BLOCKS) * 2  # the reweighted contrast was not run
    for row in depths:
        assert row["value"] == pytest.approx(exits_of(world, row).mean())
        assert row["loss"] == LOSSES[row["model"]]
    assert len(local_rows(frame, is_depth=False, metric="f1")) == len(depths)
    # Published: three gates from eight blocks on, beside the model trained for its last block alone.
    published = [row for row in frame.rows if row["origin"] == "published"]
    assert {row["model"] for row in published} == {"vanilla"}
    softmax = {
        (round(row["min_exit"], 6), round(row["value"], 6))
        for row in published
        if row["is_depth"] and row["method"] == "calm-softmax"
    }
    assert len(softmax) == 8 and (round(20 / 3, 6), round(21.033 / 3, 6)) in softmax  # 20 and 21.033 of 24
    figure = drawn(prune_fig6_7_gates, frame)
    assert "first gated block, min_exit (blocks executed)" in texts(figure)
    for place, (model, is_depth) in enumerate((name, depth) for name in LOSSES for depth in (True, False)):
        plotted = points(figure.axes[place])
        expected = local_rows(frame, model=model, is_depth=is_depth)
        assert sorted(y for _, y in plotted) == pytest.approx(sorted(row["value"] for row in expected))
        crosses = points(figure.axes[place], published=True)
        printed = [row for row in published if (row["model"], row["is_depth"]) == (model, is_depth)]
        assert crosses == sorted((row["min_exit"], row["value"]) for row in printed)


def test_two_points_of_a_shifted_published_list_are_omitted(database: Path, tmp_path: Path, rows_of: Rows) -> None:
    """In figure 11a (fixed pruning), 12.305 seems to be inserted, so that min exits 6 and 3 have values of their
    neighbors.
    """
    path = tmp_path / "samsum.duckdb"
    shutil.copyfile(database, path)
    with duckdb.connect(path) as connection:
        connection.execute("UPDATE dataset_artifact SET task = 'samsum'")
        connection.execute("UPDATE metric SET metric = 'rougeL' WHERE metric = 'f1'")
    rows = rows_of(path, figures, "prune_fig10_11_pruned_jsd").rows
    fixed = [row for row in rows if (row["origin"], row["head"]) == ("published", "pruned-fixed")]
    asked_from = {
        is_depth: sorted(round(24 / BLOCKS * row["min_exit"]) for row in fixed if row["is_depth"] is is_depth)
        for is_depth in (True, False)
    }
    assert asked_from == {True: [15, 17, 18, 19, 20], False: [3, 6, 15, 17, 18, 19, 20]}
    assert "fixed pruning from blocks 6 and 3 on" in prune_fig10_11_pruned_jsd.CAPTION


def test_head_work_equals_a_sum_over_tokens(world: Any, database: Path, rows_of: Rows) -> None:
    for name, depth in (("prune_fig4_5_pruning", 2), ("prune_fig8_9_late_exit", 6)):
        frame = rows_of(database, figures, name)
        # 7 of 24 is 2.3 of 8; 2 of 24, of the model trained for every block, is 0.7.
        first_block = {model: depth if depth == 6 or model == "vanilla" else 1 for model in LOSSES}
        assert {(row["model"], row["min_exit"]) for row in frame.rows} == set(first_block.items())
        full = np.full(world.documents * world.tokens, VOCABULARY)
        assert len(local_rows(frame, quantity="head")) == len(LOSSES) * (3 if depth == 2 else 4)
        for quantity in ("head", "rule"):
            for row in local_rows(frame, quantity=quantity):
                layers = exits_of(world, row)
                if quantity == "rule":
                    rows = [counted_by_rule(row["head"], row["min_exit"], layer) for layer in layers]
                else:
                    rows = [
                        head_rows_multiplied(row["method"], row["head"], row["min_exit"], layer) for layer in layers
                    ]
                work = np.array(rows)
                assert row["value"] == pytest.approx(work.sum() / full.sum())
                assert row["ci_high"] - row["value"] == pytest.approx(half_width(world, work, full), abs=1e-9)
        for row in local_rows(frame, quantity="model"):
            depths = exits_of(world, row)  # the world's models cost a block a block, and a head like one block
            assert row["value"] == pytest.approx((depths.sum() + len(depths)) / (9 * len(depths)))
            assert row["ci_low"] <= row["value"] <= row["ci_high"]


def test_published_flops_are_scaled_to_the_local_unpruned_gate(database: Path, rows_of: Rows) -> None:
    frame = rows_of(database, figures, "prune_fig8_9_late_exit")

    def values(origin: str, quantity: str) -> dict[tuple[str, str], float]:
        chosen = [row for row in frame.rows if row["model"] == "vanilla" and row["origin"] == origin]
        return {(row["method"], row["head"]): row["value"] for row in chosen if row["quantity"] == quantity}

    gate = values("ours", "rule")["calm-softmax", "full"]
    draft, final = values("draft", "rule"), values("final", "rule")
    assert draft["contrastive-jsd", "pruned-adaptive-code"] == pytest.approx(gate * 8.72e8 / 3.78e11)
    assert final["contrastive-jsd", "pruned-adaptive-code"] == pytest.approx(gate * 59830100295.68 / 302187188060.16)
    assert values("draft", "score")["contrastive-jsd", "full"] == 98.12
    tuned = {row["value"] for row in frame.rows if (row["model"], row["origin"]) == ("weighted", "draft")}
    assert {91.11, 92.94} <= tuned


def test_cost_figures_draw_every_score_cost_and_speedup(database: Path, rows_of: Rows) -> None:
    for module, name, columns in (
        (prune_fig4_5_pruning, "prune_fig4_5_pruning", 2),
        (prune_fig8_9_late_exit, "prune_fig8_9_late_exit", 3),
    ):
        frame = rows_of(database, figures, name)
        figure = drawn(module, frame)
        assert len(figure.axes) == columns
        score, flops, *speed = figure.axes
        scores, kinds = local_rows(frame, quantity="score"), ("model", "head", "rule")
        assert sorted(bar.get_width() for bar in score.patches) == pytest.approx(sorted(r["value"] for r in scores))
        work = [row["value"] for row in frame.rows if row["origin"] == "ours" and row["quantity"] in kinds]
        assert sorted(x for x, _ in points(flops)) == pytest.approx(sorted(work))
        printed = sorted(row["value"] for row in frame.rows if row["origin"] != "ours" and row["quantity"] == "rule")
        assert [x for x, _ in points(flops, published=True)] == pytest.approx(printed)
        assert len(score.get_yticklabels()) == len(scores)
        assert "(blocks executed)" in texts(figure)
        for axes in speed:
            times = local_rows(frame, quantity="speedup")
            assert sorted(x for x, _ in points(axes)) == pytest.approx(sorted(row["value"] for row in times))
            assert len(axes.patches) == len(times)  # the noise floor of each


def test_rank_boxes_are_quantiles_over_tokens(database: Path, world: Any, rows_of: Rows) -> None:
    frame = rows_of(database, figures, "prune_fig1_rank")
    for row in frame.rows:
        at_block = ranks(world.documents * world.tokens)[:, row["block"] - 1]
        expected = np.quantile(at_block, [0.01, 0.25, 0.5, 0.75, 0.99], method="inverted_cdf")
        assert [row[name] for name in ("lowest", "lower", "median", "upper", "highest")] == expected.tolist()
        assert row["n"] == len(at_block)
    assert frame.distinct("series") == ["vanilla (last block)", "weighted (every block)"]
    (axes,) = drawn(prune_fig1_rank, frame).axes
    assert sorted(y for _, y in points(axes)) == sorted(frame.values("median"))
    boxes = sorted((box.get_y(), box.get_y() + box.get_height()) for box in axes.patches)
    assert boxes == sorted(zip(frame.values("lower"), frame.values("upper"), strict=True))


def test_margins_and_static_exits_share_a_panel(database: Path, world: Any, rows_of: Rows) -> None:
    frame = rows_of(database, figures, "prune_fig2_3_margin")
    for row in local_rows(frame, quantity="margin"):
        margin = beliefs_of(world, row["model"]).margin[:, int(row["block"]) - 1].astype(np.float32).astype(float)
        assert row["value"] == pytest.approx(margin.mean(), abs=1e-6)
        half = half_width(world, margin, np.ones_like(margin))
        assert row["ci_high"] - row["value"] == pytest.approx(half, abs=1e-6)
    scores = local_rows(frame, quantity="score", model="vanilla")
    assert [row["block"] for row in scores] == list(range(1, BLOCKS + 1))
    assert scores[-1]["value"] == max(row["value"] for row in scores)  # full depth
    read = [row for row in frame.rows if row["origin"] == "published"]
    assert {row["model"] for row in read} == {"vanilla"}
    assert sorted(row["block"] for row in read if row["quantity"] == "margin") == pytest.approx([1 / 3, 8 / 3, 8])
    figure = drawn(prune_fig2_3_margin, frame)
    lines = [place for axes in figure.axes for place in points(axes)]
    assert sorted(y for _, y in lines) == pytest.approx(sorted(row["value"] for row in frame.rows if row not in read))


@pytest.mark.parametrize("worst", [1, 2])
def test_finding_names_the_most_overconfident_block(worst: int, database: Path, rows_of: Rows) -> None:
    frame = rows_of(database, figures, "prune_fig2_3_margin")
    rows = [
        {**row, "value": 0.9 if row["quantity"] == "margin" else 50.0 if row["block"] == worst else 100.0}
        for row in local_rows(frame, model="vanilla")
        if row["quantity"] == "score" or row["block"] <= 2
    ]
    finding = prune_fig2_3_margin.finding(Frame(frame.columns, tuple(rows)))
    assert finding.startswith(f"Most overconfident: block {worst} of ")


def test_table_averages_over_the_late_blocks_and_over_all(database: Path, world: Any, rows_of: Rows) -> None:
    frame = rows_of(database, tables, "prune_table1_pruned_jsd")
    row = next(
        candidate
        for candidate in frame.rows
        if (candidate["model"], candidate["head"]) == ("vanilla", "pruned-adaptive-code")
    )
    depths = [
        exits_of(world, {"method": "contrastive-jsd", "model": "vanilla", "min_exit": block}).mean() / BLOCKS
        for block in FIRST_GATE_BLOCKS
    ]
    assert (row["late"], row["settings"]) == ("6", 3)
    assert (row["depth"], row["depth_std"]) == pytest.approx((depths[-1], 0))
    assert (row["depth_all"], row["depth_all_std"]) == pytest.approx((np.mean(depths), np.std(depths)))
    sql = """
        SELECT value FROM frontier WHERE execution = 'real' AND method = 'contrastive-jsd' AND model = $1
        AND task_label = $2 AND params ->> 'head' = 'pruned-adaptive-code'
    """
    with open_database(database) as opened:
        scores = opened.query(sql, [row["model"], row["task"]])["value"].to_pylist()
    assert (row["score_worst"], row["score_all"]) == pytest.approx((np.min(scores), np.mean(scores)))
    assert (row["published_depth"], row["published_score"]) == pytest.approx((19.31 / 24, 94.19))
    module = next(source.module for source in discover(tables) if source.name == "prune_table1_pruned_jsd")
    texts = {column.heading: column.cell(row).text for column in module.COLUMNS}
    assert texts["Published score"] == "94.2 ± 4.6"
    assert (texts["Trained"], texts["Pruning"]) == ("last block trained", "adaptive")


@pytest.mark.parametrize("names", [SWEEPS, COSTS])
def test_figures_of_one_kind_share_one_query(names: set[str]) -> None:
    """The queries differ only in the settings and the first block shown."""
    assert len({SQL[name].split("\nasked AS (", 1)[1] for name in names}) == 1


@pytest.mark.parametrize("name", sorted(SWEEPS | COSTS))
def test_queried_settings_are_those_named_by_the_figure(name: str) -> None:
    module = next(source.module for source in discover(figures) if source.name == name)
    names = module.GATES if hasattr(module, "GATES") else module.HEADS
    values = SQL[name].split("VALUES", 1)[1].split("\n),", 1)[0]
    assert values.count("('") == len(names)
    assert all(f"('{method}', '{head}'" in values for method, head in names)


def test_prune_suite_runs_the_settings_named_by_the_figures() -> None:
    settings = {
        (point.method.name, dict(point.params).get("head", "full"))
        for sweep in load_suite("prune").sweeps
        for point in sweep.points
    }
    named = (
        name
        for source in discover(figures)
        if source.name in SWEEPS | COSTS
        for name in getattr(source.module, "GATES", getattr(source.module, "HEADS", ()))
    )
    as_meant = {("contrastive-jsd", "pruned-decaying"), ("contrastive-jsd", "pruned-adaptive")}
    assert set(named) - as_meant <= settings
