"""Suites with exit heads are planned only for checkpoints that have heads, and run from plan to spool."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file
from suite_runs import plan_suite, run_plan

from exitbench.errors import UserError
from exitbench.harness.cli import main as cli
from exitbench.harness.engine.checkpoints.exit_head_files import new_exit_heads, save_exit_heads
from exitbench.harness.engine.checkpoints.files import EXIT_HEADS_FILE
from exitbench.harness.engine.checkpoints.loading import load_checkpoint
from exitbench.harness.planning.plan import Plan
from exitbench.results.spool.attempts import latest_status

SUITE = """
schema = 1
name = "heads"
seed = 3
[models.tiny]
path = "{model}"
random_weights = true
[tasks]
wmt = {{ task = "wmt-en-fr", source = "builtin", limit = 2, max_new_tokens = 5 }}
[fit]
documents = 6
[[sweep]]
method = "heads"
{parameters}
kinds = [{kinds}]
[[sweep]]
method = "full"
query = {{ temperature = [1.0] }}
kinds = ["quality"]
"""
Planner = Callable[..., Plan]


def write_heads(folder: Path, blocks: tuple[int, ...] = (1, 3)) -> None:
    """Store random linear exit heads for some blocks of a checkpoint."""
    model = load_checkpoint(folder).model
    norm, head = model.weights.final_norm.weight, model.weights.lm_head.weight
    generator = torch.Generator().manual_seed(0)
    size = (model.d_model, model.vocab_size)
    tensors = new_exit_heads("linear", blocks, *size, "rms", "scratch", norm, None, head, 8, generator)
    save_exit_heads(folder / EXIT_HEADS_FILE, "linear", {name: 3 * tensor for name, tensor in tensors.items()})


@pytest.fixture
def folder(worded_model: Path, tmp_path: Path) -> Path:
    """Return the folder of a checkpoint without exit heads, which a test may change."""
    return Path(shutil.copytree(worded_model, tmp_path / "model"))


@pytest.fixture
def planner(folder: Path, tmp_path: Path) -> Planner:
    def plan(parameters: str = "", kinds: str = '"quality"') -> Plan:
        return plan_suite(tmp_path, SUITE.format(model=folder, parameters=parameters, kinds=kinds))

    return plan


def test_checkpoint_without_exit_heads_is_refused_at_planning(planner: Planner) -> None:
    with pytest.raises(UserError) as caught:
        planner()
    message = str(caught.value)
    assert "suite.toml" in message
    assert "'heads' needs a checkpoint with trained exit heads" in message
    assert message.endswith("The model is 'tiny'.")


def test_plan_without_exit_heads_exits_with_2(
    planner: Planner, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError):
        planner()
    assert cli.main(["plan", str(tmp_path / "suite.toml"), "--runs", str(tmp_path / "runs")]) == 2
    printed = capsys.readouterr().err
    assert "needs a checkpoint with trained exit heads" in printed and "Traceback" not in printed


def test_exit_block_without_a_head_is_refused(planner: Planner, folder: Path) -> None:
    write_heads(folder)
    planner("grid = { exit_blocks = [[1], [1, 3]] }")
    with pytest.raises(
        UserError, match=r"heads\.exit_blocks has 2, where the checkpoint has no exit head; allowed: 1, 3"
    ):
        planner("grid = { exit_blocks = [[2]] }")


def test_other_exit_heads_change_the_cell_ids(planner: Planner, folder: Path) -> None:
    results = []
    for blocks in ((1, 3), (2,)):
        write_heads(folder, blocks)
        (group,) = planner().groups
        results.append({cell.item.cell.cell_id for cell in group.cells})
    assert results[0].isdisjoint(results[1])


def test_quality_replay_scores_and_fit_cells_with_exit_heads_succeed(
    planner: Planner, folder: Path, tmp_path: Path
) -> None:
    write_heads(folder)
    plan = planner('grid = { threshold = [0.4], rule = ["constant", "epsilon"] }', '"quality", "replay"')
    run_plan(plan, tmp_path / "spool")
    statuses = latest_status(tmp_path / "spool")
    items = [cell.item for cell in plan.groups[0].cells]
    for item in items:
        status = statuses[item.cell.cell_id]
        assert status.status == "ok", f"{item.label}: {status.reason}"
        if item.cell.kind == "scores":
            scores = pq.read_table(status.path / "scores.parquet").to_pylist()
            asked = {tuple(place for place, score in enumerate(row["score"], 1) if score == score) for row in scores}
            assert asked == {(1, 3)}
        if item.cell.kind == "fit":
            scores = load_file(status.path / "fitted.safetensors")["epsilon_scores"]
            assert len(scores) == 3 and scores[1].isnan().all() and not scores[[0, 2]].isnan().any()
        if item.cell.kind in ("quality", "replay") and item.cell.method.name == "heads":
            layers = {row["exit_layer"] for row in pq.read_table(status.path / "tokens.parquet").to_pylist()}
            assert layers <= {1, 3, 4}
    assert {item.cell.kind for item in items} == {"quality", "replay", "scores", "fit", "probe"}
    sampled = next(item.cell for item in items if item.cell.method.params.get("temperature") == 1.0)
    greedy = next(item.cell for item in items if item.cell.method.name == "full" and item.cell.kind == "quality")
    assert sampled.full_depth_cell_id == greedy.cell_id
