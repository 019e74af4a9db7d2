"""Runs record how matrix products were computed (their forms), and int8 is a number format of cells."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest
from suite_runs import plan_suite, run_plan

from exitbench.errors import UserError
from exitbench.harness.cli.main import main
from exitbench.harness.engine.products import modules
from exitbench.harness.engine.products.choosing import SWITCH
from exitbench.harness.planning.plan import Plan
from exitbench.results.analysis.repeats import find
from exitbench.results.ingest.ingest import ingest
from exitbench.results.spool.attempts import Attempt, scan_spool

SUITE = """
schema = 1
name = "products"
seed = 3
[defaults]
dtype = "DTYPE"
[models.tiny]
path = "MODEL"
random_weights = true
OPTIONS
[tasks]
squad = { source = "builtin", limit = 2, max_new_tokens = 4 }
[[sweep]]
method = "static"
grid = { exit_layer = [2] }
kinds = ["quality"]
"""

Planned = Callable[..., Plan]


@pytest.fixture
def planned(worded_model: Path, tmp_path: Path) -> Planned:
    """Return a function that makes the plan of this file's `SUITE` in a given number format."""

    def plan(dtype: str = "float32", options: str = "") -> Plan:
        suite = SUITE.replace("MODEL", str(worded_model)).replace("OPTIONS", options).replace("DTYPE", dtype)
        return plan_suite(tmp_path, suite)

    return plan


def run(plan: Plan, spool: Path) -> list[Attempt]:
    """Run all cells of a plan in this process; return the attempts."""
    run_plan(plan, spool)
    return list(scan_spool(spool))


def ids(plan: Plan) -> list[str]:
    return [cell.item.cell.cell_id for group in plan.groups for cell in group.cells]


def test_product_forms_are_stored_per_attempt_and_do_not_change_cell_ids(
    planned: Planned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The chosen forms are stored with an attempt. They do not change the cell's id, but make times incomparable."""
    usual = run(planned(), tmp_path / "usual")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv(SWITCH, "measured")
    measured = run(planned(), tmp_path / "measured")
    assert {attempt.cell_id for attempt in usual} == {attempt.cell_id for attempt in measured}
    envs = [json.loads((attempt.path / "env.json").read_text()) for attempt in (*usual, *measured)]
    assert ["products" in env for env in envs] == [False, False, True, True]
    assert envs[-1]["products"] == envs[-2]["products"]
    assert {place.split()[0] for place in envs[-1]["products"]} == {"block", "residual", "head", "part", "source"}
    name = f"products.{next(iter(envs[-1]['products']))}"
    assert name in find(measured[0].attempt_id, tmp_path / "measured", tmp_path / "none").fields
    ingest(tmp_path / "usual", tmp_path / "x.duckdb")
    ingest(tmp_path / "measured", tmp_path / "x.duckdb")
    with duckdb.connect(str(tmp_path / "x.duckdb"), read_only=True) as connection:
        counts = "SELECT count(DISTINCT cell_id), count(DISTINCT comparable_id), count(DISTINCT hw_id) FROM attempt"
        assert connection.execute(counts).fetchall() == [(2, 2, 1)]
    assert main(["env", "show", "now", "--runs", str(tmp_path)]) == 0
    assert "products.1 thread, float32 (" in capsys.readouterr().out


def test_forms_of_the_hosted_engine_are_stored_with_attempts(
    planned: Planned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modules, "LEAST_NUMEL", 0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv(SWITCH, "measured")
    envs = [
        json.loads((each.path / "env.json").read_text())
        for each in run(planned("float32", 'engine = "hosted"'), tmp_path)
    ]
    assert [{place.split()[0] for place in env["products"]} for env in envs] == [{"module"}] * len(envs)


def test_int8_cells_have_separate_ids_and_conditions(planned: Planned, tmp_path: Path) -> None:
    int8 = planned("int8")
    assert {cell.item.cell.dtype for cell in int8.groups[0].cells} == {"int8"}
    assert not set(ids(int8)) & {*ids(planned("bfloat16")), *ids(planned("float32"))}
    run(int8, tmp_path / "spool")
    ingest(tmp_path / "spool", tmp_path / "x.duckdb")
    with duckdb.connect(str(tmp_path / "x.duckdb"), read_only=True) as connection:
        result = connection.execute("SELECT DISTINCT dtype, conditions FROM runs").fetchall()
    assert result == [("int8", "int8, cpu, batch 1")]


def test_int8_is_refused_on_the_hosted_engine(planned: Planned) -> None:
    with pytest.raises(UserError, match=r'models\.tiny.*dtype = "int8" is of the lean engine'):
        planned("int8", 'engine = "hosted"')
