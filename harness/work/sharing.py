"""Shared passes: the first cell of a pass decodes or reads for all its cells, and stores the others' results here.

Each cell is written in its turn, as a separate attempt. A cell without a stored result, because the pass failed or
another process ran it, computes the result itself.

Whether methods can share a decode does not depend on parameter names. Gate, head and KV policy of both are built and
compared, attribute by attribute, so that a gate that uses its threshold shares with no other cell.
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

from exitbench.harness.work.lm import AnswerCache, SharedCell
from exitbench.methods.base import Gate, Head, KVPolicy, Parts
from exitbench.results.files.arrow import parquet_path
from exitbench.results.files.duckdb_files import in_memory

if TYPE_CHECKING:
    from exitbench.harness.work.base import Work

PASS_ROWS: Final = 64
"""Maximum number of rows decoded together in a shared pass, even if each cell has fewer (`Cell.rows`)."""


@dataclass
class SharedPasses:
    """Membership of cells in shared passes, and stored results of cells that have not run yet.

    Attributes:
        cells: Number of cells that share the pass of each unfinished cell, by cell id; 1 after a pass that failed.
    """

    cells: dict[str, int] = field(default_factory=dict)
    _partner_parts: dict[str, Mapping[str, Parts]] = field(default_factory=dict)
    _cached: dict[str, AnswerCache] = field(default_factory=dict)
    _exits: dict[str, pa.Table] = field(default_factory=dict)

    def begin(self, cell_id: str, partner_parts: Mapping[str, Parts]) -> None:
        """Begin a shared pass.

        Args:
            cell_id: The cell that runs the pass.
            partner_parts: Method parts of the other cells, by cell id.
        """
        self._partner_parts[cell_id] = partner_parts
        self._cached |= {partner: {} for partner in partner_parts}
        self.cells |= dict.fromkeys((cell_id, *partner_parts), 1 + len(partner_parts))

    def partner_parts(self, cell_id: str) -> Mapping[str, Parts]:
        """Return the method parts of the other cells in a cell's pass, by cell id."""
        return self._partner_parts.get(cell_id, {})

    def shared_cells(self, cell_id: str) -> Sequence[SharedCell]:
        """Return the other cells for which a cell decodes."""
        return tuple(
            SharedCell(parts.threshold, self._cached[other]) for other, parts in self.partner_parts(cell_id).items()
        )

    def cached_answers(self, cell_id: str) -> AnswerCache:
        """Return the stored answers of a cell."""
        return self._cached.get(cell_id, {})

    def keep_exits(self, exits: Mapping[str, pa.Table]) -> None:
        """Store the results of replays, by cell id."""
        self._exits |= exits

    def exits(self, cell_id: str) -> pa.Table | None:
        """Return the stored replay result of a cell; None if there is none."""
        return self._exits.get(cell_id)

    def abandon(self, cell_id: str) -> None:
        """Abandon a shared pass after an error, so that each of its cells computes its own results."""
        partner_ids = self._partner_parts.pop(cell_id)
        for other in partner_ids:
            self._cached[other].clear()
        self.cells |= dict.fromkeys((cell_id, *partner_ids), 1)

    def end(self, cell_id: str) -> None:
        """Delete all stored data of a cell that has ended."""
        stores: tuple[dict[str, Any], ...] = (self._partner_parts, self._cached, self._exits, self.cells)
        for of_cells in stores:
            of_cells.pop(cell_id, None)


def differ_in_threshold_alone(first: Parts, second: Parts) -> bool:
    """Return whether two methods are equal except for their thresholds."""
    return first.blocks == second.blocks and all(
        _same(getattr(first, part), getattr(second, part)) for part in ("gate", "head", "kv_policy")
    )


def _same(a: Any, b: Any) -> bool:
    """Return whether two values are known to be equal; False also if they cannot be compared."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, Tensor):
        return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, Mapping):
        return list(a) == list(b) and all(_same(value, b[name]) for name, value in a.items())
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, (bool, int, float, str, frozenset)):
        return bool(a == b)
    if isinstance(a, (Gate, Head, KVPolicy, nn.Module)):
        hides = any(getattr(cls, "__slots__", ()) for cls in type(a).__mro__)
        return not hides and _same(vars(a), vars(b))
    return False


@dataclass(frozen=True)
class ReplaySource:
    """Recorded values of each token at every block, and the columns to read.

    Attributes:
        source: SQL after FROM, one row per token; see `rows_of`.
        files: Parquet files of the source, by SQL parameter.
        order: Columns by which the tokens are sorted; these columns are also returned.
        extra_columns: Further columns to return.
        at_exit: Values read at a token's exit layer, by name: SQL with the placeholder ``{e}`` for the block.
    """

    source: str
    files: Mapping[str, Path]
    order: Sequence[str]
    extra_columns: Sequence[str]
    at_exit: Mapping[str, str]

    def exits(self, rules: Mapping[str, str]) -> dict[str, pa.Table]:
        """Return, for each rule, a table of the columns, `exit_layer` and the values at the exit layer.

        Args:
            rules: SQL for the exit layer of one row, by name of the rule.
        """
        wanted = [*self.order, *self.extra_columns]
        rule_columns = [f"({rule})::SMALLINT AS e_{n}" for n, rule in enumerate(rules.values())]
        read = [
            f"{sql.format(e=f'e_{n}')} AS {name}_{n}" for n in range(len(rules)) for name, sql in self.at_exit.items()
        ]
        with in_memory() as connection:
            exit_tables = connection.sql(
                f"""
                SELECT {", ".join([*wanted, *(f"e_{n}" for n in range(len(rules))), *read])}
                FROM (SELECT *, {", ".join(rule_columns)} FROM {self.source})
                ORDER BY {", ".join(self.order)}
                """,
                params={name: parquet_path(path) for name, path in self.files.items()},
            ).to_arrow_table()
        names = [*wanted, "exit_layer", *self.at_exit]
        return {
            name: exit_tables.select([*wanted, f"e_{n}", *(f"{column}_{n}" for column in self.at_exit)]).rename_columns(
                names
            )
            for n, name in enumerate(rules)
        }


def rows_of(parameter: str) -> str:
    """Return SQL for the rows of one file, given by an SQL parameter. Its path is not expanded as a pattern."""
    return f"read_parquet(${parameter}, hive_partitioning=false)"


def exits(work: Work[Any], recorded: ReplaySource, rule_of: Callable[[Parts], str]) -> pa.Table:
    """Return the table `ReplaySource.exits` of a cell's method. The first cell of a pass computes it for all its cells.

    Args:
        work: Work of the cell.
        recorded: The recorded values.
        rule_of: Returns SQL for the exit layer of one row, given a method's parts.
    """
    passes, cell_id = work.model.passes, work.cell.cell_id
    if (stored := passes.exits(cell_id)) is not None:
        return stored
    own_parts, partners = {cell_id: work.parts()}, passes.partner_parts(cell_id)
    if partners:
        try:
            exit_tables = recorded.exits({name: rule_of(parts) for name, parts in (own_parts | {**partners}).items()})
            passes.keep_exits(exit_tables)
            return exit_tables[cell_id]
        except Exception as error:
            print(f"Cells that share a pass run one by one: {type(error).__name__}: {error}", file=sys.stderr)
            passes.abandon(cell_id)
    return recorded.exits({name: rule_of(parts) for name, parts in own_parts.items()})[cell_id]
