"""Group a plan's cells into passes, that is, runs of the model whose results belong to several cells.

No model is loaded. The groups are those that form if a single process runs all cells, and no cell waits for another.
Methods are compared without their fitted tensors. Methods fitted by different cells count as different.
"""

from collections.abc import Iterator, Sequence

from exitbench.harness.cells.job import CellJob
from exitbench.harness.work.partners import may_share, select_partners
from exitbench.methods.base import Parts
from exitbench.methods.registry import get_method


def passes(items: Sequence[CellJob]) -> list[tuple[CellJob, ...]]:
    """Return the cells of one model grouped by pass, in the order in which the passes begin."""
    kindred: dict[tuple[str | None, ...], list[CellJob]] = {}
    for item in items:
        kindred.setdefault(_group_key(item), []).append(item)
    begin = {item.cell.cell_id: number for number, item in enumerate(items)}
    groups = [group for candidates in kindred.values() for group in _divided(candidates)]
    return sorted(groups, key=lambda group: begin[group[0].cell.cell_id])


def _group_key(item: CellJob) -> tuple[str | None, ...]:
    """Return a key that is equal for all cells of a shared pass, so that not all pairs of cells are compared."""
    cell = item.cell
    if not may_share(item):
        return ("alone", cell.cell_id)
    if cell.kind == "replay":
        return (cell.kind, cell.probe_cell_id, cell.scores_cell_id)
    return (cell.kind, cell.method.name, cell.task.label, cell.fit_cell_id)


def _divided(items: Sequence[CellJob]) -> Iterator[tuple[CellJob, ...]]:
    remaining = list(items)
    while remaining:
        first, *later = remaining
        task, generation = first.cell.task, first.cell.generation
        shared = select_partners(first, later, task.documents * generation.max_new_tokens, _unfitted) if later else ()
        shared_pass = (first, *(other for other, _ in shared))
        assigned = {item.cell.cell_id for item in shared_pass}
        remaining = [item for item in remaining if item.cell.cell_id not in assigned]
        yield shared_pass


def _unfitted(item: CellJob) -> Parts:
    return get_method(item.cell.method.name).from_params(item.cell.method.params).parts(item.cell.model.blocks)
