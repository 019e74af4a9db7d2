"""What a table consists of, and how its numbers are written."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from exitbench.reports.frame import Frame, Row
from exitbench.reports.labels import OTHER_LENGTH, describe, labels, setting
from exitbench.reports.registry import Source

ABSENT = "–"
BREAKS = "✗"
"""Before the name of a method that breaks its contract."""
LENGTH_NOTE = (
    f"Tokens: of a timed answer, of full depth's, {OTHER_LENGTH} where they differ by more than 5 %, since a method "
    "that stops earlier is not faster; per token: the speed-up of decoding one."
)
DECODING_NOTE = (
    "Decoding and ideal are of the same answers without their prompts: the measured speed-up, and the one that their "
    "work allows (bytes read at batch size 1, operations at larger ones)."
)
BREAKS_NOTE = f"{BREAKS}: the method breaks its contract, so that its numbers are not to be cited (see the findings)."


@dataclass(frozen=True)
class Cell:
    """One cell as it is read and as it is sorted.

    Attributes:
        text: What the reader sees; not escaped.
        key: What the column sorts by: a number, a text, or None, which sorts last.
        muted: Whether it is drawn grey because it shows nothing (inside the noise floor).
        tone: Whether the whole interval says that it is better or worse than full depth; nothing where it does not.
    """

    text: str
    key: float | str | None
    muted: bool = False
    tone: Literal["", "better", "worse"] = ""


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
        heading: Its heading.
        cell: Makes the cell of a row.
        numeric: Whether it is aligned right and sorts by number.
        long: Whether its text may break anywhere and is limited in height.
        collapses: Whether it is only said once, in the caption, when all rows agree.
        on_demand: Whether the page shows it only where it is asked for.
        where_known: Whether it is left out where no row has a value.
        among: Makes `cell` for the rows of one table, where a cell depends on the others.
    """

    heading: str
    cell: Callable[[Row], Cell]
    numeric: bool = False
    long: bool = False
    collapses: bool = False
    on_demand: bool = False
    where_known: bool = False
    among: Callable[[Sequence[Row]], Callable[[Row], Cell]] | None = None


def text(heading: str, name: str, *, long: bool = False, collapses: bool = False, on_demand: bool = False) -> Column:
    """Return a column of text."""

    def cell(row: Row) -> Cell:
        value = row[name]
        return Cell(ABSENT if value is None else str(value), value if value is None else str(value))

    return Column(heading, cell, long=long, collapses=collapses, on_demand=on_demand)


def method(heading: str) -> Column:
    """Return a column of method names, marked where one breaks its contract; sorted by name all the same."""
    return Column(heading, lambda row: Cell(marked(row, row["method"]), row["method"]))


def marked(row: Row, name: str) -> str:
    """Return `name`, marked where the row's method is known to break its contract."""
    return f"{BREAKS} {name}" if row["conforms"] is False else name


def number(heading: str, name: str, form: str, *, on_demand: bool = False, where_known: bool = False) -> Column:
    """Return a column of numbers, written with the format `form` such as ``{:.2f}``."""

    def cell(row: Row) -> Cell:
        return Cell(written(row[name], form), row[name])

    return Column(heading, cell, numeric=True, on_demand=on_demand, where_known=where_known)


def parameters(heading: str, name: str) -> Column:
    """Return a column for a JSON object, as ``'name=value, ...'``."""

    def cell(row: Row) -> Cell:
        shown = describe(json.loads(row[name] or "{}"))
        return Cell(shown or ABSENT, shown or None)

    return Column(heading, cell, long=True)


def settings(heading: str) -> Column:
    """Return a column that tells a method's settings apart by what differs between them; rows as for `labels`."""

    def among(rows: Sequence[Row]) -> Callable[[Row], Cell]:
        names = labels(rows)

        def cell(row: Row) -> Cell:
            shown = names[setting(row)].removeprefix(row["method"]).strip()
            return Cell(shown or ABSENT, shown or None)

        return cell

    return Column(heading, lambda row: among([row])(row), long=True, among=among)


def written(value: Any, form: str) -> str:
    """Return `value` in the format `form`, or a dash for None."""
    return ABSENT if value is None else form.format(value)


def with_interval(value: float | None, low: float | None, high: float | None, digits: int) -> str:
    """Return ``'1.45 [1.40, 1.50]'``, without the brackets where no interval was computed, or a dash."""
    if value is None:
        return ABSENT
    if low is None or high is None:
        return f"{value:.{digits}f}"
    return f"{value:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def metric_digits(row: Row) -> int:
    """Return the decimals of a metric: one for those on a scale to 100, three for those on a scale to 1."""
    largest = max(abs(row[name] or 0.0) for name in ("value", "full_value"))
    return 3 if largest <= 1 else 1


@dataclass(frozen=True)
class FilledTable:
    """A table as every form of the report needs it.

    Attributes:
        source: Its query and its texts.
        frame: The rows behind it.
        columns: Those that are shown.
        agreed: What is the same in all rows and so has no column, as ``'Setting: float32; Kind: real'``.
        rows: A cell for each of `columns`, in the order of the frame.
    """

    source: Source
    frame: Frame
    columns: tuple[Column, ...]
    agreed: str
    rows: tuple[tuple[Cell, ...], ...]

    @property
    def note(self) -> str:
        """What the mark of methods that break their contract means, where there is one; else nothing."""
        return BREAKS_NOTE if any(cell.text.startswith(BREAKS) for row in self.rows for cell in row) else ""


def fill(source: Source, frame: Frame) -> FilledTable:
    """Return `source` with the cells of every row of `frame`."""
    columns, agreed, rows = fill_columns(source.module.COLUMNS, frame.rows)
    return FilledTable(source, frame, columns, agreed, rows)


def fill_columns(
    columns: Sequence[Column], rows: Sequence[Row]
) -> tuple[tuple[Column, ...], str, tuple[tuple[Cell, ...], ...]]:
    """Return the columns to show, what those that collapse agree on, and the cells of every row."""
    makers = {column: column.among(rows) if column.among else column.cell for column in columns}
    cells = [{column: make(row) for column, make in makers.items()} for row in rows]
    unknown = {c for c in columns if c.where_known and all(row[c].key is None for row in cells)}
    agreed = {
        c: cells[0][c].text for c in columns if c.collapses and c not in unknown and len({row[c] for row in cells}) == 1
    }
    shown = tuple(column for column in columns if column not in agreed and column not in unknown)
    said = "; ".join(f"{column.heading}: {text}" for column, text in agreed.items())
    return shown, said, tuple(tuple(row[column] for column in shown) for row in cells)
