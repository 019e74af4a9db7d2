"""``device_map`` in a suite: reading, planning, requests and stored results of a model on several devices."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from suite_runs import plan_suite, worker_spec

from exitbench.errors import UserError
from exitbench.harness.cells.cell import Cell
from exitbench.harness.engine.checkpoints.device_maps import require_gpus
from exitbench.harness.planning.plan import Plan
from exitbench.harness.running import worker
from exitbench.results.database.connection import open_database
from exitbench.results.ingest.ingest import ingest

SUITE = """
schema = 1
name = "spread"
seed = 3
[defaults]
device = "DEVICE"
[models.usual]
path = "MODEL"
random_weights = true
engine = "hosted"
[models.spread]
path = "MODEL"
random_weights = true
OPTIONS
[tasks]
squad = { source = "builtin", limit = 2, max_new_tokens = 3 }
[[sweep]]
method = "static"
grid = { exit_layer = [1] }
kinds = ["quality"]
"""

Planned = Callable[..., Plan]


@pytest.fixture
def planned(worded_model: Path, tmp_path: Path) -> Planned:
    """Return a function that plans the suite with the given options for its second model."""

    def plan(options: str, device: str = "cpu") -> Plan:
        suite = SUITE.replace("MODEL", str(worded_model)).replace("OPTIONS", options).replace("DEVICE", device)
        return plan_suite(tmp_path, suite)

    return plan


def depth(plan: Plan) -> int:
    return plan.groups[0].cells[0].item.cell.model.blocks


def cells(plan: Plan) -> list[Cell]:
    return [group.cells[0].item.cell for group in plan.groups]


def test_device_map_is_planned_and_part_of_the_identity(planned: Planned) -> None:
    first = depth(planned("")) - 1
    plan = planned(f'device_map = {{ "cuda:0" = {first}, "cuda:1" = 1 }}', "cuda")
    usual, spread = cells(plan)
    assert plan.groups[1].remarks[-1] == (
        f"blocks 1-{first} on cuda:0, {first + 1}-{first + 1} on cuda:1; embeddings, final norm, LM head and gates on "
        "cuda:0"
    )
    assert spread.engine == "hosted", "the lean engine has one device"
    assert spread.identity == {**usual.identity, "device_map": [["cuda:0", first], ["cuda:1", 1]]}
    assert Cell.from_json(json.loads(json.dumps(spread.to_json()))) == spread


def test_auto_device_map_splits_blocks_by_gpu_memory(planned: Planned, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda index: type("Gpu", (), {"total_memory": (1 + index) * 2**33})
    )
    plan = planned('device_map = "auto"', "cuda")
    device_map = cells(plan)[1].device_map
    assert device_map is not None and [device for device, _ in device_map] == ["cuda:0", "cuda:1"]
    (_, first), (_, second) = device_map
    assert first + second == depth(plan) and first < second


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ('device_map = "balanced"', 'device_map: allowed: "auto", or a table'),
        ("device_map = {}", 'device_map: allowed: "auto", or a table'),
        ('device_map = { "cuda:0" = 0 }', "'cuda:0' = 0; allowed: "),
        ('device_map = { "cuda:0" = true }', "'cuda:0' = True; allowed: "),
        ('device_map = { "disk" = 1 }', "'disk' = 1; allowed: "),
        ("device_map = { cpu = 99 }", "device_map has 99 blocks; allowed: "),
        ('device_map = { "cuda:0" = 99 }', "device_map names cuda:0, and the suite's device is cpu"),
        ('device_map = { cpu = 1 }\nengine = "lean"', "the lean engine runs on one device"),
        ('device_map = "auto"', "shares blocks among GPUs; the suite's device is cpu"),
    ],
)
def test_invalid_device_maps_are_refused(planned: Planned, options: str, message: str) -> None:
    with pytest.raises(UserError) as raised:
        planned(options)
    assert message in str(raised.value) and "suite.toml" in str(raised.value)


def test_device_map_with_a_missing_gpu_is_refused() -> None:
    require_gpus("suite.toml:5", (("cuda:0", 1), ("cuda:1", 1)), 2)
    with pytest.raises(UserError, match="names cuda:1; torch sees 1 GPUs here"):
        require_gpus("suite.toml:5", (("cuda:0", 1), ("cuda:1", 1)), 1)


def test_device_map_is_stored_with_the_run(planned: Planned, tmp_path: Path) -> None:
    plan = planned(f"device_map = {{ cpu = {depth(planned(''))} }}")
    assert worker.run(worker_spec(plan.groups[1], tmp_path / "spool"), lambda event: None) == 0
    ingest(tmp_path / "spool", tmp_path / "exitbench.duckdb")
    answer = open_database(tmp_path / "exitbench.duckdb").query("SELECT DISTINCT device_map, conditions FROM runs")
    assert answer.to_pylist() == [
        {
            "device_map": f'[["cpu",{depth(plan)}]]',
            "conditions": f"float32, cpu, batch 1, hosted, {depth(plan)} blocks on cpu",
        }
    ]
