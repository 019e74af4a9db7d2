"""Fixture of a finished suite, from which tests of stored results start."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from suite_runs import plan_suite, worker_spec

from exitbench.harness.running import worker
from exitbench.results.spool.attempts import latest_status

SUITE = """
schema = 1
name = "again"
seed = 3
[models.tiny]
path = "{model}"
random_weights = true
[tasks]
squad = {{ task = "squad", source = "builtin", limit = 4, max_new_tokens = 6 }}
[timing]
documents = 2
max_rounds = 1
[[sweep]]
method = "calm-softmax"
grid = {{ threshold = [0.002] }}
kinds = ["quality", "timing", "replay"]
[fit]
documents = 4
[[calibration]]
method = "calm-softmax"
levels = [0.5, 0.1]
consistency = "textual"
delta = 0.5
epsilon = 0.5
documents = 4
[[sweep]]
method = "calm-classifier"
kinds = ["quality"]
[[sweep]]
method = "random"
grid = {{ mean_exit = [2.0] }}
kinds = ["quality"]
"""


@pytest.fixture(scope="session")
def finished(worded_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of runs with a finished suite. Its log names the checkpoint, as the log of `run` does."""
    runs = tmp_path_factory.mktemp("again")
    (group,) = plan_suite(runs, SUITE.format(model=worded_model)).groups
    spec = worker_spec(group, runs / "spool")
    (runs / "logs").mkdir()
    (runs / "logs" / "one.json").write_text(spec.to_json())
    assert worker.run(spec, lambda event: None) == 0
    assert {status.status for status in latest_status(runs / "spool").values()} == {"ok"}
    return runs


@pytest.fixture
def runs(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "runs"))
