"""Failure summary at the end of a run: why cells failed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from exitbench.results.database.connection import open_database
from exitbench.terminal import number_of, without_middle

_MOST: Final = 8
"""Maximum number of reasons shown; the database has all of them."""
_WIDTH: Final = 300
_REASONS: Final = """
    SELECT status, coalesce(reason, 'no reason given') AS reason, count(*) AS cells,
        min(printf('%s/%s/%s/%s', model, task_label, method, kind)) AS example
    FROM failures WHERE list_contains($cell_ids, cell_id)
    GROUP BY ALL ORDER BY cells DESC, status, reason
"""


def failure_lines(database: Path, cell_ids: Sequence[str]) -> list[str]:
    """Return one line per distinct reason, the most frequent first: number of cells, an example, the reason.

    Args:
        database: The result database, with the cells' attempts.
        cell_ids: Ids of failed cells.

    Raises:
        UserError: The database cannot be opened.
    """
    with open_database(database) as connected:
        rows = connected.query(_REASONS, {"cell_ids": list(cell_ids)}).to_pylist()
    lines = []
    for row in rows[:_MOST]:
        reason = without_middle(" ".join(row["reason"].split()), _WIDTH)
        which = row["example"] if row["cells"] == 1 else f"{number_of(row['cells'], 'cell')}, such as {row['example']}"
        lines.append(f"{which}: {row['status']}: {reason}")
    return [*lines, *([f"and {number_of(len(rows) - _MOST, 'other reason')}"] if len(rows) > _MOST else [])]
