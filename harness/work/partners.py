"""Which cells one pass can see to: sweeps decode together, and replays of a probe read it once.

Cells that decode share a pass where they ask the same of the same documents, and their methods differ in nothing but
what scores are compared with (`sharing.differ_in_threshold_alone`). Replays, of whatever methods, share a pass where
they read the same probe, or the same scores.
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
"""Tokens that wait for their cells, at most: 100 bytes each or so."""

_OF_A_METHOD: Final = ("method", "kv_policy", "fit_cell_id")
"""What an identity says of the method."""


def asking_the_same(item: CellJob, others: Iterable[CellJob]) -> list[CellJob]:
    """Return the cells that ask the same of the same documents: of a replay all, else those of its method."""
    if not may_share(item):
        return []
    asked = _asked(item)
    return [other for other in others if other.data == item.data and _asked(other) == asked]


def may_share(item: CellJob) -> bool:
    """Whether a cell could share a pass with another at all."""
    decodes = item.cell.kind == "quality" and work_class(item.data.task_object).generates
    return decodes or item.cell.kind == "replay"


def _asked(item: CellJob) -> dict[str, Any]:
    cell = item.cell
    asked = {name: value for name, value in cell.identity.items() if name not in _OF_A_METHOD}
    return asked if cell.kind == "replay" else {**asked, "method": cell.method.name, "kv_policy": cell.kv_policy}


def sharing(
    item: CellJob, others: Iterable[CellJob], tokens: int, parts_of: Callable[[CellJob], Parts]
) -> Iterator[tuple[CellJob, Parts]]:
    """Yield the cells that one pass can see to with a cell, and their methods; no more than may share one.

    Args:
        item: The cell.
        others: Cells that nobody has seen to, in their order.
        tokens: Of how many tokens each keeps something, at most.
        parts_of: The method of a cell; one of which it raises shares with nobody.
    """
    decodes = item.cell.kind == "quality"
    most = max(1, KEPT_TOKENS // max(1, tokens))
    most = min(most, PASS_ROWS) if decodes else most
    parts = parts_of(item)
    for other in asking_the_same(item, others):
        if most == 1:
            return
        with contextlib.suppress(Exception):  # its own pass says what is wrong
            other_parts = parts_of(other)
            if not decodes or differ_in_threshold_alone(parts, other_parts):
                most -= 1
                yield other, other_parts


def partners(work: Work[Any], others: Iterable[CellJob]) -> Iterator[tuple[CellJob, Parts]]:
    """Yield the cells that one pass can see to with a cell on a loaded model, and their methods."""
    item, model = work.item, work.model
    if not may_share(item):
        return
    with contextlib.suppress(Exception):  # its own pass says what is wrong
        parts, is_replay = work.parts(), item.cell.kind == "replay"
        n_tokens = work.replayed_tokens() if is_replay else work.units() * work.settings.max_new_tokens
        if is_replay or model.model.why_not(parts, PASS_ROWS) is None:
            yield from sharing(item, others, n_tokens, lambda other: work_of(model, other).parts())
