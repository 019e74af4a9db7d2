"""Readers of local files for tasks of lm-eval: from any original format to the hub's fields.

A data set of the hub has a reader here if its original files have another format than the hub. JSON, JSON lines, CSV
and Parquet with the hub's fields are read for any data set.
"""

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, Final

from exitbench.errors import UserError
from exitbench.tasks.declared_choices import DATASET, read_choices
from exitbench.tasks.sources import member, read_lines, read_members, read_table, read_text, require

_HELLASWAG_LINES = 6
_HELLASWAG_BEGUN = re.compile(r"(?P<whole>.*[.!?]) (?P<begun>[a-z][^.!?]*)", re.DOTALL)


def read_hellaswag(path: Path, name: str | None, split: str) -> list[dict[str, Any]]:
    """Read HellaSwag from plain text, or from JSON lines with the hub's fields.

    Plain text has six lines per question: context, label 0 to 3, four endings. The context is the activity, a colon,
    and the text that the hub's fields `ctx_a` and `ctx_b` divide. `ctx_b` is the unfinished sentence at the end, in
    lower case; lm-eval capitalizes it. `name` and `split` are ignored.

    Raises:
        UserError: The number of lines is no multiple of six, or a label is invalid.
    """
    if not path.name.removesuffix(".gz").endswith(".txt"):
        return [dict(row) for row in read_table(path)]
    lines = read_lines(path)
    if len(lines) % _HELLASWAG_LINES:
        raise UserError(f"{path}: {len(lines)} lines are no whole number of tasks of {_HELLASWAG_LINES} lines.")
    return [
        _hellaswag_task(lines[start : start + _HELLASWAG_LINES], path, start + 1)
        for start in range(0, len(lines), _HELLASWAG_LINES)
    ]


def _hellaswag_task(lines: list[str], path: Path, line: int) -> dict[str, Any]:
    context, label, *endings = lines
    if label not in ("0", "1", "2", "3"):
        raise UserError(f"{path}, line {line + 1}: the label is {label[:40]!r}. Allowed: 0 to 3.")
    activity, colon, text = context.partition(": ")
    if not colon:
        raise UserError(f"{path}, line {line}: no activity and colon before the context.")
    parts = _HELLASWAG_BEGUN.fullmatch(text)
    first, second = parts.group("whole", "begun") if parts else (text, "")
    return {"activity_label": activity, "ctx_a": first, "ctx_b": second, "endings": endings, "label": label}


_MBPP_SPLITS = {"prompt": range(1, 11), "test": range(11, 511), "validation": range(511, 601), "train": range(601, 975)}
"""Task ids per split, from Austin et al. 2021, section 2.1."""


def read_mbpp(path: Path, name: str | None, split: str) -> list[dict[str, Any]]:
    """Read the problems of one split of MBPP: a single file of JSON lines, whose task ids determine the split.

    `name` is ignored.

    Raises:
        UserError: A problem has no integer `task_id`.
    """
    rows = [dict(row) for row in read_table(path)]
    ids = _MBPP_SPLITS.get(split)
    return [row for i, row in enumerate(rows) if ids is None or member(row, "task_id", int, f"{path}, [{i}]") in ids]


_MMLU_LETTERS = "ABCD"
_MMLU_COLUMNS = 6
_MMLU_MARKS = ("_dev", "_val", "_test")


def read_mmlu(path: Path, subject: str | None, split: str) -> list[dict[str, Any]]:
    """Return the questions of an MMLU subject from one CSV file per subject, alone or in a tar archive.

    Columns are question, four choices and the answer: without a header and with answers A to D, as published by the
    authors; or under the header `question,choice0,...,choice3,answer` with answers 0 to 3. An archive without a file of
    the subject gives no questions. `split` is ignored.

    Raises:
        UserError: A file is damaged, or a record is not a multiple-choice question.
    """
    if path.name.endswith((".tar.gz", ".tgz", ".tar")):
        subjects = _mmlu_archive(path)
        return [] if subject is None or subject not in subjects else _mmlu_questions(*subjects[subject], str(subject))
    if not path.name.removesuffix(".gz").endswith(".csv"):
        rows = [dict(row) for row in read_table(path)]
        return [row for row in rows if subject in (None, row.get("subject", subject))]
    return _mmlu_questions(str(path), read_text(path), str(subject))


@lru_cache(maxsize=4)
def _mmlu_archive(path: Path) -> dict[str, tuple[str, str]]:
    """Return the location (for messages) and the text of each CSV file of an MMLU archive, by subject."""
    files = {}
    for name, text in read_members(path, ".csv"):
        stem = PurePosixPath(name).stem
        for mark in _MMLU_MARKS:
            stem = stem.removesuffix(mark)
        files[stem] = (f"{path}, {name}", text)
    return files


def _mmlu_questions(location: str, text: str, subject: str) -> list[dict[str, Any]]:
    try:
        rows = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except csv.Error as error:
        raise UserError(f"{location}: not CSV: {error}.") from None
    header = bool(rows) and rows[0][-1] == "answer"
    return [
        _mmlu_question(row, f"{location}, record {number}", subject)
        for number, row in enumerate(rows[header:], start=1)
        if row
    ]


def _mmlu_question(row: list[str], location: str, subject: str) -> dict[str, Any]:
    if len(row) != _MMLU_COLUMNS:
        raise UserError(f"{location}: {len(row)} columns. Needed: question, 4 choices, answer.")
    question, *choices, answer = row
    if answer not in (*_MMLU_LETTERS, *"0123"):
        raise UserError(f"{location}: the answer is {answer!r}. Allowed: A to D, or 0 to 3.")
    index = _MMLU_LETTERS.index(answer) if answer in _MMLU_LETTERS else int(answer)
    return {"question": question, "subject": subject, "choices": choices, "answer": index}


def read_narrativeqa(path: Path, name: str | None, split: str) -> list[dict[str, Any]]:
    """Read NarrativeQA: a JSON list of summaries with their questions, or any table with the hub's fields.

    A list of {context, qas: [{question, answer}]} gives one record per question. `name` and `split` are ignored.

    Raises:
        UserError: A field is missing or of another type.
    """
    records: list[dict[str, Any]] = []
    for i, row in enumerate(read_table(path)):
        location = f"{path}, [{i}]"
        if "qas" not in row:
            records.append(dict(row))
            continue
        summary = {"summary": {"text": member(row, "context", str, location).strip()}}
        for q, value in enumerate(member(row, "qas", list, location)):
            place = f"{location}.qas[{q}]"
            pair = require(value, dict, place)
            question = {"text": member(pair, "question", str, place)}
            answers = [{"text": member(pair, "answer", str, place)}]
            records.append({"document": summary, "question": question, "answers": answers})
    return records


_STRATEGYQA_TEXTS = ("qid", "term", "description", "question")


def read_strategyqa(path: Path, name: str | None, split: str) -> list[dict[str, Any]]:
    """Read StrategyQA: the authors' JSON list, or any table with its fields; `name` and `split` are ignored.

    Raises:
        UserError: A field is missing or of another type.
    """
    records = []
    for i, row in enumerate(read_table(path)):
        location = f"{path}, [{i}]"
        texts = {field: member(row, field, str, location) for field in _STRATEGYQA_TEXTS}
        records.append({**texts, "answer": member(row, "answer", bool, location)})
    return records


Records = Sequence[Mapping[str, Any]]
Reader = Callable[[Path, str | None, str], Records]
"""Function of a file, the name of the data set's configuration, and the split."""

READERS: Final[dict[str, Reader]] = {
    "cais/mmlu": read_mmlu,
    "Rowan/hellaswag": read_hellaswag,
    "google-research-datasets/mbpp": read_mbpp,
    "ChilleD/StrategyQA": read_strategyqa,
    "deepmind/narrativeqa": read_narrativeqa,
    DATASET: read_choices,
}
"""Readers by the data set's name on the hub."""


@lru_cache(maxsize=256)
def read_records(dataset: str, name: str | None, split: str, path: Path) -> Records:
    """Return the records of a file with the hub's fields.

    Args:
        dataset: Name of the data set on the hub, which decides the file's format.
        name: Configuration of the data set, such as a subject or a language pair; None if it has only one.
        split: Split of the data set, for files that contain several.
        path: Path of the file, plain or `.gz`.

    Raises:
        UserError: The file is missing, damaged or in another format; the message names the record and the key.
    """
    reader = READERS.get(dataset)
    return read_table(path) if reader is None else reader(path, name, split)
