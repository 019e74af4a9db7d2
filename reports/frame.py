"""Result rows of a query: the only data type that figures and tables see."""

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
"""Views with names and environments of runs, on which nearly all other views depend."""

_DIGITS = 10
"""Significant digits of a number: the last of sixteen depend on the order in which DuckDB's threads add."""


_MOST_CHARACTERS = 1_000
"""Maximum length of a text in a figure or a table; a name in a suite has 100 at most."""


@dataclass(frozen=True)
class Frame:
    """Result of a query: named columns, and rows in order.

    Every query ends in a total ORDER BY, so that the order of the rows is unique.

    Attributes:
        columns: Column names, in order.
        rows: One mapping from column name to value per row; SQL's NULL is None.
    """

    columns: tuple[str, ...]
    rows: tuple[Row, ...]

    @classmethod
    def query(cls, database: Database, sql: str, parameters: Mapping[str, Any] | None = None) -> "Frame":
        """Run `sql` and return its result, with floats rounded to ten digits for reproducible output.

        Args:
            database: An open database.
            sql: DuckDB SQL; `$name` is a parameter.
            parameters: Values by parameter name.

        Raises:
            UserError: If DuckDB refuses the query.

        Examples:
            >>> with open_database(path) as database:
            ...     frame = Frame.query(database, "SELECT task, count(*) AS n FROM runs GROUP BY task ORDER BY task")
            >>> frame.values("task")
            ['squad', 'xsum']
        """
        columns, rows = database.rows(sql, parameters)
        return cls(columns, tuple(dict(zip(columns, map(rounded, row), strict=True)) for row in rows))

    def bounded(self) -> "Frame":
        """Return the frame with texts over 1,000 characters cut in the middle: names in a database can be very long."""
        return Frame(self.columns, tuple({name: _cut(value) for name, value in row.items()} for row in self.rows))

    def groups(self, *names: str) -> Iterator[tuple[tuple[Any, ...], "Frame"]]:
        """Yield (values, rows) per combination of values in the columns `names`, sorted by these values.

        Rows keep their order within a group.

        Examples:
            >>> frame = Frame(("task", "share"), ({"task": "squad", "share": 0.5}, {"task": "xsum", "share": 0.25}))
            >>> [(task, rows.values("share")) for (task,), rows in frame.groups("task")]
            [('squad', [0.5]), ('xsum', [0.25])]
        """

        def key(row: Row) -> tuple[Any, ...]:
            return tuple(row[name] for name in names)

        for values, rows in groupby(sorted(self.rows, key=key), key):
            yield values, Frame(self.columns, tuple(rows))

    def filter(self, keep: Callable[[Row], bool]) -> "Frame":
        """Return the rows for which `keep` is true, as a frame."""
        return Frame(self.columns, tuple(filter(keep, self.rows)))

    def values(self, name: str) -> list[Any]:
        """Return the values of one column, in row order."""
        return [row[name] for row in self.rows]

    def intervals(self, name: str) -> list[tuple[Any, Any]]:
        """Return the values of the columns `name`_low and `name`_high, in row order."""
        return list(zip(self.values(f"{name}_low"), self.values(f"{name}_high"), strict=True))

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
    """Return a float rounded to ten significant digits, which are reproducible; return any other value unchanged."""
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value


@contextmanager
def computed_once(database: Database, views: Sequence[str]) -> Iterator[None]:
    """Materialise views as temporary tables of the same names while the context is open; queries need no change.

    Views that depend on these read the tables too. Small databases gain as well: most of their query time is planning
    the views.

    Args:
        database: An open database.
        views: Names of the views, each after the views it depends on. Views materialised earlier are left alone.
    """
    hidden = {name for (name,) in database.duck.execute(_HIDDEN).fetchall()}
    added = [view for view in views if view not in hidden]
    for view in added:
        database.duck.execute(f"CREATE TEMP TABLE {view} AS FROM {view}")
    try:
        yield
    finally:
        for view in added:
            database.duck.execute(f"DROP TABLE temp.{view}")
