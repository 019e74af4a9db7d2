"""MMLU: CSV files of one subject each, alone or packed in a tar archive.

Columns are question, four choices and the answer: without a header and the answer as A to D, as the authors publish
them; or under a header `question,choice0,...,choice3,answer`, the answer as 0 to 3.
"""

import csv
import io
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

from exitbench.errors import UserError
from exitbench.tasks.archives import read_members
from exitbench.tasks.sources import read_text
from exitbench.tasks.tables import read_table

_LETTERS = "ABCD"
_COLUMNS = 6
_MARKS = ("_dev", "_val", "_test")


def read_mmlu(path: Path, subject: str | None, split: str) -> list[dict[str, Any]]:
    """Return a subject's questions; none where an archive has no file of it.

    Raises:
        UserError: A file is damaged, or a record is no question.
    """
    if path.name.endswith((".tar.gz", ".tgz", ".tar")):
        subjects = _archive(path)
        return [] if subject is None or subject not in subjects else _questions(*subjects[subject], str(subject))
    if not path.name.removesuffix(".gz").endswith(".csv"):
        rows = [dict(row) for row in read_table(path)]
        return [row for row in rows if subject in (None, row.get("subject", subject))]
    return _questions(str(path), read_text(path), str(subject))


@lru_cache(maxsize=4)
def _archive(path: Path) -> dict[str, tuple[str, str]]:
    """Place and text of each CSV, by subject."""
    found = {}
    for name, text in read_members(path, ".csv"):
        stem = PurePosixPath(name).stem
        for mark in _MARKS:
            stem = stem.removesuffix(mark)
        found[stem] = (f"{path}, {name}", text)
    return found


def _questions(where: str, text: str, subject: str) -> list[dict[str, Any]]:
    try:
        rows = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except csv.Error as error:
        raise UserError(f"{where}: not CSV: {error}.") from None
    header = bool(rows) and rows[0][-1] == "answer"
    return [
        _question(row, f"{where}, record {number}", subject) for number, row in enumerate(rows[header:], start=1) if row
    ]


def _question(row: list[str], where: str, subject: str) -> dict[str, Any]:
    if len(row) != _COLUMNS:
        raise UserError(f"{where}: {len(row)} columns. Needed: question, 4 choices, answer.")
    question, *choices, answer = row
    if answer not in (*_LETTERS, *"0123"):
        raise UserError(f"{where}: the answer is {answer!r}. Allowed: A to D, or 0 to 3.")
    index = _LETTERS.index(answer) if answer in _LETTERS else int(answer)
    return {"question": question, "subject": subject, "choices": choices, "answer": index}
