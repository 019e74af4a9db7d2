"""Figures and tables of this project, not of a paper: queries agree with slow Python, and every point is drawn."""

import shutil
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import duckdb
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex

from exitbench.reports import figures, tables
from exitbench.reports.figures.ours import (
    agreement,
    between_random_and_oracle,
    calibration,
    cost_breakdown,
    depth_by_kind,
    error_by_kv_policy,
    faithfulness,
    frontier,
    realised_speedup,
    suitability,
)
from exitbench.reports.frame import Frame
from exitbench.reports.plotting.setting_grid import setting_grid, subsample
from exitbench.reports.plotting.style import COLOURS
from exitbench.reports.registry import discover
from exitbench.results.database.connection import open_database

RowsOf = Callable[[Path, ModuleType, str], Frame]
Rows = list[dict[str, Any]]

KEY = ("model", "task", "method", "params", "kv_policy")


def query_rows(database: Path, sql: str) -> Rows:
    with open_database(database) as opened:
        return list(Frame.query(opened, sql).rows)


def keyed(frame: Frame) -> dict[tuple[Any, ...], Any]:
    return {tuple(row[name] for name in KEY): row for row in frame.rows}


def drawn_x(axes: Axes) -> list[float]:
    """Return the positions of all markers except those of reference lines."""
    return [float(x) for line in axes.lines if line.get_marker() not in ("None", "|", ">") for x in line.get_xdata()]


def answers(database: Path) -> dict[tuple[Any, ...], Rows]:
    """Return the answers of real runs by setting, each next to full depth's answer."""
    rows = query_rows(
        database,
        "SELECT r.model, r.task_label AS task, r.method, r.params, r.kv_policy, a.doc_key, a.output_ids, "
        "f.output_ids AS full_ids, r.full_depth_cell_id "
        "FROM runs AS r JOIN answers AS a USING (attempt_id) "
        "JOIN answers AS f ON f.attempt_id = r.full_depth_attempt_id AND f.doc_key = a.doc_key "
        "WHERE NOT r.is_full_depth",
    )
    by_setting: dict[tuple[Any, ...], Rows] = defaultdict(list)
    for row in rows:
        by_setting[tuple(row[name] for name in KEY)].append(row)
    return by_setting


def test_faithfulness_excludes_scored_choices(choice_database: Path, rows_of: RowsOf) -> None:
    assert query_rows(choice_database, "SELECT * FROM answers JOIN runs USING (attempt_id) WHERE NOT is_full_depth")
    assert rows_of(choice_database, figures, "faithfulness").rows == ()


def test_faithfulness_finds_the_first_difference_and_whether_it_is_a_near_tie(
    small_database: Path, rows_of: RowsOf
) -> None:
    frame = rows_of(small_database, figures, "faithfulness")
    probed = query_rows(
        small_database,
        "SELECT r.full_depth_cell_id AS full, p.doc_key, p.position, p.p1[-1] AS p1, p.p2[-1] AS p2 "
        "FROM probe_trace AS p JOIN runs AS r USING (attempt_id)",
    )
    margins = {(row["full"], row["doc_key"], row["position"]): np.log(row["p1"] / row["p2"]) for row in probed}
    expected = answers(small_database)
    assert keyed(frame).keys() == expected.keys()
    for key, row in keyed(frame).items():
        before, ties = [], []
        for answer_row in expected[key]:
            pairs = list(zip(answer_row["output_ids"], answer_row["full_ids"], strict=True))
            first = next((place for place, (a, b) in enumerate(pairs) if a != b), None)
            before.append(len(pairs) if first is None else first)
            if first is not None:
                ties.append(margins[answer_row["full_depth_cell_id"], answer_row["doc_key"], first + 1] < 0.1)
        assert row["before"] == pytest.approx(
            sum(before) / sum(len(answer_row["full_ids"]) for answer_row in expected[key]), abs=1e-6
        )
        assert row["divergences"] == len(ties)
        assert row["near_tie"] == (pytest.approx(np.mean(ties), abs=1e-6) if ties else None)
    panels = faithfulness.plot(frame).axes
    assert len(drawn_x(panels[0])) + len(drawn_x(panels[3])) == len(frame.rows)


def test_random_baseline_is_interpolated_at_the_depth_of_the_setting(small_database: Path, rows_of: RowsOf) -> None:
    frame = rows_of(small_database, figures, "between_random_and_oracle")
    points = query_rows(small_database, "SELECT * FROM frontier WHERE execution = 'real'")
    assert {row["method"] for row in frame.rows} == {"static", "calm-softmax"}
    for row in frame.rows:
        by_method = {point["method"]: point for point in points if point["model"] == row["model"]}
        budgets = sorted(
            [
                (by_method["random"]["mean_exit_layer"], by_method["random"]["token_match"]),
                (by_method["full"]["mean_exit_layer"], 1.0),
            ]
        )
        x, y = zip(*budgets, strict=True)
        assert row["random_match"] == pytest.approx(np.interp(row["mean_exit_layer"], x, y))
        assert row["shallower"] == (row["mean_exit_layer"] < x[0])
        assert row["oracle_match"] == by_method["oracle"]["token_match"]
        gap = row["oracle_match"] - row["random_match"]
        share = (row["token_match"] - row["random_match"]) / gap if gap >= 0.05 else None
        assert row["share"] == (None if share is None else pytest.approx(share))
    panels = between_random_and_oracle.plot(frame).axes
    assert sorted(drawn_x(panels[0]) + drawn_x(panels[2])) == sorted(frame.values("token_match"))


def test_suitability_is_computed_from_probed_tokens(small_database: Path, rows_of: RowsOf) -> None:
    frame = rows_of(small_database, figures, "suitability")
    probes = query_rows(small_database, "SELECT * FROM probe_trace WHERE choice IS NULL")
    assert frame.rows
    for row in frame.rows:
        tokens = [probe for probe in probes if (probe["model"], probe["task_label"]) == (row["model"], row["task"])]
        matches = [[token_id == token["full_token_id"] for token_id in token["top1_id"]] for token in tokens]
        assert row["first_match"] == pytest.approx(np.mean([each.index(True) + 1 for each in matches]) / row["blocks"])
        assert row["agreement_mid"] == pytest.approx(np.mean([each[row["blocks"] // 2 - 1] for each in matches]))
        assert row["agreement_area"] == pytest.approx(np.mean(matches))
        lost = [False in each[each.index(True) :] for each in matches]
        assert row["share_lost"] == pytest.approx(np.mean(lost))
    panels = suitability.plot(frame).axes
    assert drawn_x(panels[0]) == frame.values("first_match")


def test_unmeasurable_realised_speedup_has_no_row(small_database: Path, rows_of: RowsOf, tmp_path: Path) -> None:
    shutil.copy(small_database, tmp_path / "wide.duckdb")
    with duckdb.connect(str(tmp_path / "wide.duckdb")) as connection:
        connection.execute("UPDATE metric SET ci_high = 11 * ci_low WHERE metric = 'speedup_decode'")
    assert rows_of(small_database, figures, "realised_speedup").rows
    assert not rows_of(tmp_path / "wide.duckdb", figures, "realised_speedup").rows


def test_realised_speedup_has_one_row_per_timed_setting(small_database: Path, rows_of: RowsOf) -> None:
    frame = rows_of(small_database, figures, "realised_speedup")
    timed = query_rows(
        small_database, "SELECT count(*) AS n FROM frontier WHERE speedup IS NOT NULL AND NOT is_full_depth"
    )
    assert len(frame.rows) == timed[0]["n"] > 0
    for row in frame.rows:
        assert row["speedup"] / row["ideal"] == pytest.approx(row["realised"])
        assert row["realised_low"] < row["realised"] < row["realised_high"]
    plane, strip = realised_speedup.plot(frame).axes
    assert not strip.patches  # full depth was timed against itself over whole requests, and this is about decoding
    plotted = [
        pair for line in plane.lines if line.get_marker() != "None" for pair in zip(*line.get_data(), strict=True)
    ]
    assert sorted(plotted) == sorted(zip(frame.values("ideal"), frame.values("speedup"), strict=True))
    assert len(drawn_x(strip)) == len(frame.rows)


@pytest.fixture
def kv_policies_database(world: Any, make_database: Callable[[Any], Path]) -> Path:
    """Return a database in which one gate was run with two KV policies, and replayed."""
    exact = replace(world.swept[1], kv_policy="exact")
    return make_database(replace(world, methods=(*world.methods, exact)))


def test_one_gate_is_shown_under_each_of_its_kv_policies(kv_policies_database: Path, rows_of: RowsOf) -> None:
    frame = rows_of(kv_policies_database, figures, "error_by_kv_policy")
    assert frame.distinct("policy") == ["exact", "simulated", "state-copy"]
    tokens = query_rows(
        kv_policies_database, "SELECT * FROM token_trace WHERE method = 'calm-softmax' AND kv_policy = 'exact'"
    )
    by_position = {row["position"]: row for row in frame.rows if row["policy"] == "exact" and row["position"]}
    assert set(by_position) == {token["position"] for token in tokens}
    for position, row in by_position.items():
        equal = [token["token_id"] == token["full_token_id"] for token in tokens if token["position"] == position]
        steps = {8: 2.365}[len(equal)] * np.std(equal, ddof=1) / np.sqrt(len(equal))
        half = 1 - 0.025 ** (1 / len(equal))  # of the share of other documents that may differ
        if steps > 0:
            share = np.mean(equal)
            slope = share * (1 - share)
            logit = np.log(share / (1 - share))
            half = max(
                share - 1 / (1 + np.exp(steps / slope - logit)), 1 / (1 + np.exp(-steps / slope - logit)) - share
            )
        assert (row["value"], row["n"]) == (pytest.approx(np.mean(equal)), len(equal))
        assert row["low"] == pytest.approx(max(0, np.mean(equal) - half), abs=1e-5)
    curve, match, quality = error_by_kv_policy.plot(frame).axes
    assert [len(axes.lines) for axes in (curve, match, quality)] == [3, 3, 3]  # the last: two, and full depth


def test_calibration_shows_each_level_and_the_choice(small_database: Path, rows_of: RowsOf) -> None:
    frame = rows_of(small_database, figures, "calibration")
    (expected,) = query_rows(small_database, "SELECT count(*) AS n, count_if(chosen) AS chosen FROM calibrations")
    whats = frame.values("what")
    assert (whats.count("step"), whats.count("held")) == (expected["n"], expected["chosen"])
    losses, p_values, held_out_panel = calibration.plot(frame).axes
    rings = [line for line in losses.lines if line.get_markersize() == 10]
    assert len(rings) == expected["chosen"]
    assert len(drawn_x(held_out_panel)) == expected["chosen"]
    assert len(drawn_x(losses)) == len(drawn_x(p_values)) == expected["n"] + expected["chosen"]


@pytest.fixture
def cost_parts_database(world: Any, make_database: Callable[[Any], Path]) -> Path:
    """Return a database whose runs have costs by part of the model."""
    parts = {"blocks": 0.5, "heads": 0.2, "gates": 0.0, "kv": 0.1, "verification": -0.05, "total": 0.75}
    return make_database(replace(world, costs={f"cost_{name}_bytes": at for name, at in parts.items()}))


def test_stacked_cost_parts_sum_to_the_total(cost_parts_database: Path, rows_of: RowsOf) -> None:
    frame = rows_of(cost_parts_database, figures, "cost_breakdown")
    row = frame.rows[0]
    assert [row[name] for name in ("blocks", "heads", "gates", "kv", "verification", "total")] == [
        0.5, pytest.approx(0.15), 0, 0.1, 0, 0.75
    ]  # fmt: skip
    (axes,) = cost_breakdown.plot(frame).axes
    ends = {round(bar.get_y(), 6): 0.0 for bar in axes.patches}
    for bar in axes.patches:
        ends[round(bar.get_y(), 6)] = max(ends[round(bar.get_y(), 6)], bar.get_x() + bar.get_width())
    assert list(ends.values()) == pytest.approx([0.75] * len(frame.rows))


def test_runs_without_cost_parts_are_not_measured(small_database: Path, rows_of: RowsOf) -> None:
    assert rows_of(small_database, figures, "cost_breakdown").rows == ()
    assert cost_breakdown.EMPTY.startswith("Not measured")


@pytest.fixture(scope="module")
def word_kinds_database(example: ModuleType, database_of: Callable[[Any], Path]) -> Path:
    """Return a database in which each model is probed twice; the second probe shifts all predictions by one token.

    Every document has two words of one kind.
    """

    def probe_again(world: Any, root: Path, model: Any, task: Any) -> None:
        full = world.cell(model, task, example.FULL, "quality")["cell_id"]
        was = world.beliefs(model, task)
        rolled = [np.roll(array, 1, axis=0) for array in (was.stable_from, was.top1_id, was.margin)]
        newer = world.cell(model, task, example.FULL, "probe", full, source="newer")
        world.write_probe(root, newer, example.Beliefs(*rolled))

    words = ("frame", "copy", "copy", "hop2", "hop1")
    omitted = frozenset(("timing", "scores", "fit", "calibration", "failures"))
    return database_of(
        replace(example.WORLD, tasks=example.TASKS[:1], kinds=words, omitted_kinds=omitted, also=probe_again)
    )


def newest_tokens(database: Path) -> dict[tuple[str, ...], Rows]:
    """Return the tokens of each model's newest probe on each task, by task, model and kind of word."""
    rows = query_rows(database, "SELECT *, task_label AS task, len(p1) AS blocks FROM probe_trace ORDER BY attempt_id")
    newest = {(row["task"], row["model"]): row["attempt_id"] for row in rows}
    tokens: dict[tuple[str, ...], Rows] = defaultdict(list)
    for row in rows:
        if row["attempt_id"] == newest[row["task"], row["model"]]:
            tokens[row["task"], row["model"], row["token_kind"]].append(row)
    return tokens


def test_depth_by_kind_equals_plain_loops(word_kinds_database: Path, rows_of: RowsOf) -> None:
    expected = newest_tokens(word_kinds_database)
    assert {key[2]: len(tokens) for key, tokens in expected.items()} == {"frame": 8, "copy": 16, "hop1": 8, "hop2": 8}
    shares: dict[tuple[str, ...], dict[int, float]] = defaultdict(dict)
    for row in rows_of(word_kinds_database, figures, "depth_by_kind").rows:
        key = row["task"], row["model"], row["token_kind"]
        shares[key][row["block"]] = row["share"]
        assert (row["n"], row["blocks"]) == (len(expected[key]), expected[key][0]["blocks"])
        for name in ("first_match", "stable_from"):
            documents: dict[str, list[int]] = defaultdict(list)
            for token in expected[key]:
                documents[token["doc_key"]].append(token[name])
            means = [np.mean(blocks) for blocks in documents.values()]
            assert row[f"mean_{name}"] == pytest.approx(np.mean(means), abs=1e-6)
            assert row[f"{name}_half"] == pytest.approx(2.365 * np.std(means, ddof=1) / np.sqrt(8), abs=1e-5)
    for key, tokens in expected.items():
        counts = Counter(token["first_match"] for token in tokens)
        assert shares[key] == {block: pytest.approx(n / len(tokens), abs=1e-6) for block, n in counts.items()}


def test_depth_by_kind_draws_marks_intervals_and_bars_for_every_kind(
    word_kinds_database: Path, rows_of: RowsOf
) -> None:
    frame = rows_of(word_kinds_database, figures, "depth_by_kind")
    panels = depth_by_kind.plot(frame).axes
    labels = [text.get_text() for text in panels[0].get_yticklabels()]
    assert sorted(labels) == ["copy (16)", "frame (8)", "hop1 (8)", "hop2 (8)"]
    places = {label.partition(" ")[0]: place for place, label in enumerate(labels)}
    for axes, ((model,), rows) in zip(panels, frame.groups("model"), strict=True):
        assert axes.get_title() == model
        blocks = rows.rows[0]["blocks"]
        assert axes.get_xticks()[-1] == blocks
        columns = {(round(bar.get_y() - 0.42), round(bar.get_x() + 0.42)): -bar.get_height() for bar in axes.patches}
        assert columns == {
            (places[row["token_kind"]], row["block"]): pytest.approx(0.84 * row["share"]) for row in rows.rows
        }
        for colour, name in ((COLOURS[0], "first_match"), (COLOURS[1], "stable_from")):
            marks = {
                round(line.get_ydata()[0]): line.get_xdata()[0] for line in axes.lines if line.get_color() == colour
            }
            lines = [
                line.get_segments()[0] for line in axes.collections if to_hex(line.get_color()[0]) == colour.lower()
            ]
            ends = {round(line[0, 1]): (line[0, 0], line[1, 0]) for line in lines}
            means = {places[row["token_kind"]]: (row[f"mean_{name}"], row[f"{name}_half"]) for row in rows.rows}
            assert marks == {place: mean for place, (mean, _) in means.items()}
            assert ends == {
                place: pytest.approx((max(1, mean - half), min(blocks, mean + half)))
                for place, (mean, half) in means.items()
            }


def of_kinds(*kinds: tuple[str, str, str, float], blocks: int = 8) -> Frame:
    """Return a frame with one row per (task, model, kind of word, mean first match), without intervals."""
    rows = [
        {
            "task": task, "model": model, "blocks": blocks, "token_kind": kind, "block": 1, "share": 1.0,
            "mean_first_match": mean, "first_match_half": None,
            "mean_stable_from": mean, "stable_from_half": None, "n": len(model),
        }
        for task, model, kind, mean in kinds
    ]  # fmt: skip
    return Frame(tuple(rows[0]), tuple(rows))


def test_kinds_are_ordered_by_relative_depth_with_numbered_ones_together() -> None:
    at_a = of_kinds(("t", "a", "copy", 2), ("t", "a", "hop2", 1), ("t", "a", "hop10", 3), ("t", "a", "frame", 1.5))
    of_four_times_the_blocks = of_kinds(("t", "b", "frame", 4), blocks=32)
    assert depth_by_kind.kinds_in_order(at_a.rows) == ["frame", "copy", "hop2", "hop10"]
    assert depth_by_kind.kinds_in_order((*at_a.rows, *of_four_times_the_blocks.rows))[0] == "frame"
    late = of_kinds(("t", "b", "frame", 31), blocks=32)
    assert depth_by_kind.kinds_in_order((*at_a.rows, *late.rows)) == ["copy", "hop2", "hop10", "frame"]


def test_sixth_model_starts_a_new_panel_row_and_unprobed_panels_stay_empty() -> None:
    frame = of_kinds(*(("t", model, "copy", 2) for model in ("a", "b", "c", "d", "e", "six")), ("u", "a", "frame", 1))
    panels = depth_by_kind.plot(frame).axes
    assert len(panels) == 2 * 5 + 2 * 1
    assert [axes.get_title() for axes in panels] == ["a", "b", "c", "d", "e", *[""] * 5, "six", ""]
    assert [len(axes.lines) for axes in panels] == [2] * 6 + [0] * 4 + [2, 0]
    assert [panels[place].get_yticklabels()[0].get_text() for place in (0, 5)] == ["copy (1–3)", "frame (1)"]
    assert not any(axes.collections for axes in panels), "an interval that is not known is not drawn"


def test_qc_findings_are_sorted_by_severity_with_run_counts() -> None:
    sql = next(source.sql for source in discover(tables) if source.name == "qc")
    findings = [
        (1, "limited", "part", "b"),
        (3, "throttled", "hot", "a"),
        (1, "limited", "part", "a"),
        (2, "x", "y", "a"),
    ]
    with duckdb.connect() as connection:
        connection.execute(
            "CREATE TABLE qc (severity INTEGER, rule VARCHAR, message VARCHAR, model VARCHAR, kind VARCHAR, "
            "task_label VARCHAR, method VARCHAR, cell_id VARCHAR)"
        )
        for finding in findings:
            connection.execute("INSERT INTO qc VALUES (?, ?, ?, ?, 'timing', 't', 'm', 'c')", list(finding))
        rows = connection.sql(sql).to_arrow_table().to_pylist()
    assert [(row["severity"], row["rule"], row["runs"], row["model"]) for row in rows] == [
        (3, "throttled", 1, "a"), (2, "x", 1, "a"), (1, "limited", 2, "a, b")
    ]  # fmt: skip


def test_subsample_keeps_evenly_spaced_settings_of_every_method() -> None:
    lines = [("calm", f"{number:02}", "") for number in range(30)] + [("static", "4", "")]
    assert subsample(lines, 31) == lines
    few = subsample(lines, 5)
    assert few == [("calm", "00", ""), ("calm", "10", ""), ("calm", "19", ""), ("calm", "29", ""), ("static", "4", "")]


def test_ten_of_many_models_are_drawn_and_the_others_counted(small_database: Path, rows_of: RowsOf) -> None:
    frame = rows_of(small_database, figures, "exit_histogram")
    many = [{**row, "model": f"copy {number:02}"} for number in range(40) for row in frame.rows[: 2 + number % 2]]
    figure, models = setting_grid(replace(frame, rows=(*frame.rows, *many)), ["squad"])
    assert len(models) == 10
    notes = [text.get_text() for axes in figure.axes for text in axes.texts]
    others = 40 + len(frame.distinct("model")) - 10
    assert f"{others} more models in the data" in notes


def test_frontier_quality_rises_as_an_error_metric_falls(
    small_database: Path, as_errors: Callable[[Path], Path], rows_of: RowsOf
) -> None:
    rows = rows_of(as_errors(small_database), figures, "frontier").rows
    assert max(row["quality"] for row in rows) == 1 > min(row["quality"] for row in rows)
    assert {row["quality"] for row in rows if row["is_full_depth"]} == {1}
    assert all(row["quality_low"] <= row["quality"] <= row["quality_high"] for row in rows)


def test_wide_intervals_do_not_stretch_the_frontier_axis(small_database: Path, rows_of: RowsOf) -> None:
    frame = rows_of(small_database, figures, "frontier")
    wide = [
        row if row["speedup"] is None else {**row, "speedup_low": 0.01, "speedup_high": 500.0} for row in frame.rows
    ]
    drawn = frontier.plot(replace(frame, rows=tuple(wide)))
    plotted = [row["speedup"] for row in frame.rows if row["speedup"] is not None]
    for low, high in (axes.get_xlim() for axes in drawn.axes[1::2] if axes.axison):
        assert 0.5 * min(plotted) < low and high < 2 * max(plotted)


def choices_of(folder: Path, example: ModuleType, choice_example: ModuleType, **options: bool) -> Path:
    choice_example.write_choices(example, folder / "spool", with_replays=True, **options)
    return Path(example.ingested(folder))


@pytest.fixture(scope="module")
def choices_database(example: ModuleType, choice_example: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a database of nine documents with three choices each: full depth, two thresholds and their replays; one is
    timed.
    """
    return choices_of(tmp_path_factory.mktemp("choices"), example, choice_example)


def chosen_by_run(database: Path) -> dict[tuple[str, str], dict[str, Rows]]:
    """Return the rows of each document's choices, by parameters and execution of the run."""
    by_setting: dict[tuple[str, str], dict[str, Rows]] = defaultdict(lambda: defaultdict(list))
    for row in query_rows(database, "SELECT * FROM choice_answers ORDER BY doc_key, choice"):
        by_setting[row["params"], row["execution"]][row["doc_key"]].append(row)
    return by_setting


def test_agreement_on_given_texts_compares_chosen_answers(choices_database: Path, rows_of: RowsOf) -> None:
    frame = rows_of(choices_database, figures, "agreement")
    expected = chosen_by_run(choices_database)
    assert {(row["params"], row["execution"]) for row in frame.rows} == expected.keys()
    tokens = query_rows(choices_database, "SELECT * FROM token_trace")
    for row in frame.rows:
        key = row["params"], row["execution"]
        same = [
            any(choice["is_chosen"] and choice["full_is_chosen"] for choice in answer_choices)
            for answer_choices in expected[key].values()
        ]
        layers = [token["exit_layer"] for token in tokens if (token["params"], token["execution"]) == key]
        assert (row["match"], row["of_choices"]) == (pytest.approx(np.mean(same)), True)
        assert row["depth"] == pytest.approx(np.mean(layers) / 4)
    assert len({row["match"] for row in frame.rows}) > 2, "or nothing is told apart"
    (axes,) = agreement.plot(frame).axes
    assert axes.get_ylabel() == "choices equal to full depth's"
    assert " of full depth's choices; replays" in agreement.finding(frame)


def test_exit_histogram_includes_scored_tokens(choices_database: Path, rows_of: RowsOf) -> None:
    expected: dict[tuple[str, int], int] = defaultdict(int)
    for token in query_rows(choices_database, "SELECT * FROM token_trace WHERE execution = 'real'"):
        expected[token["params"], token["exit_layer"]] += 1
    frame = rows_of(choices_database, figures, "exit_histogram")
    assert {(row["params"], row["exit_layer"]): row["tokens"] for row in frame.rows} == expected


def test_figures_leave_choices_of_random_weights_out(
    example: ModuleType, choice_example: ModuleType, rows_of: RowsOf, tmp_path: Path
) -> None:
    database = choices_of(tmp_path, example, choice_example, random_weights=True)
    assert query_rows(database, "SELECT count(*) AS n FROM choice_answers")[0]["n"] == 5 * 27
    for name in ("agreement", "exit_histogram", "frontier"):
        assert rows_of(database, figures, name).rows == ()
