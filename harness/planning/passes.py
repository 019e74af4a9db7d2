"""Which cells of a plan one pass sees to, if one process runs them all and none has anything to wait for.

Nothing is loaded or fitted for that: methods are compared as they are without what is fitted, and those that other
cells fit count as differing.
"""

from collections.abc import Iterator, Sequence

from exitbench.harness.cells.job import CellJob
from exitbench.harness.work.partners import may_share, sharing
from exitbench.methods.base import Parts
from exitbench.methods.registry import get_method


def passes(items: Sequence[CellJob]) -> list[tuple[CellJob, ...]]:
    """Return the cells of one model by the pass that sees to them, in the order in which passes begin."""
    kindred: dict[tuple[str | None, ...], list[CellJob]] = {}
    for item in items:
        kindred.setdefault(_kin(item), []).append(item)
    begin = {item.cell.cell_id: number for number, item in enumerate(items)}
    found = [one for own in kindred.values() for one in _divided(own)]
    return sorted(found, key=lambda one: begin[one[0].cell.cell_id])


def _kin(item: CellJob) -> tuple[str | None, ...]:
    """What cells that share have in common at least: thousands of cells are not all compared with each other."""
    cell = item.cell
    if not may_share(item):
        return ("alone", cell.cell_id)
    if cell.kind == "replay":
        return (cell.kind, cell.probe_cell_id, cell.scores_cell_id)
    return (cell.kind, cell.method.name, cell.task.label, cell.fit_cell_id)


def _divided(items: Sequence[CellJob]) -> Iterator[tuple[CellJob, ...]]:
    left = list(items)
    while left:
        first, *others = left
        task, generation = first.cell.task, first.cell.generation
        shared = sharing(first, others, task.documents * generation.max_new_tokens, _unfitted) if others else ()
        one = (first, *(other for other, _ in shared))
        seen = {item.cell.cell_id for item in one}
        left = [item for item in left if item.cell.cell_id not in seen]
        yield one


def _unfitted(item: CellJob) -> Parts:
    return get_method(item.cell.method.name).from_params(item.cell.method.params).parts(item.cell.model.blocks)
