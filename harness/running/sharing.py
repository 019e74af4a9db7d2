"""Cells that one pass answers: a sweep over thresholds decodes together, and each cell is written in its turn.

Cells share a pass where they ask the same of the same documents, and their methods differ in nothing but what scores
are compared with. That is not taken from the names of parameters: gate, head and KV policy of both are built and
compared, attribute by attribute, so that a gate that looks at its threshold shares with nobody.

The first of them decodes for all. The answers of the others wait here; one whose answers are not here, because the pass
failed or another process ran it, decodes for itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor, nn

from exitbench.harness.cells.job import CellJob
from exitbench.harness.running.lm import Beside, Known
from exitbench.methods.base import Gate, Head, KVPolicy, Parts, Threshold

PASS_ROWS: Final = 64
"""Rows that cells sharing a pass decode together, at most, where a single one may not have more (`Cell.rows`)."""

KEPT_TOKENS: Final = 2**22
"""Tokens of answers that wait for their cells, at most: 100 bytes each or so."""


def asking_the_same(item: CellJob, others: Iterable[CellJob]) -> list[CellJob]:
    """Return the cells that ask the same of the same documents, of the same method with other parameters."""
    if item.cell.kind != "quality" or item.data.task_object.output_type != "generate_until":
        return []
    asked = _asked(item)
    return [other for other in others if other.data == item.data and _asked(other) == asked]


def _asked(item: CellJob) -> dict[str, Any]:
    asked = {name: value for name, value in item.cell.identity.items() if name not in ("method", "fit_cell_id")}
    return {**asked, "method": item.cell.method.name}


def differ_in_threshold_alone(one: Parts, other: Parts) -> bool:
    """Whether two methods compute the same, but for what scores are compared with."""
    return one.blocks == other.blocks and all(
        _same(getattr(one, part), getattr(other, part)) for part in ("gate", "head", "kv_policy")
    )


def _same(one: Any, other: Any) -> bool:
    """Whether two values are known to be the same; False of what cannot be compared."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        return one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, Mapping):
        return list(one) == list(other) and all(_same(value, other[name]) for name, value in one.items())
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, (bool, int, float, str, frozenset)):
        return bool(one == other)
    if isinstance(one, (Gate, Head, KVPolicy, nn.Module)):
        hides = any(getattr(cls, "__slots__", ()) for cls in type(one).__mro__)
        return not hides and _same(vars(one), vars(other))
    return False


def cells_of_a_pass(documents: int, max_new_tokens: int) -> int:
    """How many cells may share a pass over so many documents."""
    return max(1, min(PASS_ROWS, KEPT_TOKENS // max(1, documents * max_new_tokens)))


@dataclass
class Passes:
    """Which cells share a pass, and answers that wait for their turn.

    Attributes:
        cells: How many cells share the pass of a cell that has not ended, by cell id; 1 after a pass that failed.
    """

    cells: dict[str, int] = field(default_factory=dict)
    _beside: dict[str, dict[str, Beside]] = field(default_factory=dict)
    _known: dict[str, Known] = field(default_factory=dict)

    def begin(self, cell_id: str, others: Mapping[str, Threshold]) -> None:
        """Have a cell decode for others too: their thresholds, by cell id."""
        self._known |= {other: {} for other in others}
        self._beside[cell_id] = {other: Beside(rule, self._known[other]) for other, rule in others.items()}
        self.cells |= dict.fromkeys((cell_id, *others), 1 + len(others))

    def beside(self, cell_id: str) -> Sequence[Beside]:
        """For whom a cell decodes besides itself."""
        return tuple(self._beside.get(cell_id, {}).values())

    def known(self, cell_id: str) -> Known:
        """Answers that wait for a cell."""
        return self._known.get(cell_id, {})

    def give_up(self, cell_id: str) -> None:
        """Have each cell of a pass decode for itself, all of it."""
        others = self._beside.pop(cell_id)
        for other in others.values():
            other.known.clear()
        self.cells |= dict.fromkeys((cell_id, *others), 1)

    def end(self, cell_id: str) -> None:
        """Forget a cell, which has ended."""
        for kept in (self._beside, self._known, self.cells):
            kept.pop(cell_id, None)
