"""Words and numbers of the sentences that captions begin with."""

from collections.abc import Callable, Iterable, Sequence

from exitbench.reports.frame import Row
from exitbench.reports.labels import Setting, setting, shorten

_NAME_LENGTH = 48


def called(text: str) -> str:
    """Return a name out of the data so that a sentence stays one, however long it is."""
    return shorten(text, _NAME_LENGTH)


def percent(share: float) -> str:
    """Return ``'83 %'``; 100 only of what is whole and 0 only of what is none."""
    whole = round(100 * share)
    if (whole >= 100 and share < 1) or (whole <= 0 and share > 0):
        return f"{100 * share:.2g} %" if share < 0.5 else "more than 99 %"
    return f"{whole} %"


def times(ratio: float, low: float | None = None, high: float | None = None) -> str:
    """Return ``'1.74×'``, with its interval in brackets where there is one."""
    return f"{ratio:.2f}×" + ("" if low is None or high is None else f" [{low:.2f}, {high:.2f}]")


def listed(parts: Sequence[str]) -> str:
    """Return ``'a, b and c'``."""
    return " and ".join(filter(None, [", ".join(parts[:-1]), *parts[-1:]]))


def extremes(rows: Iterable[Row], column: str) -> tuple[Row, Row]:
    """Return the rows with the lowest and with the highest value of a column, the first of equals; NULL is none."""
    known = [row for row in rows if row[column] is not None]
    return min(known, key=lambda row: row[column]), max(known, key=lambda row: row[column])


def between(rows: Sequence[Row], column: str, write: Callable[[float], str], where: Sequence[str]) -> str:
    """Return ``'12 % (model, task) to 98 % (model, task)'`` for the values of a column; one value where all agree."""
    low, high = extremes(rows, column)
    ends = [write(row[column]) for row in (low, high)]
    if ends[0] == ends[1]:
        return ends[0]
    return " to ".join(f"{end} ({of_which(row, where)})" for end, row in zip(ends, (low, high), strict=True))


def of_which(row: Row, where: Sequence[str]) -> str:
    """Return the values of some columns of a row, as ``'weighted, squad'``."""
    return ", ".join(called(str(row[column])) for column in where)


def label_of(names: dict[Setting, str], row: Row) -> str:
    """Return the label of a row's setting, its method alone where that says all."""
    return called(names[setting(row)])
