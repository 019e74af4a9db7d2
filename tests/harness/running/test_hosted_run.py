"""Cells of the hosted engine name it, and have other ids than those of the lean engine. Their answers are equal."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from suite_runs import plan_suite, run_plan

from exitbench.errors import UserError
from exitbench.harness.cells.cell import Cell
from exitbench.harness.planning.plan import Plan
from exitbench.results.database.connection import Database, open_database
from exitbench.results.ingest.ingest import ingest
from exitbench.results.maintenance.integrity import check

SUITE = """
schema = 1
name = "engines"
seed = 3
[models.usual]
path = "MODEL"
random_weights = true
[models.any]
path = "MODEL"
random_weights = true
engine = "hosted"
[tasks]
squad = { source = "builtin", limit = 3, max_new_tokens = 5 }
[timing]
documents = 2
max_rounds = 2
warm_up = 1
[[sweep]]
method = "static"
grid = { exit_layer = [2] }
kinds = ["quality", "timing"]
[[sweep]]
models = ["any"]
method = "max-prob"
grid = { head = ["pruned-fixed"] }
kinds = ["quality"]
[[sweep]]
models = ["any"]
method = "full"
kinds = ["probe"]
record = ["sublayers"]
"""


def planned(folder: Path, model: Path) -> Plan:
    return plan_suite(folder, SUITE.replace("MODEL", str(model)))


@pytest.fixture(scope="module")
def folder(worded_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run a suite of one checkpoint on both engines, and return its folder."""
    folder = tmp_path_factory.mktemp("engines")
    run_plan(planned(folder, worded_model), folder / "spool")
    ingest(folder / "spool", folder / "exitbench.duckdb")
    return folder


@pytest.fixture(scope="module")
def database(folder: Path) -> Database:
    return open_database(folder / "exitbench.duckdb")


@pytest.fixture(scope="module")
def cells(worded_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Cell]:
    plan = planned(tmp_path_factory.mktemp("planned"), worded_model)
    return {cell.item.label: cell.item.cell for group in plan.groups for cell in group.cells}


def rows(database: Database, sql: str) -> list[Any]:
    return [tuple(row.values()) for row in database.query(sql).to_pylist()]


def test_identity_names_only_the_hosted_engine(cells: dict[str, Cell]) -> None:
    lean, hosted = cells["usual/squad/full/quality"], cells["any/squad/full/quality"]
    assert (lean.engine, hosted.engine) == ("lean", "hosted")
    assert "engine" not in lean.identity
    assert hosted.identity == {**lean.identity, "engine": "hosted"}
    assert Cell.from_json(hosted.to_json()) == hosted
    assert Cell.from_json(lean.to_json()) == lean


def test_model_not_supported_by_the_lean_engine_is_planned_on_the_hosted_one(
    worded_model: Path, tmp_path: Path
) -> None:
    """A model with another activation is planned on the hosted engine. Requesting the lean engine is an error."""
    model = Path(shutil.copytree(worded_model, tmp_path / "model"))
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "dense_act_fn": "tanh"}))
    plan = planned(tmp_path, model)
    assert {cell.item.cell.engine for group in plan.groups for cell in group.cells} == {"hosted"}
    lean = SUITE.replace("MODEL", str(model)).replace("[models.any]", 'engine = "lean"\n[models.any]')
    with pytest.raises(UserError, match=r"activation is 'tanh'; allowed with engine = \"lean\": gelu, "):
        plan_suite(tmp_path, lean)


def test_lean_and_hosted_runs_give_equal_answers(database: Database) -> None:
    """Answers of both engines equal those of transformers."""
    answers: dict[str, list[Any]] = {}
    for engine in ("lean", "hosted"):
        answers[engine] = rows(
            database,
            "SELECT method, doc_key, output_ids FROM sample JOIN runs USING (attempt_id) "
            f"WHERE engine = '{engine}' AND kind = 'quality' ORDER BY ALL",
        )
    assert len(answers["lean"]) == 6
    assert answers["hosted"] == answers["lean"]


def test_timings_of_different_engines_are_not_comparable(database: Database) -> None:
    timed = rows(database, "SELECT engine, comparable_id FROM runs WHERE kind = 'timing'")
    assert sorted(engine for engine, _ in timed) == ["hosted", "lean"]
    assert len({comparable for _, comparable in timed}) == 2


def test_conditions_of_runs_and_frontier_name_the_hosted_engine(database: Database) -> None:
    """The column `conditions` names the engine, and appears above every figure and table of speed."""
    for view in ("runs", "frontier"):
        told = rows(database, f"SELECT DISTINCT model, conditions FROM {view} ORDER BY ALL")
        assert told == [("any", "float32, cpu, batch 1, hosted"), ("usual", "float32, cpu, batch 1")]


def test_cells_the_hosted_engine_cannot_run_are_skipped_with_a_reason(database: Database) -> None:
    skipped = rows(database, "SELECT method, kind, status, reason FROM failures ORDER BY method")
    assert [(method, kind, status) for method, kind, status, _ in skipped] == [
        ("full", "probe", "skipped"),
        ("max-prob", "quality", "skipped"),
    ]
    assert "known to the lean engine only" in skipped[0][3]
    assert "reads single rows of the LM head" in skipped[1][3]


def test_database_of_both_engines_passes_its_check(folder: Path) -> None:
    assert check(folder / "spool", folder / "exitbench.duckdb").problems == ()
