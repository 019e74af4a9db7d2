"""GLUE's original files: columns separated by TABs, quotation marks a character like any other."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from exitbench.errors import UserError
from exitbench.tasks.glue.data_sets import DataSet
from exitbench.tasks.sources import read_lines

RATINGS: Final = (0.0, 5.0)
"""Least and greatest, of pairs that are rated."""


def read_glue(path: Path, data_set: DataSet) -> list[dict[str, Any]]:
    """Read an original file to records of the hub's fields, numbered from 1.

    Raises:
        UserError: A column is missing (that of the labels too: a test split), a row has other columns than the header,
            or a label is none of the data set's; names the line.
    """
    lines = read_lines(path)
    header = data_set.header or _header(path, lines, data_set)
    if data_set.header is not None and lines and lines[0].split("\t") == ["index", *data_set.columns]:
        raise unlabelled(f"{path}, line 1")  # in the test split, whose file does name its columns
    records: list[dict[str, Any]] = []
    for where, row in _rows(path, lines, header, data_set):
        texts = {name: row[column] for name, column in zip(data_set.texts, data_set.columns, strict=True)}
        label = _label(row[data_set.label_column], data_set, f"{where}, column {data_set.label_column!r}")
        records.append({"id": str(len(records) + 1), **texts, "label": label})
    return records


def unlabelled(where: str) -> UserError:
    """Return what is raised of records without labels."""
    return UserError(
        f"{where}: has no labels, as GLUE's test splits, so no answer could be judged. Allowed: a file of the train or "
        'dev split, or on the hub split = "train" or "validation".'
    )


def _header(path: Path, lines: Sequence[str], data_set: DataSet) -> tuple[str, ...]:
    header = tuple(lines[0].split("\t")) if lines else ()
    missing = [column for column in data_set.columns if column not in header]
    if missing:
        needed = ", ".join((*data_set.columns, data_set.label_column))
        raise UserError(
            f"{path}, line 1: has no column {missing[0]!r}, only {', '.join(header)[:200] or 'nothing'}. "
            f"Needed: {needed}, separated by TABs."
        )
    if data_set.label_column not in header:
        raise unlabelled(f"{path}, line 1")
    return header


def _rows(
    path: Path, lines: Sequence[str], header: Sequence[str], data_set: DataSet
) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Place and values of each row."""
    first = 0 if data_set.header is not None else 1
    for number, line in enumerate(lines[first:], start=first + 1):
        values = line.split("\t")
        if len(values) == len(header):
            yield f"{path}, line {number}", dict(zip(header, values, strict=True))
        elif not data_set.cut_rows:
            raise UserError(
                f"{path}, line {number}: {len(values)} TAB-separated columns. Needed: {len(header)} "
                f"({', '.join(header)})."
            )


def _label(value: str, data_set: DataSet, where: str) -> int | float:
    if data_set.labels is not None:
        if value not in data_set.written:
            raise UserError(f"{where}: is {value[:80]!r}. Allowed: {', '.join(data_set.written)}.")
        return data_set.written.index(value)
    try:
        rating = float(value)
    except ValueError:
        rating = float("nan")
    if not RATINGS[0] <= rating <= RATINGS[1]:
        raise UserError(f"{where}: is {value[:80]!r}. Allowed: a number from {RATINGS[0]:g} to {RATINGS[1]:g}.")
    return rating
