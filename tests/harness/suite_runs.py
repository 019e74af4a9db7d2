"""Suites that are planned and run in this process, without the command line and its worker processes."""

from pathlib import Path

from exitbench.harness.cells.job import WorkerSpec
from exitbench.harness.planning.plan import ModelGroup, Plan, make_plan
from exitbench.harness.planning.suite import load_suite
from exitbench.harness.running import worker
from exitbench.results.spool.attempts import latest_status


def plan_suite(folder: Path, text: str, data_dir: Path | None = None) -> Plan:
    """Write a suite into a folder, and plan it with the folder's spool."""
    (folder / "suite.toml").write_text(text)
    return make_plan(load_suite(folder / "suite.toml"), folder / "spool", folder / "models", data_dir)


def worker_spec(group: ModelGroup, spool: Path, data_dir: Path | None = None) -> WorkerSpec:
    """Return the specification of a worker for a model's cells that are not done, as the worker's process reads it."""
    assert group.folder is not None
    spec = WorkerSpec(group.to_run("failed"), group.folder, data_dir, spool, "cpu", 1)
    return WorkerSpec.from_json(spec.to_json())


def run_plan(plan: Plan, spool: Path, data_dir: Path | None = None) -> None:
    """Run the cells of a plan that are not done, one model after another."""
    for group in plan.groups:
        assert worker.run(worker_spec(group, spool, data_dir), lambda event: None) == 0


def successful_attempts(plan: Plan, spool: Path) -> dict[str, Path]:
    """Return the folder of each cell's attempt by the cell's label; fail if a cell has not succeeded."""
    ended = latest_status(spool)
    results = {}
    for item in (cell.item for group in plan.groups for cell in group.cells):
        status = ended[item.cell.cell_id]
        assert status.status == "ok", f"{item.label}: {status.reason}"
        results[item.label] = status.path
    return results
