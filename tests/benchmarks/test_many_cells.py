"""Suite of 2,000 tiny cells: planning, reading the spool, and the overhead per cell.

Run by `nox -s perf`. The goals are 2 s to plan, 1 s to read the spool, and 50 ms per cell.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from goals import Recorder
from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

from exitbench.harness.cells.job import CellJob, WorkerSpec
from exitbench.harness.planning.estimate import estimate_plan
from exitbench.harness.planning.plan import Plan, make_plan
from exitbench.harness.planning.suite import load_suite
from exitbench.harness.running import worker
from exitbench.harness.running.environment import environment_and_hardware
from exitbench.harness.work.sharing import SharedPasses
from exitbench.results.analysis.status import spool_status
from exitbench.results.spool.attempts import AttemptWriter
from exitbench.results.spool.schema import TABLES
from exitbench.tasks.builtin.corpus import build_tokenizer

THRESHOLDS, WORKED = 1_000, 50
PLAN_S, STATUS_S, CELL_MS = 2.0, 1.0, 50.0
SUITE = """
schema = 1
name = "many"
seed = 7
[models.tiny]
path = "{checkpoint}"
random_weights = true
[tasks]
squad = {{ task = "squad", source = "builtin", limit = 4, max_new_tokens = 4 }}
[[sweep]]
method = "calm-softmax"
grid = {{ threshold = {thresholds} }}
kinds = ["quality", "timing"]
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a suite, its checkpoint, and a spool with one attempt per cell."""
    folder = tmp_path_factory.mktemp("many")
    checkpoint = folder / "checkpoint"
    tokenizer, shape = build_tokenizer(), {"d_model": 16, "d_kv": 4, "d_ff": 32, "num_heads": 4, "num_layers": 2}
    config = T5Config(vocab_size=tokenizer.get_vocab_size(), decoder_start_token_id=0, eos_token_id=1, **shape)
    T5ForConditionalGeneration(config).save_pretrained(checkpoint)
    special = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(checkpoint)
    thresholds = [step / THRESHOLDS for step in range(THRESHOLDS)]
    (folder / "many.toml").write_text(SUITE.format(checkpoint=checkpoint, thresholds=thresholds))
    env = environment_and_hardware(1)
    for item in items(plan(folder)):
        with AttemptWriter(folder / "spool", item.cell.to_json(), env) as writer:
            writer.write("metrics", METRIC)
            writer.finish("ok")
    return folder


METRIC = pa.Table.from_pylist(
    [
        {"metric": "f1", "metric_version": "1", "role": "headline", "value": 50.0, "n": 4}
        | {"ci_low": 1.0, "ci_high": 99.0, "ci_method": "b"}
    ],
    schema=TABLES["metrics"],
)


def plan(runs: Path) -> Plan:
    return make_plan(load_suite(runs / "many.toml"), runs / "spool", runs / "models", None)


def items(plan: Plan) -> tuple[CellJob, ...]:
    return tuple(cell.item for group in plan.groups for cell in group.cells)


def test_plan(benchmark: Any, runs: Path, record: Recorder) -> None:
    result = benchmark.pedantic(plan, (runs,), rounds=5)
    assert result.states()["done"] == 2 * THRESHOLDS + 1
    record(benchmark.stats.stats.median, "s", at_most=PLAN_S)


def test_plan_of_stale_cells(benchmark: Any, runs: Path, record: Recorder) -> None:
    suite = runs / "many.toml"
    text = suite.read_text()
    try:
        suite.write_text(text.replace("seed = 7", "seed = 8"))
        result = benchmark.pedantic(plan, (runs,), rounds=5)
    finally:
        suite.write_text(text)
    assert result.states()["stale"] == 2 * THRESHOLDS + 1
    record(benchmark.stats.stats.median, "s", at_most=PLAN_S)


def test_estimate(benchmark: Any, runs: Path) -> None:
    result = plan(runs)
    estimates = benchmark.pedantic(estimate_plan, (result, runs / "spool", "all"), rounds=5)
    assert all(estimate.seconds is not None for estimate in estimates.values())


def test_plan_command(benchmark: Any, runs: Path, record: Recorder) -> None:
    benchmark.pedantic(command, ("plan", str(runs / "many.toml"), "--runs", str(runs)), rounds=3)
    record(benchmark.stats.stats.median, "s", at_most=PLAN_S)


def test_status(benchmark: Any, runs: Path, record: Recorder) -> None:
    result = benchmark.pedantic(spool_status, (runs / "spool",), rounds=5)
    assert result.counts["ok"] == 2 * THRESHOLDS + 1
    record(benchmark.stats.stats.median, "s", at_most=STATUS_S)


def test_status_command(benchmark: Any, runs: Path, record: Recorder) -> None:
    benchmark.pedantic(command, ("status", "--runs", str(runs)), rounds=3)
    record(benchmark.stats.stats.median, "s", at_most=STATUS_S)


def test_worker_without_a_model(
    benchmark: Any,
    runs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    record: Recorder,
) -> None:
    cells = items(plan(runs))[:WORKED]
    events: list[dict[str, Any]] = []
    spools = (tmp_path / f"spool-{number}" for number in itertools.count())

    def fresh() -> tuple[tuple[Any, ...], dict[str, Any]]:
        spec = WorkerSpec(cells, runs / "checkpoint", None, next(spools), "cpu", torch.get_num_threads())
        return (spec, events.append), {}

    monkeypatch.setattr(worker, "LoadedModel", NoModel)
    monkeypatch.setattr(worker, "work_of", NoWork)
    monkeypatch.setattr(worker, "PASSES", dict.fromkeys(("quality", "timing", "probe"), one_metric))
    benchmark.pedantic(worker.run, setup=fresh, rounds=5)
    assert {event["status"] for event in events if event["event"] == "end"} == {"ok"}
    cell_ms = 1e3 * benchmark.stats.stats.median / len(cells)
    record(cell_ms, "ms", at_most=CELL_MS, note="a cell", cells=len(cells))


class NoModel:
    """Stub of a model for the worker, without a checkpoint."""

    products = None

    def __init__(self, spec: WorkerSpec) -> None:
        self.spool, self.passes = spec.spool, SharedPasses()


class NoWork:
    """Stub of a cell's work for the worker."""

    full_parts = None

    def __init__(self, model: NoModel, item: CellJob) -> None:
        self.model, self.item = model, item

    def units(self) -> int:
        return self.item.cell.task.documents

    def cell_record(self) -> dict[str, Any]:
        return self.item.cell_record()

    def require_runnable(self, parts: None) -> None:
        pass


def one_metric(work: NoWork, writer: AttemptWriter, on_progress: Callable[[int], None]) -> None:
    for done in range(work.units()):
        on_progress(done + 1)
    writer.write("metrics", METRIC)


def command(*arguments: str) -> None:
    words = [sys.executable, "-m", "exitbench.harness.cli.main", *arguments]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
