"""NarrativeQA: a JSON list of summaries with their questions, or any table with the hub's fields."""

from pathlib import Path
from typing import Any

from exitbench.tasks.sources import member, require
from exitbench.tasks.tables import read_table


def read_narrativeqa(path: Path, name: str | None, split: str) -> list[dict[str, Any]]:
    """Return one record a question: of a list of {context, qas: [{question, answer}]}, else as they are.

    Raises:
        UserError: A field is missing or of another type.
    """
    found: list[dict[str, Any]] = []
    for i, row in enumerate(read_table(path)):
        where = f"{path}, [{i}]"
        if "qas" not in row:
            found.append(dict(row))
            continue
        summary = {"summary": {"text": member(row, "context", str, where).strip()}}
        for q, value in enumerate(member(row, "qas", list, where)):
            place = f"{where}.qas[{q}]"
            pair = require(value, dict, place)
            question = {"text": member(pair, "question", str, place)}
            answers = [{"text": member(pair, "answer", str, place)}]
            found.append({"document": summary, "question": question, "answers": answers})
    return found
