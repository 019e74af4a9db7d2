"""MBPP: one file of JSON lines, whose task ids say the split."""

from pathlib import Path
from typing import Any

from exitbench.tasks.sources import member
from exitbench.tasks.tables import read_table

_SPLITS = {"prompt": range(1, 11), "test": range(11, 511), "validation": range(511, 601), "train": range(601, 975)}
"""Of Austin et al. 2021, section 2.1."""


def read_mbpp(path: Path, name: str | None, split: str) -> list[dict[str, Any]]:
    """Return the problems of a split.

    Raises:
        UserError: A problem has no whole number as `task_id`.
    """
    rows = [dict(row) for row in read_table(path)]
    ids = _SPLITS.get(split)
    return [row for i, row in enumerate(rows) if ids is None or member(row, "task_id", int, f"{path}, [{i}]") in ids]
