"""StrategyQA: the authors' JSON list, or any table with its fields."""

from pathlib import Path
from typing import Any

from exitbench.tasks.sources import member
from exitbench.tasks.tables import read_table

_TEXTS = ("qid", "term", "description", "question")


def read_strategyqa(path: Path, name: str | None, split: str) -> list[dict[str, Any]]:
    """Return the questions with the fields that are text, and the answer.

    Raises:
        UserError: A field is missing or of another type.
    """
    found = []
    for i, row in enumerate(read_table(path)):
        where = f"{path}, [{i}]"
        texts = {field: member(row, field, str, where) for field in _TEXTS}
        found.append({**texts, "answer": member(row, "answer", bool, where)})
    return found
