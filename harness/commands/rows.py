"""Rows on standard output, in the formats that every command that answers with rows has."""

import csv
import json
import sys
from collections.abc import Sequence
from typing import Any, Final

Row = Sequence[Any]


def _print_table(names: Row, rows: Sequence[Row]) -> None:
    cells = [[_text(value) for value in row] for row in (names, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    numeric = [bool(rows) and all(isinstance(row[n], int | float | None) for row in rows) for n in range(len(names))]
    lines = [
        "  ".join(
            c.rjust(w) if right else c.ljust(w) for c, w, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in cells
    ]
    print("\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]]))


def _print_csv(names: Row, rows: Sequence[Row]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerows([names, *([_csv_value(value) for value in row] for row in rows)])


def _print_json(names: Row, rows: Sequence[Row]) -> None:
    print(json.dumps([dict(zip(names, row, strict=True)) for row in rows], default=str, ensure_ascii=False, indent=1))


def _text(value: Any) -> str:
    """A value for a terminal: control characters, which a model may have written, are spelled out."""
    text = "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _csv_value(value: Any) -> Any:
    return json.dumps(value, default=str, ensure_ascii=False) if isinstance(value, list | dict) else value


FORMATS: Final = {"table": _print_table, "csv": _print_csv, "json": _print_json}
