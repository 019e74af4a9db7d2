"""Columns next to scores and speed-ups: blocks run, lengths, timed documents, and parameters that had an effect."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import duckdb
import pytest
from stored_rows import query_rows

from exitbench.results.database.connection import Database, open_database
from exitbench.results.statistics.speed import speedup_interval


def _make(example: ModuleType, root: Path) -> None:
    """Write cells of full depth and of four settings on the same documents.

    The settings have, in turn, short answers, all blocks run, a larger batch, and a threshold without effect.
    """
    model, task = example.MODELS[1], example.TASKS[0]
    world, full = example.WORLD.beliefs(model, task), example.cell_json(model, task, example.FULL, "quality")
    example.WORLD.write_quality(root, full, task, world, example.exits_of(example.FULL, world))

    def write(method: Any, tokens: int, batch_size: int = 1, **overrides: Any) -> None:
        exits = example.exits_of(method, world)
        for kind in ("quality", "timing"):
            cell = example.cell_json(model, task, method, kind, full["cell_id"])
            identity = {**cell["identity"], "batch_size": batch_size}
            cell |= {"method": {**cell["method"], **overrides}, "batch_size": batch_size}
            cell |= {"identity": identity, "cell_id": example.content_id(identity)}
            if kind == "quality":
                example.WORLD.write_quality(root, cell, task, world, exits)
            else:
                example.WORLD.write_timing(root, cell, world, exits, tokens)

    write(example.Method("static", {"exit_layer": 1}), tokens=2)
    write(example.Method("static", {"exit_layer": 2}, "exact"), tokens=5)
    write(example.Method("static", {"exit_layer": 3}), tokens=5, batch_size=4)
    ruled = {"threshold": 0.9, "rule": "epsilon", "epsilon": 0.95, "levels": []}
    write(example.Method("gate", ruled), tokens=5, unused_params=["levels", "threshold"])


@pytest.fixture(scope="module")
def database(example: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    folder = tmp_path_factory.mktemp("frontier")
    _make(example, folder / "spool")
    with open_database(example.ingested(folder)) as opened:
        yield opened


def _frontier(database: Database) -> dict[str, dict[str, Any]]:
    """Return the rows of the frontier by exit layer, or by method if they have none."""
    rows = query_rows(database, "FROM frontier")
    return {str(json.loads(row["params"]).get("exit_layer", row["method"])): row for row in rows}


def test_answers_of_different_length_are_flagged_with_speedup_per_token(database: Database) -> None:
    rows = _frontier(database)
    short, same = rows["1"], rows["2"]
    assert (short["tokens_per_request"], short["full_tokens_per_request"], short["is_other_length"]) == (2, 5, True)
    assert (same["tokens_per_request"], same["is_other_length"]) == (5, False)
    # Blocks and an overhead of one for each token, and a prompt of two: 5 tokens of 4 blocks against 2 of 1.
    assert short["speedup"] == pytest.approx(27 / 6, rel=0.02)
    assert short["speedup_per_token"] == pytest.approx(5 / 2, rel=0.02)
    assert (rows["full"]["speedup_per_token"], rows["full"]["is_other_length"]) == (1, None)


def test_mean_blocks_run_exceeds_exit_layer_when_skipped_blocks_are_caught_up(database: Database) -> None:
    rows = _frontier(database)
    assert (rows["1"]["mean_exit_layer"], rows["1"]["mean_blocks_run"]) == (1, 1)
    assert (rows["2"]["mean_exit_layer"], rows["2"]["mean_blocks_run"], rows["2"]["blocks"]) == (2, 4, 4)


def test_realised_fraction_is_measured_over_ideal_decode_speedup(database: Database) -> None:
    for row in _frontier(database).values():
        if row["is_full_depth"]:
            assert (row["speedup_decode"], row["ideal_speedup_decode"], row["realised_fraction"]) == (1, 1, None)
        else:
            assert row["realised_fraction"] == row["speedup_decode"] / row["ideal_speedup_decode"]
            assert (row["timed_documents"], row["timed_rounds"]) == (8, 1)


def test_parameter_without_effect_is_omitted_from_runs(database: Database) -> None:
    params = database.query("SELECT params FROM runs WHERE method = 'gate'")["params"].to_pylist()
    assert [json.loads(text) for text in params] == [{"rule": "epsilon", "epsilon": 0.95}] * 2
    (requested_params, *_) = database.query("SELECT params FROM cell WHERE method = 'gate'")["params"].to_pylist()
    assert json.loads(requested_params)["threshold"] == 0.9


def test_speedup_above_the_ideal_is_a_qc_finding(changed: duckdb.DuckDBPyConnection) -> None:
    query = "SELECT kind, severity FROM qc WHERE rule = 'realised_above_ideal'"
    assert not changed.execute(query).fetchall()
    changed.execute("UPDATE metric SET value = value / 1.5 WHERE metric = 'ideal_speedup_decode'")
    findings = changed.execute(query).fetchall()
    assert findings and set(findings) == {("timing", 1)}


@pytest.fixture(scope="module")
def errors(database: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """Yield a copy of the database in which the headline metric is an error: lower is better."""
    path = Path(shutil.copy(database.path, tmp_path_factory.mktemp("errors")))
    with duckdb.connect(path) as connection:
        connection.execute("UPDATE metric SET lower_is_better = true WHERE role = 'headline'")
    with open_database(path) as opened:
        yield opened


def test_gain_is_positive_for_improvement_in_either_metric_direction(database: Database, errors: Database) -> None:
    for name, row in _frontier(database).items():
        assert (row["lower_is_better"], row["delta"], row["gain"]) == (
            False,
            row["value"] - row["full_value"],
            row["delta"],
        )
        worse = _frontier(errors)[name]
        assert (worse["lower_is_better"], worse["delta"], worse["gain"]) == (True, row["delta"], -row["delta"])


SPEEDS = (
    *("speedup", "speedup_low", "speedup_high", "aa_low", "aa_high"),
    *("speedup_per_token", "speedup_decode", "realised_fraction"),
)


@pytest.fixture
def changed(database: Database, tmp_path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield a connection to a copy of the database that a test may change."""
    with duckdb.connect(shutil.copy(database.path, tmp_path)) as connection:
        yield connection


def test_speed_status_says_whether_a_row_was_timed(database: Database) -> None:
    statuses = {name: row["speed_status"] for name, row in _frontier(database).items()}
    assert statuses.pop("full") == "not timed"
    assert set(statuses.values()) == {"timed"}


@pytest.mark.parametrize("metric", ["speedup", "aa_speedup"])
def test_speedups_are_null_when_not_measurable(metric: str, changed: duckdb.DuckDBPyConnection) -> None:
    changed.execute(f"UPDATE metric SET ci_high = 10.1 * ci_low WHERE metric = '{metric}'")
    rows = changed.execute(f"SELECT {', '.join(SPEEDS)} FROM frontier WHERE speed_status = 'not measurable'").fetchall()
    assert len(rows) == 4 and set(rows) == {(None,) * len(SPEEDS)}
    assert changed.execute("SELECT count(*) FROM frontier WHERE timed_documents IS NULL").fetchall() == [(1,)]


def test_unmeasurable_decoding_keeps_the_whole_request_speedup(changed: duckdb.DuckDBPyConnection) -> None:
    changed.execute("UPDATE metric SET ci_high = 10.1 * ci_low WHERE metric = 'speedup_decode'")
    query = (
        "SELECT count(speedup), count(speedup_per_token), count(speedup_decode) FROM frontier WHERE NOT is_full_depth"
    )
    assert changed.execute(query).fetchall() == [(4, 0, 0)]


def test_tenfold_interval_is_still_measurable(changed: duckdb.DuckDBPyConnection) -> None:
    changed.execute("UPDATE metric SET ci_low = 1, ci_high = 10 WHERE metric = 'speedup'")
    assert changed.execute("FROM frontier WHERE speed_status = 'not measurable'").fetchall() == []


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0.73, 1e17, False), (1.0, 10.0, True), (1.0, 10.1, False), (None, None, True), (1.4, 1.6, True)],
)
def test_interval_wider_than_tenfold_is_not_measurable(
    low: float | None, high: float | None, expected: bool, database: Database
) -> None:
    assert database.rows("SELECT is_measurable($1::DOUBLE, $2::DOUBLE)", [low, high])[1] == [(expected,)]


def test_timings_view_ignores_stalls_and_reproduces_the_speedup(
    changed: duckdb.DuckDBPyConnection,
) -> None:
    """Each document has ten readings per arm, and one of the method's ten stalls."""
    changed.execute("DELETE FROM timing_sample")
    changed.execute("""
        INSERT INTO timing_sample BY NAME
        SELECT attempt_id, 'd' || d AS doc_key, r AS round, 0 AS position, arm, twin, 'total' AS phase, 5 AS n_tokens,
            CASE WHEN arm = 'full' THEN 1000 * d + r ELSE 400 * d + r END
                * CASE WHEN r = 3 AND arm = 'method' THEN 20 ELSE 1 END AS wall_ns,
            100 * d AS cpu_ns
        FROM (SELECT attempt_id FROM run_names SEMI JOIN metric USING (attempt_id) WHERE method = 'gate') AS a,
            range(1, 9) AS docs(d), range(10) AS rounds(r),
            (VALUES ('full', false), ('full', true), ('method', false)) AS arms(arm, twin)
    """)
    rows = changed.execute("SELECT doc_key, arm, wall_ns FROM timing_sample WHERE NOT twin").fetchall()
    full, method = ([(doc, ns) for doc, arm, ns in rows if arm == name] for name in ("full", "method"))
    (ratio,) = changed.execute("SELECT sum(full_ms) / sum(ms) FROM timings WHERE arm = 'method'").fetchall()[0]
    assert ratio == pytest.approx(speedup_interval(full, method, seed=0).value, rel=1e-12)
    assert ratio == pytest.approx(36 * 1000 / 36 / 400, rel=0.01)
    assert changed.execute("SELECT DISTINCT cpu_ms FROM timings WHERE doc_key = 'd8'").fetchall() == [(800 / 1e6,)]
