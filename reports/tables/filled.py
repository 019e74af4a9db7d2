"""A table ready to be written: what every row agrees on is said once."""

from collections.abc import Sequence
from dataclasses import dataclass

from exitbench.reports.frame import Frame, Row
from exitbench.reports.registry import Source
from exitbench.reports.tables.columns import BREAKS, BREAKS_NOTE, Cell, Column


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
