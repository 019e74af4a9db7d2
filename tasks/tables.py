"""Tables of any fields: JSON lines, a JSON list, CSV, Parquet."""

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from exitbench.errors import UserError
from exitbench.tasks.sources import read_json, read_text, require

_FORMS = ("json", "jsonl", "csv", "tsv", "parquet")
_MAX_FIELD_CHARACTERS = 1 << 24


def read_table(path: Path) -> list[Mapping[str, Any]]:
    """Read the records of a file by the ending of its name, `.gz` apart.

    Raises:
        UserError: It has another ending, or a record is no table of fields.
    """
    form = path.name.removesuffix(".gz").rpartition(".")[2]
    if form == "parquet":
        return _parquet(path)
    if form == "json":
        return _json(path)
    if form == "jsonl":
        return read_json_lines(path)
    if form in ("csv", "tsv"):
        return read_csv(path, "," if form == "csv" else "\t")
    endings = ", ".join(f".{form}" for form in _FORMS)
    raise UserError(f"{path}: its name ends in .{form}. Allowed: {endings}; all but Parquet with .gz too.")


def read_json_lines(path: Path) -> list[Mapping[str, Any]]:
    """Read one JSON object a line; empty lines count for nothing.

    Raises:
        UserError: A line is no JSON object.
    """
    return parse_json_lines(read_text(path), str(path))


def parse_json_lines(text: str, where: str) -> list[Mapping[str, Any]]:
    """Parse the text of JSON lines; see `read_json_lines`."""
    records: list[Mapping[str, Any]] = []
    # At newlines only: JSON may hold U+2028 and its like as they are.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        place = f"{where}, line {number}"
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{place}: not JSON: {error}.") from None
        records.append(require(value, dict, place))
    return records


def read_csv(path: Path, delimiter: str = ",") -> list[Mapping[str, Any]]:
    """Read a table whose first line names its columns; every value is text.

    Raises:
        UserError: A record has other columns than the first line.
    """
    return parse_csv(read_text(path), str(path), delimiter)


def parse_csv(text: str, where: str, delimiter: str = ",") -> list[Mapping[str, Any]]:
    """Parse the text of a table; see `read_csv`."""
    before = csv.field_size_limit(_MAX_FIELD_CHARACTERS)
    rows = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    records: list[Mapping[str, Any]] = []
    try:
        for number, row in enumerate(rows, start=1):
            if None in row or None in row.values():
                raise UserError(f"{where}, record {number}: has other columns than line 1.")
            records.append(row)
    except csv.Error as error:
        raise UserError(f"{where}, line {rows.line_num}: not CSV: {error}.") from None
    finally:
        csv.field_size_limit(before)
    return records


def _json(path: Path) -> list[Mapping[str, Any]]:
    values = require(read_json(path), list, str(path))
    return [require(value, dict, f"{path}, [{i}]") for i, value in enumerate(values)]


def _parquet(path: Path) -> list[Mapping[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not path.is_file():
        raise UserError(f"{path}: no such file.")
    try:
        rows: list[Mapping[str, Any]] = pq.read_table(path, memory_map=False).to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path}: not Parquet: {error}.") from None
    return rows
