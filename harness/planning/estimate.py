"""Estimate a plan's time and disk space: from earlier cells in the spool, or else from bytes per token."""

from collections.abc import Mapping
from pathlib import Path

from exitbench.harness.cells.job import CellJob
from exitbench.harness.planning.first_run import first_run_estimate, this_machine, typical_lengths
from exitbench.harness.planning.passes import passes
from exitbench.harness.planning.plan import ModelGroup, Plan
from exitbench.harness.planning.retry import Retry
from exitbench.harness.work.kinds import work_class
from exitbench.results.analysis.status import UNKNOWN, CellWorkload, Estimate, History


def estimate_plan(plan: Plan, spool: Path, retry: Retry) -> dict[str, Estimate]:
    """Return the estimated time and disk space of every cell to run, by cell id.

    A cell that shares a pass (run of the model) with others gets its share of it. On a GPU, the estimate is
    `UNKNOWN` if no similar cell has run.

    Args:
        plan: Plan of a suite.
        spool: Root of the spool.
        retry: Value of ``--retry``, which selects the cells to run by their states (`retry.RETRIED`).
    """
    to_run = [group.to_run(retry) for group in plan.groups]
    if not any(to_run):
        return {}
    history = History(spool)
    return {
        item.cell.cell_id: _estimate(item, plan, history, len(cells_of_pass))
        for items in to_run
        for cells_of_pass in passes(items)
        for item in cells_of_pass
    }


def of_group(group: ModelGroup, estimates: Mapping[str, Estimate]) -> list[Estimate]:
    """Return the estimates of those cells of a model that are to be run, in their order; `estimates` is by cell id."""
    ids = (planned.item.cell.cell_id for planned in group.cells)
    return [estimates[cell_id] for cell_id in ids if cell_id in estimates]


def _estimate(item: CellJob, plan: Plan, history: History, pass_cells: int) -> Estimate:
    cell = item.cell
    estimate = history.estimate(CellWorkload.from_json(cell.to_json(), pass_cells if pass_cells > 1 else None))
    if estimate is UNKNOWN and cell.device == "cpu":
        lengths = typical_lengths(cell, plan.corpora[item.data], work_class(item.data.task_object).generates)
        return first_run_estimate(cell, lengths, this_machine(), pass_cells)
    return estimate
