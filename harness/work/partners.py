"""Find the partners of a cell: other cells whose results can be computed in the same pass over the documents.

Cells that decode share a pass if they have the same requests and documents, and their methods differ only in their
threshold (`sharing.differ_in_threshold_alone`). Replays of any methods share a pass if they read the same probe or the
same scores cell.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from exitbench.harness.cells.job import CellJob
from exitbench.harness.work.base import Work
from exitbench.harness.work.kinds import work_class, work_of
from exitbench.harness.work.sharing import PASS_ROWS, differ_in_threshold_alone
from exitbench.methods.base import Parts

KEPT_TOKENS: Final = 2**22
"""Maximum number of tokens stored for cells that run later, at about 100 bytes each."""

_OF_A_METHOD: Final = ("method", "kv_policy", "fit_cell_id")
"""Keys of a cell's identity that describe the method."""


def batchable_with(item: CellJob, candidates: Iterable[CellJob]) -> list[CellJob]:
    """Return the candidates that may be decoded, or replayed, in one pass with a cell.

    A cell that decodes can share a pass with cells of the same method only, a replay also with replays of other
    methods.

    The final decision is made by `select_partners`, which also compares the parts of the methods.
    """
    if not may_share(item):
        return []
    key = _pass_key(item)
    return [other for other in candidates if other.data == item.data and _pass_key(other) == key]


def may_share(item: CellJob) -> bool:
    """Return whether a cell can be computed in one pass with others: a quality cell that generates, or a replay."""
    decodes = item.cell.kind == "quality" and work_class(item.data.task_object).generates
    return decodes or item.cell.kind == "replay"


def _pass_key(item: CellJob) -> dict[str, Any]:
    cell = item.cell
    key = {name: value for name, value in cell.identity.items() if name not in _OF_A_METHOD}
    return key if cell.kind == "replay" else {**key, "method": cell.method.name, "kv_policy": cell.kv_policy}


def select_partners(
    item: CellJob, candidates: Iterable[CellJob], tokens: int, parts_of: Callable[[CellJob], Parts]
) -> Iterator[tuple[CellJob, Parts]]:
    """Yield (cell, method parts) of the candidates that can be computed in a cell's pass, up to a maximum number.

    The maximum follows from the limits on stored tokens and on batch rows.

    Args:
        item: The cell that runs the pass.
        candidates: Cells that have no results yet, in the order in which they will run.
        tokens: Maximum number of tokens to store per cell.
        parts_of: Function that returns the parts of a cell's method; if it raises, that cell does not share the pass.
    """
    decodes = item.cell.kind == "quality"
    most = max(1, KEPT_TOKENS // max(1, tokens))
    most = min(most, PASS_ROWS) if decodes else most
    parts = parts_of(item)
    for other in batchable_with(item, candidates):
        if most == 1:
            return
        with contextlib.suppress(Exception):  # the other cell's own pass will report the error
            other_parts = parts_of(other)
            if not decodes or differ_in_threshold_alone(parts, other_parts):
                most -= 1
                yield other, other_parts


def partners(work: Work[Any], candidates: Iterable[CellJob]) -> Iterator[tuple[CellJob, Parts]]:
    """Yield (cell, method parts) of the candidates that the pass of a cell can compute as well.

    Args:
        work: Work of the cell that runs the pass.
        candidates: Cells that have no results yet, in the order in which they will run.
    """
    item, model = work.item, work.model
    if not may_share(item):
        return
    with contextlib.suppress(Exception):  # the cell's own pass will report the error
        parts, is_replay = work.parts(), item.cell.kind == "replay"
        n_tokens = work.replayed_tokens() if is_replay else work.units() * work.settings.max_new_tokens
        if is_replay or model.model.why_not(parts, PASS_ROWS) is None:
            yield from select_partners(item, candidates, n_tokens, lambda other: work_of(model, other).parts())
