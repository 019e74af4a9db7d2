"""Exit rules over what was recorded of each token: for all cells of a pass, what they read is read once."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from exitbench.harness.cells.job import CellJob
from exitbench.harness.running.passes.session import Session
from exitbench.methods.base import Parts
from exitbench.results.files.arrow import parquet_path
from exitbench.results.files.duckdb_files import in_memory


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


def exits(session: Session, item: CellJob, recorded: Recorded, rule_of: Callable[[Parts], str]) -> pa.Table:
    """Return what `Recorded.exits` does of a cell's rule; if the cell is the first of a pass, of all of them.

    Args:
        session: Where what is found for the others waits.
        item: The cell.
        recorded: What it reads.
        rule_of: The exit layer of one row as SQL, of a method.
    """
    passes, cell_id = session.passes, item.cell.cell_id
    if (known := passes.exits(cell_id)) is not None:
        return known
    own, others = {cell_id: session.parts(item)}, passes.others(cell_id)
    if others:
        try:
            found = recorded.exits({name: rule_of(parts) for name, parts in (own | {**others}).items()})
            passes.keep_exits(found)
            return found[cell_id]
        except Exception as error:
            print(f"Cells that share a pass run one by one: {type(error).__name__}: {error}", file=sys.stderr)
            passes.give_up(cell_id)
    return recorded.exits({name: rule_of(parts) for name, parts in own.items()})[cell_id]
