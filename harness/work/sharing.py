"""What one pass does for several cells: the first decodes or reads for all, and what the others get waits here.

Each cell is written in its turn, as an attempt of its own. One whose part is not here, because the pass failed or
another process ran it, sees to it itself.

Whether methods may share a decode is not taken from the names of parameters: gate, head and KV policy of both are built
and compared, attribute by attribute, so that a gate that looks at its threshold shares with nobody.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import torch
from torch import Tensor, nn

from exitbench.harness.work.lm import Beside, Known
from exitbench.methods.base import Gate, Head, KVPolicy, Parts
from exitbench.results.files.arrow import parquet_path
from exitbench.results.files.duckdb_files import in_memory

if TYPE_CHECKING:
    from exitbench.harness.work.base import Work

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


@dataclass(frozen=True)
class Recorded:
    """What is known of each token at every block, and what of it is wanted.

    Attributes:
        source: What follows FROM, one row a token; of `rows_of`.
        files: Parquet files that the source names, by its parameters.
        order: Columns that order the tokens, and are wanted.
        others: Further columns that are wanted.
        at_exit: What is read where a token exits, by name: SQL in which ``{e}`` stands for the block.
    """

    source: str
    files: Mapping[str, Path]
    order: Sequence[str]
    others: Sequence[str]
    at_exit: Mapping[str, str]

    def exits(self, rules: Mapping[str, str]) -> dict[str, pa.Table]:
        """Return the wanted columns, `exit_layer` and what is read there, by the name of each rule.

        Args:
            rules: The exit layer of one row as SQL.
        """
        wanted = [*self.order, *self.others]
        rule_columns = [f"({rule})::SMALLINT AS e_{n}" for n, rule in enumerate(rules.values())]
        read = [
            f"{sql.format(e=f'e_{n}')} AS {name}_{n}" for n in range(len(rules)) for name, sql in self.at_exit.items()
        ]
        with in_memory() as connection:
            found = connection.sql(
                f"""
                SELECT {", ".join([*wanted, *(f"e_{n}" for n in range(len(rules))), *read])}
                FROM (SELECT *, {", ".join(rule_columns)} FROM {self.source})
                ORDER BY {", ".join(self.order)}
                """,
                params={name: parquet_path(path) for name, path in self.files.items()},
            ).to_arrow_table()
        names = [*wanted, "exit_layer", *self.at_exit]
        return {
            name: found.select([*wanted, f"e_{n}", *(f"{column}_{n}" for column in self.at_exit)]).rename_columns(names)
            for n, name in enumerate(rules)
        }


def rows_of(parameter: str) -> str:
    """Return SQL for the rows of one file alone: nothing of its path is a pattern or a column."""
    return f"read_parquet(${parameter}, hive_partitioning=false)"


def exits(work: Work[Any], recorded: Recorded, rule_of: Callable[[Parts], str]) -> pa.Table:
    """Return what `Recorded.exits` does of a cell's rule; if the cell is the first of a pass, of all of them.

    Args:
        work: Of the cell.
        recorded: What it reads.
        rule_of: The exit layer of one row as SQL, of a method.
    """
    passes, cell_id = work.model.passes, work.cell.cell_id
    if (known := passes.exits(cell_id)) is not None:
        return known
    own, others = {cell_id: work.parts()}, passes.others(cell_id)
    if others:
        try:
            found = recorded.exits({name: rule_of(parts) for name, parts in (own | {**others}).items()})
            passes.keep_exits(found)
            return found[cell_id]
        except Exception as error:
            print(f"Cells that share a pass run one by one: {type(error).__name__}: {error}", file=sys.stderr)
            passes.give_up(cell_id)
    return recorded.exits({name: rule_of(parts) for name, parts in own.items()})[cell_id]
