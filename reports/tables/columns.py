"""Columns and cells of tables, and formatting of numbers."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from exitbench.reports.frame import Frame, Row
from exitbench.reports.labels import OTHER_LENGTH, describe, labels, setting
from exitbench.reports.registry import ReportSource

ABSENT = "–"
BREAKS = "✗"
"""Mark before the name of a method that breaks its contract."""
LENGTH_NOTE = (
    f"Tokens: mean number per timed answer, and full depth's; {OTHER_LENGTH}: they differ by more than 5 %, which also "
    "changes the speed-up of a request. Per token: the speed-up of decoding one token."
)
DECODING_NOTE = (
    "Decoding and ideal: the measured speed-up of the same answers without their prompts, and the one that their work "
    "allows (bytes read at batch size 1, operations at larger ones)."
)
BREAKS_NOTE = f"{BREAKS}: the method breaks its contract; do not cite its numbers (see the findings)."


@dataclass(frozen=True)
class TableCell:
    """Cell of a table: its text and its sort key.

    Attributes:
        text: Text shown; not escaped.
        key: Sort key: a number, a text, or None, which sorts last.
        muted: Whether the text is grey because the row shows no effect, such as a speed-up inside the noise floor.
        tone: `better` or `worse` if the value's whole interval is better or worse than full depth; else empty.
    """

    text: str
    key: float | str | None
    muted: bool = False
    tone: Literal["", "better", "worse"] = ""


@dataclass(frozen=True)
class TableColumn:
    """Column of a table.

    Attributes:
        heading: Its heading.
        cell: Builds the cell of a row.
        numeric: Whether it is aligned right and sorts by number.
        long: Whether its text may break anywhere and is limited in height.
        collapses: Whether it moves to the caption if all rows have the same value.
        on_demand: Whether the page shows it only on request.
        hidden_if_empty: Whether it is left out if no row has a value.
        cell_from_rows: For cells that depend on other rows: returns the function to use as `cell`, given all rows of
            the table.
    """

    heading: str
    cell: Callable[[Row], TableCell]
    numeric: bool = False
    long: bool = False
    collapses: bool = False
    on_demand: bool = False
    hidden_if_empty: bool = False
    cell_from_rows: Callable[[Sequence[Row]], Callable[[Row], TableCell]] | None = None


def text(
    heading: str, name: str, *, long: bool = False, collapses: bool = False, on_demand: bool = False
) -> TableColumn:
    """Return a table column of texts: the values of the frame's column `name`, a dash for NULL."""

    def cell(row: Row) -> TableCell:
        value = row[name]
        return TableCell(ABSENT if value is None else str(value), value if value is None else str(value))

    return TableColumn(heading, cell, long=long, collapses=collapses, on_demand=on_demand)


def method(heading: str) -> TableColumn:
    """Return a column of method names, sorted by name. Methods that fail the conformance tests have a mark."""
    return TableColumn(heading, lambda row: TableCell(marked(row, row["method"]), row["method"]))


def marked(row: Row, name: str) -> str:
    """Return `name`, with a mark if the row's method failed its conformance tests."""
    return f"{BREAKS} {name}" if row["conforms"] is False else name


def number(
    heading: str, name: str, form: str, *, on_demand: bool = False, hidden_if_empty: bool = False
) -> TableColumn:
    """Return a table column of numbers: the values of the frame's column `name` in the format `form` (``{:.2f}``)."""

    def cell(row: Row) -> TableCell:
        return TableCell(format_number(row[name], form), row[name])

    return TableColumn(heading, cell, numeric=True, on_demand=on_demand, hidden_if_empty=hidden_if_empty)


def parameters(heading: str, name: str) -> TableColumn:
    """Return a table column of JSON objects: those in the frame's column `name`, as ``'name=value, ...'``."""

    def cell(row: Row) -> TableCell:
        label = describe(json.loads(row[name] or "{}"))
        return TableCell(label or ABSENT, label or None)

    return TableColumn(heading, cell, long=True)


def settings(heading: str) -> TableColumn:
    """Return a table column of those parameters that distinguish a row's setting from other settings of its method."""

    def cell_from_rows(rows: Sequence[Row]) -> Callable[[Row], TableCell]:
        names = labels(rows)

        def cell(row: Row) -> TableCell:
            label = names[setting(row)].removeprefix(row["method"]).strip()
            return TableCell(label or ABSENT, label or None)

        return cell

    return TableColumn(heading, lambda row: cell_from_rows([row])(row), long=True, cell_from_rows=cell_from_rows)


def format_number(value: Any, form: str) -> str:
    """Return `value` in the format `form`, or a dash for None."""
    return ABSENT if value is None else form.format(value)


def with_interval(value: float | None, low: float | None, high: float | None, digits: int) -> str:
    """Return ``'1.45 [1.40, 1.50]'``, without brackets if there is no interval, or a dash."""
    if value is None:
        return ABSENT
    if low is None or high is None:
        return f"{value:.{digits}f}"
    return f"{value:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def metric_digits(row: Row) -> int:
    """Return the number of decimals for a row's metric: three if its values are at most 1, else one."""
    largest = max(abs(row[name] or 0.0) for name in ("value", "full_value"))
    return 3 if largest <= 1 else 1


@dataclass(frozen=True)
class FilledTable:
    """Table with its cells, independent of the output format.

    Attributes:
        source: Its query, title and caption.
        frame: Rows that the query returned.
        columns: Columns shown.
        collapsed_values: Columns left out because all rows have the same value, as text:
            ``'Setting: float32; Kind: real'``.
        rows: One cell per column of `columns`, in the order of the frame.
    """

    source: ReportSource
    frame: Frame
    columns: tuple[TableColumn, ...]
    collapsed_values: str
    rows: tuple[tuple[TableCell, ...], ...]

    @property
    def note(self) -> str:
        """Explanation of the mark of methods that break their contract, if the table has one; else empty."""
        return BREAKS_NOTE if any(cell.text.startswith(BREAKS) for row in self.rows for cell in row) else ""


def fill(source: ReportSource, frame: Frame) -> FilledTable:
    """Return the table `source`, filled with the cells of every row of `frame`."""
    columns, collapsed_values, rows = fill_columns(source.module.COLUMNS, frame.rows)
    return FilledTable(source, frame, columns, collapsed_values, rows)


def fill_columns(
    columns: Sequence[TableColumn], rows: Sequence[Row]
) -> tuple[tuple[TableColumn, ...], str, tuple[tuple[TableCell, ...], ...]]:
    """Return the columns to show, the collapsed columns' values as text, and the cells of every row."""
    makers = {column: column.cell_from_rows(rows) if column.cell_from_rows else column.cell for column in columns}
    cells = [{column: make(row) for column, make in makers.items()} for row in rows]
    unknown = {c for c in columns if c.hidden_if_empty and all(row[c].key is None for row in cells)}
    collapsed_values = {
        c: cells[0][c].text for c in columns if c.collapses and c not in unknown and len({row[c] for row in cells}) == 1
    }
    visible_columns = tuple(column for column in columns if column not in collapsed_values and column not in unknown)
    collapsed_text = "; ".join(f"{column.heading}: {text}" for column, text in collapsed_values.items())
    return visible_columns, collapsed_text, tuple(tuple(row[column] for column in visible_columns) for row in cells)
