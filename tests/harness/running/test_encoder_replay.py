"""Thresholds replayed from one run of an encoder: exit layers equal those of real runs at these thresholds."""

from __future__ import annotations

import json
from typing import Any

import pytest
from suite_runs import plan_suite, run_plan

from exitbench.methods.registry import get_method
from exitbench.results.database.connection import Database, open_database
from exitbench.results.ingest.ingest import ingest
from exitbench.results.queries import saved_query

SUITE = """
schema = 1
name = "replayed"
seed = 3
[defaults]
dtype = "float32"
batch_size = 4
kinds = ["quality"]
device = "cpu"
[models.joint]
recipe = "builtin-encoder-joint"
[models.last]
recipe = "builtin-encoder-last"
[tasks.sst2]
task = "sst2"
source = "builtin"
split = "test"
limit = 60
"""
SWEEPS: dict[str, tuple[str, list[float]]] = {
    "max-prob": ("threshold", [0.6, 0.7, 0.95]),
    "entropy": ("threshold", [0.6, 0.95]),
    "deebert": ("threshold", [0.05, 0.3, 0.6]),
    "fastbert": ("threshold", [0.05, 0.5]),
    "pabee": ("patience", [1, 3]),
}


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Database:
    """Return the results of two bundled encoders at several thresholds of each method."""
    folder = tmp_path_factory.mktemp("replayed")
    sweeps = [
        f'[[sweep]]\nmethod = "{method}"\ngrid = {{ {name} = {levels} }}\n' for method, (name, levels) in SWEEPS.items()
    ]
    run_plan(plan_suite(folder, SUITE + "".join(sweeps)), folder / "spool")
    assert ingest(folder / "spool", folder / "exitbench.duckdb").quarantined == ()
    return open_database(folder / "exitbench.duckdb")


def _runs(database: Database, model: str, method: str) -> list[dict[str, Any]]:
    """Return the runs of a method from the shallowest to the deepest; `level` is the threshold on the score's scale."""
    rows = database.query(
        "SELECT attempt_id, params, mean_exit_layer FROM frontier WHERE model = $model AND method = $method "
        "ORDER BY mean_exit_layer",
        {"model": model, "method": method},
    ).to_pylist()
    for row in rows:
        parts = get_method(method).from_params(json.loads(row["params"])).parts(6)
        row["level"] = parts.threshold.value(1, 1, 1)
    return rows


@pytest.mark.parametrize("method", SWEEPS)
@pytest.mark.parametrize("model", ["joint", "last"])
def test_replay_of_the_deepest_run_equals_real_exits_at_lower_thresholds(
    model: str, method: str, database: Database
) -> None:
    *others, deepest = _runs(database, model, method)
    assert others and deepest["mean_exit_layer"] > others[0]["mean_exit_layer"]
    for run in [*others, deepest]:
        replayed = database.query(
            "SELECT doc_key, block, label_id FROM sequence_replay "
            "WHERE attempt_id = $run AND from_level <= $level::FLOAT AND $level::FLOAT < below_level ORDER BY doc_key",
            {"run": deepest["attempt_id"], "level": run["level"]},
        ).to_pylist()
        real = database.query(
            "SELECT doc_key, exit_layer AS block, token_id AS label_id FROM token_trace WHERE attempt_id = $run "
            "ORDER BY doc_key",
            {"run": run["attempt_id"]},
        ).to_pylist()
        assert len(real) == 60 and replayed == real


def test_encoder_replay_query_equals_depth_and_score_of_a_real_run(database: Database) -> None:
    """The query replays the run with patience 3. At patience 1, it gives the numbers of the run with patience 1."""
    result = database.query(saved_query("encoder_replay").with_defaults()).to_pylist()
    assert {row["method"] for row in result} == set(SWEEPS) and {row["n"] for row in result} == {60}
    shallow = _runs(database, "joint", "pabee")[0]
    (row,) = (row for row in result if (row["model"], row["method"], row["level"]) == ("joint", "pabee", 1))
    assert row["mean_exit_layer"] == pytest.approx(shallow["mean_exit_layer"])
    sql = "SELECT value FROM frontier WHERE attempt_id = $run"
    (value,) = database.query(sql, {"run": shallow["attempt_id"]})["value"].to_pylist()
    assert row["right_percent"] == pytest.approx(value)
