"""A plan predicts which cells share a pass: a run in one process groups them in the same way."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
from suite_runs import plan_suite, worker_spec

from exitbench.harness.cli.commands.run import plan as plan_command
from exitbench.harness.planning.estimate import estimate_plan
from exitbench.harness.planning.passes import passes
from exitbench.harness.planning.plan import Plan
from exitbench.harness.running import worker
from exitbench.harness.work import partners

SUITE = """
schema = 1
name = "passes"
seed = 3
[models.tiny]
path = "{model}"
random_weights = true
[tasks]
wmt = {{ task = "wmt-en-fr", source = "builtin", limit = 2, max_new_tokens = 4 }}
squad = {{ source = "builtin", limit = 2, max_new_tokens = 4 }}
[fit]
documents = 3
[[sweep]]
method = "calm-softmax"
grid = {{ threshold = [0.001, 0.5], min_exit = [1, 2] }}
kinds = ["quality", "replay"]
[[sweep]]
method = "max-prob"
grid = {{ threshold = [0.001, 0.002, 0.5] }}
kinds = ["quality", "replay"]
[[sweep]]
method = "calm-classifier"
tasks = ["wmt"]
grid = {{ threshold = [0.4, 0.6], epochs = [1, 2] }}
kinds = ["quality", "replay"]
[[sweep]]
method = "static"
grid = {{ exit_layer = [1, 2] }}
kinds = ["quality"]
"""


@pytest.fixture
def plan(worded_model: Path, tmp_path: Path) -> Plan:
    """Return a plan with sweeps over thresholds, sweeps that share no pass, and replays of several methods."""
    return plan_suite(tmp_path, SUITE.format(model=worded_model))


def run(plan: Plan, root: Path) -> dict[str, int]:
    """Run the plan; return the number of cells of each shared pass, by the label of its first cell."""
    (group,) = plan.groups
    events: list[dict[str, Any]] = []
    spec = worker_spec(group, root / "spool")
    assert worker.run(spec, events.append) == 0
    assert {event["status"] for event in events if event["event"] == "end"} == {"ok"}
    waited = sum(event["cells"] - 1 for event in events if event["event"] == "start")
    shared = {event["label"]: event["cells"] for event in events if event["event"] == "start" and event["cells"] > 1}
    assert len(spec.cells) - waited == len(passes(spec.cells)), "as many passes as planned"
    return shared


def shared_passes(plan: Plan) -> dict[str, int]:
    (group,) = plan.groups
    return {one[0].label: len(one) for one in passes(group.to_run("failed")) if len(one) > 1}


def test_run_shares_passes_as_planned(plan: Plan, worded_model: Path, tmp_path: Path) -> None:
    expected = shared_passes(plan)
    sizes = sorted(expected.values())
    # by task: two softmax sweeps, max-prob's, replays of a probe; and of the classifier's two fits decodes and replays
    assert sizes == sorted(2 * [2, 2, 3, 7] + 2 * [2, 2])
    assert run(plan, tmp_path) == expected
    again = plan_suite(tmp_path, SUITE.format(model=worded_model))
    assert passes([]) == [] and shared_passes(again) == {}, "nothing is left"


def test_pass_row_limit_applies_in_plan_and_run(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partners, "PASS_ROWS", 2)
    expected = shared_passes(plan)
    assert [size for label, size in expected.items() if label.endswith("/quality")] == 8 * [2]
    assert run(plan, tmp_path) == expected


def test_plan_table_shows_shared_passes_and_the_basis_of_the_estimate(
    plan: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suite = tmp_path / "suite.toml"

    def table() -> str:
        asked = {"only": None, "limit": None, "kinds": None, "data_dir": None, "shard": (), "retry": "failed"}
        assert plan_command(Namespace(suite=suite, runs=tmp_path, **asked)) == 0
        return capsys.readouterr().out

    (group,) = plan.groups
    cells, n_passes = len(group.cells), len(passes(group.to_run("failed")))
    told = table()
    assert "min_exit=1/quality  (one pass for 2 cells)" in told and "one pass for 7 cells" in told
    assert f"to run: {cells} cells in {n_passes} passes; " in told and "unknown" not in told
    assert "By the model's bytes per token, since nothing like it has run here" in told
    run(plan, tmp_path)
    assert "one pass" not in table()
    # of what shared a pass before, the share; of probes by another seed as well
    result = plan_suite(tmp_path, suite.read_text().replace("seed = 3", "seed = 4"))
    told = table()
    assert f"{cells} cells in {n_passes} passes; " in told and "at most" not in told and "unknown" not in told
    assert not any(estimate.at_most for estimate in estimate_plan(result, tmp_path / "spool", "failed").values())
