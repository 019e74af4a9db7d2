"""Shared passes: the first cell decodes, or reads a probe, for several cells, and stores the other cells' results.

Each cell is written in its turn, as a separate attempt. A cell without a stored result computes the result itself, for
instance if the pass failed or another process ran it.

Whether two methods can share a decode does not depend on parameter names. Gate, head and KV policy of both are built
and compared attribute by attribute. A cell whose gate itself uses the threshold therefore shares with no cell of
another threshold.
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
    """State of all shared passes of a worker: which cells share a pass, and stored results of cells that run later.

    Attributes:
        cells: For each unfinished cell, by id, the number of cells that share its pass; 1 after the shared pass has
            failed.
    """

    cells: dict[str, int] = field(default_factory=dict)
    _partner_parts: dict[str, Mapping[str, Parts]] = field(default_factory=dict)
    _cached: dict[str, AnswerCache] = field(default_factory=dict)
    _exits: dict[str, pa.Table] = field(default_factory=dict)

    def begin(self, cell_id: str, partner_parts: Mapping[str, Parts]) -> None:
        """Register a shared pass: the cell that runs it, and the other cells whose results it also computes.

        Args:
            cell_id: The cell that runs the pass.
            partner_parts: Method parts of the other cells of the pass, by cell id.
        """
        self._partner_parts[cell_id] = partner_parts
        self._cached |= {partner: {} for partner in partner_parts}
        self.cells |= dict.fromkeys((cell_id, *partner_parts), 1 + len(partner_parts))

    def partner_parts(self, cell_id: str) -> Mapping[str, Parts]:
        """Return the method parts of the other cells whose results a cell's pass computes, by cell id."""
        return self._partner_parts.get(cell_id, {})

    def shared_cells(self, cell_id: str) -> Sequence[SharedCell]:
        """Return the other cells for which a cell decodes: their thresholds, and the caches for their answers."""
        return tuple(
            SharedCell(parts.threshold, self._cached[other]) for other, parts in self.partner_parts(cell_id).items()
        )

    def cached_answers(self, cell_id: str) -> AnswerCache:
        """Return the answers that the pass of another cell has stored for a cell; empty if there are none."""
        return self._cached.get(cell_id, {})

    def keep_exits(self, exits: Mapping[str, pa.Table]) -> None:
        """Store replay results (tables of exit layers) for the cells that run later, by cell id."""
        self._exits |= exits

    def stored_exits(self, cell_id: str) -> pa.Table | None:
        """Return the stored replay result (table of exit layers) of a cell; None if there is none."""
        return self._exits.get(cell_id)

    def abandon(self, cell_id: str) -> None:
        """Give up a shared pass after an error: delete the stored answers, so that each cell computes its own."""
        partner_ids = self._partner_parts.pop(cell_id)
        for other in partner_ids:
            self._cached[other].clear()
        self.cells |= dict.fromkeys((cell_id, *partner_ids), 1)

    def end(self, cell_id: str) -> None:
        """Delete everything stored for a cell that has finished."""
        stores: tuple[dict[str, Any], ...] = (self._partner_parts, self._cached, self._exits, self.cells)
        for of_cells in stores:
            of_cells.pop(cell_id, None)


def differ_in_threshold_alone(first: Parts, second: Parts) -> bool:
    """Return whether two methods have the same exit layers, gate, head and KV policy; their thresholds may differ."""
    return first.blocks == second.blocks and all(
        _same(getattr(first, part), getattr(second, part)) for part in ("gate", "head", "kv_policy")
    )


def _same(a: Any, b: Any) -> bool:
    """Return whether two values are equal; False also if equality cannot be determined."""
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
    """Recorded values (a probe, gate scores) that a replay reads: files, their SQL source, and columns to return.

    Attributes:
        source: SQL FROM clause that yields one row per token, built with `rows_of`.
        files: Parquet files of the source, by the name of their SQL parameter.
        order: Columns by which the token rows are sorted; they are also returned.
        extra_columns: Further columns to return.
        at_exit: Values to return from a token's exit layer, by name: SQL with the placeholder ``{e}`` for the exit
            layer.
    """

    source: str
    files: Mapping[str, Path]
    order: Sequence[str]
    extra_columns: Sequence[str]
    at_exit: Mapping[str, str]

    def exits_by_rule(self, rules: Mapping[str, str]) -> dict[str, pa.Table]:
        """Return, by rule name, a table with one row per token: recorded columns, exit layer, and `at_exit` values.

        Args:
            rules: SQL that computes the exit layer of a token row, by name of the rule.
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
    """Return the SQL that reads a Parquet file whose path is an SQL parameter; the path is no glob pattern."""
    return f"read_parquet(${parameter}, hive_partitioning=false)"


def simulated_exits(work: Work[Any], recorded: ReplaySource, rule_of: Callable[[Parts], str]) -> pa.Table:
    """Return a table with one row per token: its simulated exit layer under a cell's method, and recorded values.

    The first cell of a shared pass computes the tables of all its cells; the others return the stored table.

    Args:
        work: Work of the cell.
        recorded: The recorded values of the probe or scores cell.
        rule_of: Function that returns the SQL for the exit layer of a token row, given a method's parts.
    """
    passes, cell_id = work.model.passes, work.cell.cell_id
    if (stored := passes.stored_exits(cell_id)) is not None:
        return stored
    own_parts, partners = {cell_id: work.parts()}, passes.partner_parts(cell_id)
    if partners:
        try:
            rules = {name: rule_of(parts) for name, parts in (own_parts | {**partners}).items()}
            exit_tables = recorded.exits_by_rule(rules)
            passes.keep_exits(exit_tables)
            return exit_tables[cell_id]
        except Exception as error:
            print(f"Cells that share a pass run one by one: {type(error).__name__}: {error}", file=sys.stderr)
            passes.abandon(cell_id)
    return recorded.exits_by_rule({name: rule_of(parts) for name, parts in own_parts.items()})[cell_id]
