"""``exitbench plan``: what a run would do."""

import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping

from exitbench.harness.cli.commands.options import run_options
from exitbench.harness.cli.commands.words import data_size, duration
from exitbench.harness.planning.contracts import tried
from exitbench.harness.planning.estimate import estimate_plan, of_group
from exitbench.harness.planning.memory import shortages
from exitbench.harness.planning.passes import passes
from exitbench.harness.planning.plan import Group, Plan
from exitbench.harness.planning.retry import Retry
from exitbench.harness.service.folders import Runs
from exitbench.harness.service.planning import plan_suite
from exitbench.harness.training.store import SHIPPED
from exitbench.results.analysis.history import Estimate, total
from exitbench.terminal import number_of, tell


def plan(arguments: Namespace) -> int:
    """Print every cell and its state, and what a run would take."""
    options = run_options(arguments)
    made, retry = plan_suite(options), options.retry
    estimates = estimate_plan(made, Runs(options.runs).spool, retry)
    tell("\n".join(_lines(made, retry, estimates)), sys.stdout)
    for line in shortages(made, retry):
        tell(f"On this machine: {line}", sys.stdout)
    for line in tried(made, retry, options.runs):
        tell(f"Contracts: {line}", sys.stdout)
    return 0


def _lines(plan: Plan, retry: Retry, estimates: dict[str, Estimate]) -> Iterator[str]:
    yield from plan.remarks
    together = [passes(group.to_run(retry)) for group in plan.groups]
    for group, own_passes in zip(plan.groups, together, strict=True):
        yield f"{group.model.name}: {_origin(group)}"
        yield from (f"  {remark}" for remark in group.remarks)
        if group.folder is None:
            yield from (f"  new     {label}" for label in group.labels)
        yield from _cell_lines(group, {one[0].cell.cell_id: len(one) for one in own_passes})
        if own := of_group(group, estimates):
            yield f"  to run: {_cost(own, len(own_passes))}"
    states = plan.states()
    counted = ", ".join(f"{count} {state}" for state, count in sorted(states.items()) if count)
    yield f"\n{number_of(states.total(), 'cell')}: {counted}. Runs with --retry {retry}: {plan.to_run_count(retry)}."
    if estimates:
        cost = _cost(list(estimates.values()), sum(map(len, together)))
        yield f"By earlier attempts, one after the other: {cost}."


def _cell_lines(group: Group, pass_cells: Mapping[str, int]) -> Iterator[str]:
    """A line a cell; the first of a pass says for how many it is (`harness.work.partners`)."""
    for cell in group.cells:
        cells = pass_cells.get(cell.item.cell.cell_id, 1)
        notes = [note for note in (cell.why, f"one pass for {cells} cells" if cells > 1 else "") if note]
        yield f"  {cell.state:7} {cell.item.label}" + (f"  ({'; '.join(notes)})" if notes else "")


def _cost(estimates: list[Estimate], n_passes: int) -> str:
    seconds, size_bytes, unknown = total(estimates)
    at_most = "at most " if any(estimate.at_most for estimate in estimates) else ""
    known = f"{at_most}{duration(seconds)}, {data_size(size_bytes)}"
    told = [
        f"{len(estimates)} cells in {n_passes} pass{'es' if n_passes > 1 else ''}" if n_passes < len(estimates) else "",
        known if unknown < len(estimates) else "time and size unknown",
        f"unknown for {unknown} of {len(estimates)} cells" if 0 < unknown < len(estimates) else "",
    ]
    return "; ".join(filter(None, told))


def _origin(group: Group) -> str:
    if group.model.hub is not None:
        where = "not on this machine (`run --hub` fetches it)" if group.folder is None else f"in {group.folder}"
        return f"checkpoint {group.model.hub}, {where}"
    if group.recipe is None:
        return f"checkpoint {group.folder}"
    if group.folder is None:
        files = " --data-dir DIR" if any(source.source == "local" for source in group.recipe.train) else ""
        command = f"exitbench train {group.recipe.name}{files}"
        return f"recipe {group.recipe.name}, not trained yet (`{command}`; a run does it first)"
    how = "shipped" if group.folder.is_relative_to(SHIPPED) else "trained"
    return f"recipe {group.recipe.name}, {how} in {group.folder}"
