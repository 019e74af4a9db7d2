"""What one pass does for several cells: the first decodes or reads for all, and what the others get waits here.

Each cell is written in its turn, as an attempt of its own. One whose part is not here, because the pass failed or
another process ran it, sees to it itself.

Whether methods may share a decode is not taken from the names of parameters: gate, head and KV policy of both are built
and compared, attribute by attribute, so that a gate that looks at its threshold shares with nobody.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import torch
from torch import Tensor, nn

from exitbench.harness.work.lm import Beside, Known
from exitbench.methods.base import Gate, Head, KVPolicy, Parts

PASS_ROWS: Final = 64
"""Rows that cells sharing a pass decode together, at most, where a single one may not have more (`Cell.rows`)."""


@dataclass
class SharedPasses:
    """Which cells share a pass, and what waits for their turn.

    Attributes:
        cells: How many cells share the pass of a cell that has not ended, by cell id; 1 after a pass that failed.
    """

    cells: dict[str, int] = field(default_factory=dict)
    _others: dict[str, Mapping[str, Parts]] = field(default_factory=dict)
    _known: dict[str, Known] = field(default_factory=dict)
    _exits: dict[str, pa.Table] = field(default_factory=dict)

    def begin(self, cell_id: str, others: Mapping[str, Parts]) -> None:
        """Have a cell see to others too: their methods, by cell id."""
        self._others[cell_id] = others
        self._known |= {other: {} for other in others}
        self.cells |= dict.fromkeys((cell_id, *others), 1 + len(others))

    def others(self, cell_id: str) -> Mapping[str, Parts]:
        """The methods of the cells to which a cell sees besides itself, by cell id."""
        return self._others.get(cell_id, {})

    def beside(self, cell_id: str) -> Sequence[Beside]:
        """For whom a cell decodes besides itself."""
        return tuple(Beside(parts.threshold, self._known[other]) for other, parts in self.others(cell_id).items())

    def known(self, cell_id: str) -> Known:
        """Answers that wait for a cell."""
        return self._known.get(cell_id, {})

    def keep_exits(self, exits: Mapping[str, pa.Table]) -> None:
        """Have what was replayed wait for its cells, by cell id."""
        self._exits |= exits

    def exits(self, cell_id: str) -> pa.Table | None:
        """What was replayed for a cell; None if nothing was."""
        return self._exits.get(cell_id)

    def give_up(self, cell_id: str) -> None:
        """Have each cell of a pass see to itself, to all of it."""
        others = self._others.pop(cell_id)
        for other in others:
            self._known[other].clear()
        self.cells |= dict.fromkeys((cell_id, *others), 1)

    def end(self, cell_id: str) -> None:
        """Forget a cell, which has ended."""
        kept: tuple[dict[str, Any], ...] = (self._others, self._known, self._exits, self.cells)
        for of_cells in kept:
            of_cells.pop(cell_id, None)


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
