"""The rows a query gave: the only data type that figures and tables see."""

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from exitbench.results.database.connection import Database
from exitbench.results.files.formats import csv_writer
from exitbench.terminal import without_middle

Row = Mapping[str, Any]

_HIDDEN = "SELECT table_name FROM duckdb_tables() WHERE temporary"

NAMING_VIEWS = ("settings", "run_names", "parameters", "runs")
"""What runs are called and where they ran, a row each: nearly every other view is made of these."""

_DIGITS = 10
"""Significant digits of a number: the last of its sixteen depend on the order in which DuckDB's threads add."""


_MOST_CHARACTERS = 1_000
"""Of a text in a figure or a table: a name in a suite has 100 at most."""


@dataclass(frozen=True)
class Frame:
    """An ordered table. Every query ends in a total ORDER BY, so that a frame has one possible order.

    Attributes:
        columns: Column names, in order.
        rows: One mapping of column name to value a row; SQL's NULL is None.
    """

    columns: tuple[str, ...]
    rows: tuple[Row, ...]

    @classmethod
    def query(cls, database: Database, sql: str, parameters: Mapping[str, Any] | None = None) -> "Frame":
        """Run `sql` and keep its whole result, numbers to ten digits, so that it is the same each time.

        Args:
            database: Where.
            sql: DuckDB SQL; `$name` stands for a parameter.
            parameters: Their values.

        Raises:
            UserError: If DuckDB refuses the query.
        """
        columns, rows = database.rows(sql, parameters)
        return cls(columns, tuple(dict(zip(columns, map(rounded, row), strict=True)) for row in rows))

    def bounded(self) -> "Frame":
        """Return the frame with long texts cut in their middle: a database may have names of a megabyte."""
        return Frame(self.columns, tuple({name: _cut(value) for name, value in row.items()} for row in self.rows))

    def groups(self, *names: str) -> Iterator[tuple[tuple[Any, ...], "Frame"]]:
        """Yield (values of the columns `names`, their rows), sorted by those values; rows keep their order."""

        def key(row: Row) -> tuple[Any, ...]:
            return tuple(row[name] for name in names)

        for values, rows in groupby(sorted(self.rows, key=key), key):
            yield values, Frame(self.columns, tuple(rows))

    def where(self, keep: Callable[[Row], bool]) -> "Frame":
        """Return the rows that `keep` says to."""
        return Frame(self.columns, tuple(filter(keep, self.rows)))

    def values(self, name: str) -> list[Any]:
        """Return one column."""
        return [row[name] for row in self.rows]

    def distinct(self, name: str) -> list[Any]:
        """Return the sorted distinct values of one column."""
        return sorted(set(self.values(name)))

    def csv(self) -> str:
        """Return the frame as CSV with a header and bare newlines; NULL is an empty field."""
        text = io.StringIO()
        writer = csv_writer(text)
        writer.writerow(self.columns)
        writer.writerows([row[name] for name in self.columns] for row in self.rows)
        return text.getvalue()


def _cut(value: Any) -> Any:
    return without_middle(value, _MOST_CHARACTERS) if isinstance(value, str) else value


def rounded(value: Any) -> Any:
    """Return a number without the digits that vary from run to run, and anything else as it is."""
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value


@contextmanager
def computed_once(database: Database, views: Sequence[str]) -> Iterator[None]:
    """Hide views that many queries ask behind temporary tables of their names: the SQL stays as it is without them.

    Views that are made of these find the tables too. Queries of small databases are faster by it as well: most of their
    time goes into planning the views that they name.

    Args:
        database: An open database.
        views: Their names, each behind those that it is made of. What is hidden already stays so.
    """
    hidden = {name for (name,) in database.duck.execute(_HIDDEN).fetchall()}
    own = [view for view in views if view not in hidden]
    for view in own:
        database.duck.execute(f"CREATE TEMP TABLE {view} AS FROM {view}")
    try:
        yield
    finally:
        for view in own:
            database.duck.execute(f"DROP TABLE temp.{view}")
