"""What one pass does for several cells: the first decodes or reads for all, and what the others get waits here.

Each cell is written in its turn, as an attempt of its own. One whose part is not here, because the pass failed or
another process ran it, sees to it itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from exitbench.harness.running.lm import Beside, Known
from exitbench.methods.base import Parts


@dataclass
class Passes:
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
