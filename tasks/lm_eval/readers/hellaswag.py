"""HellaSwag in plain text, six lines a task: context, label 0 to 3, four endings; or JSON lines with the hub's fields.

A context of the plain text is activity, colon, and the two parts of the JSON lines' context; the second part is what a
context ends with after its last whole sentence, in lower case. lm-eval writes it with a capital.
"""

import re
from pathlib import Path
from typing import Any

from exitbench.errors import UserError
from exitbench.tasks.sources import read_lines
from exitbench.tasks.tables import read_table

_LINES = 6
_BEGUN = re.compile(r"(?P<whole>.*[.!?]) (?P<begun>[a-z][^.!?]*)", re.DOTALL)


def read_hellaswag(path: Path, name: str | None, split: str) -> list[dict[str, Any]]:
    """Return the tasks of a file with the fields that lm-eval reads.

    Raises:
        UserError: The lines are no whole tasks, or a label is none.
    """
    if not path.name.removesuffix(".gz").endswith(".txt"):
        return [dict(row) for row in read_table(path)]
    lines = read_lines(path)
    if len(lines) % _LINES:
        raise UserError(f"{path}: {len(lines)} lines are no whole number of tasks of {_LINES} lines.")
    return [_task(lines[start : start + _LINES], path, start + 1) for start in range(0, len(lines), _LINES)]


def _task(lines: list[str], path: Path, line: int) -> dict[str, Any]:
    context, label, *endings = lines
    if label not in ("0", "1", "2", "3"):
        raise UserError(f"{path}, line {line + 1}: the label is {label[:40]!r}. Allowed: 0 to 3.")
    activity, colon, rest = context.partition(": ")
    if not colon:
        raise UserError(f"{path}, line {line}: no activity and colon before the context.")
    parts = _BEGUN.fullmatch(rest)
    first, second = parts.group("whole", "begun") if parts else (rest, "")
    return {"activity_label": activity, "ctx_a": first, "ctx_b": second, "endings": endings, "label": label}
