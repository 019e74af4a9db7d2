"""Output formats for all commands that print rows of a table: aligned text, CSV, JSON, Parquet."""

import json
import math
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

from exitbench.errors import UserError
from exitbench.results.files.atomic import require_replaceable, whole_file
from exitbench.results.files.formats import csv_writer
from exitbench.terminal import abbreviate_uniquely, visible

if TYPE_CHECKING:
    from exitbench.results.database.answers import QueryResult

Row = Sequence[Any]

_CUT: Final = 40
"""Maximum characters per cell in a table that is too wide for the terminal."""


def save(answer: "QueryResult", path: Path, form: str, force: bool = False) -> int:
    """Write the rows of a query result to a file atomically; return the number of rows.

    Args:
        answer: The query result, read in batches.
        path: The file.
        form: ``csv``, ``json`` or ``parquet``.
        force: Whether an existing file may be replaced.

    Raises:
        UserError: The file exists or is not a regular file, its folder cannot be written, or Parquet does not support
            the type of a column.
    """
    from pyarrow import ArrowException

    try:
        require_replaceable(path)
        if path.exists() and not force:
            raise UserError(f"{path} is there already. Name another file, or add --force to replace it.")
        with whole_file(path) as temporary_path:
            return (
                _save_parquet(answer, temporary_path) if form == "parquet" else _save_text(answer, temporary_path, form)
            )
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}.") from error
    except ArrowException as error:
        raise UserError(f"{path} cannot be written as {form}: {error}. A cast in the query helps, or csv.") from error


def _save_parquet(answer: "QueryResult", path: Path) -> int:
    from pyarrow import parquet

    written = 0
    with parquet.ParquetWriter(path, answer.schema, compression="zstd") as writer:
        for batch in answer.batches:
            writer.write_batch(batch)
            written += batch.num_rows
    return written


def _save_text(answer: "QueryResult", path: Path, form: str) -> int:
    written = 0

    def counted() -> Iterator[Row]:
        nonlocal written
        for row in answer.rows():
            written += 1
            yield row

    with path.open("w", encoding="utf-8", newline="") as file:
        FORMATS[form](answer.schema.names, counted(), file)
    return written


def _write_table(names: Row, rows: Iterable[Row], file: TextIO | None = None) -> None:
    """Write a table with aligned columns, after reading all rows.

    If the table is too wide for the terminal, long cells are abbreviated, but different cells stay different. If it is
    still too wide, each value is written on a separate line.
    """
    rows, stream = list(rows), file or sys.stdout
    room = shutil.get_terminal_size().columns if stream.isatty() else math.inf
    cells = [[_text(value) for value in row] for row in (names, *rows)]
    if _width(cells) > room:
        columns = [abbreviate_uniquely(column, _CUT) for column in zip(*cells, strict=True)]
        cut = [list(line) for line in zip(*columns, strict=True)]
        if rows and _width(cut) > room:
            _write_records(cells, stream)
            return
        cells = cut
    widths = _widths(cells)
    numeric = [bool(rows) and all(isinstance(row[n], _NUMBERS) for row in rows) for n in range(len(names))]
    lines = [
        "  ".join(
            c.rjust(w) if right else c.ljust(w) for c, w, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in cells
    ]
    print("\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]]), file=stream)


def _widths(cells: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*cells, strict=True)]


def _width(cells: Sequence[Sequence[str]]) -> int:
    """Return the number of characters in a line of an aligned table, including column separators."""
    widths = _widths(cells)
    return sum(widths) + 2 * (len(widths) - 1)


def _write_records(cells: Sequence[Sequence[str]], stream: TextIO) -> None:
    names, *rows = cells
    width = max(map(len, names)) + 1
    for number, row in enumerate(rows, start=1):
        print(f"-- {number} --", file=stream)
        for name, text in zip(names, row, strict=True):
            print(f"{name + ':':{width}} {text}".rstrip(), file=stream)


def _write_csv(names: Row, rows: Iterable[Row], file: TextIO | None = None) -> None:
    """Write table rows as CSV; control characters are escaped on a terminal, and unchanged in a file or pipe."""
    stream = file or sys.stdout
    writer = csv_writer(stream)
    escape = _escaped if stream.isatty() else lambda value: value
    writer.writerow(map(escape, names))
    writer.writerows([escape(_csv_value(value)) for value in row] for row in rows)


def _write_json(names: Row, rows: Iterable[Row], file: TextIO | None = None) -> None:
    stream = file or sys.stdout
    separator = "[\n"
    for row in rows:
        text = _json(dict(zip(names, row, strict=True)), indent=1)
        stream.write(separator + "\n".join(f" {line}" for line in text.split("\n")))
        separator = ",\n"
    stream.write("[]\n" if separator == "[\n" else "\n]\n")


def _text(value: Any) -> str:
    """Return a table cell's value as text, with control characters escaped, since a model may have written it."""
    text = "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
    return visible(text)


def _csv_value(value: Any) -> Any:
    return _json(value) if isinstance(value, list | dict) else value


def _escaped(value: Any) -> Any:
    return visible(value) if isinstance(value, str) else value


def _json(value: Any, indent: int | None = None) -> str:
    """Return a value as JSON text, with invisible characters replaced by Unicode escapes."""
    text = json.dumps(_plain(value), default=str, ensure_ascii=False, indent=indent, allow_nan=False)
    if text.isascii() and "\x7f" not in text:
        return text
    return "".join(c if c == "\n" or visible(c) == c else json.dumps(c)[1:-1].replace("\x7f", "\\u007f") for c in text)


def _plain(value: Any) -> Any:
    """Convert a value to plain JSON types: NaN and infinity become None, decimals become numbers."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


_NUMBERS: Final = int | float | Decimal | None
FORMATS: Final = {"table": _write_table, "csv": _write_csv, "json": _write_json}
