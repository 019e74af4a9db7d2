"""Referential integrity of rows from elsewhere: what they refer to is there, and ids are ids."""

from collections.abc import Mapping
from typing import Any, Final

from exitbench.errors import UserError
from exitbench.results.database.tables import quoted, spelled
from exitbench.results.tables import REFERENCES, TABLES

_IDS: Final = (
    ("attempt", "attempt_id", "[0-9]{8}T[0-9]{12}Z-[0-9a-f]{8}"),
    ("cell", "cell_id", "[0-9a-f]{64}"),
)
"""Ids of which folders of the spool have their names."""


def require_sound(duck: Any, sources: Mapping[str, str], where: str) -> None:
    """Check rows of somebody else's.

    Args:
        duck: DuckDB's connection.
        sources: What to select the rows of every table from, in SQL.
        where: Where they are from, for messages.

    Raises:
        UserError: An id is none, or a row is of an attempt, cell, model ... that is not among them; names it.
    """
    for table, column, pattern in _IDS:
        bad_id = duck.execute(
            f"SELECT {quoted(column)} FROM {sources[table]} WHERE NOT regexp_full_match({quoted(column)}, $1) LIMIT 1",
            [pattern],
        ).fetchone()
        if bad_id is not None:
            raise UserError(f"{where}: {table}.{column} {spelled(bad_id[0])} is no id that ExitBench gives.")
    for table, column, owner in REFERENCES:
        # An attempt may get more rows after it ended, and a snapshot may have only these.
        if TABLES[table].grows_later or table not in sources or owner not in sources:
            continue
        key = quoted(column)
        n, example = duck.execute(
            f"SELECT count(*), min({key}) FROM (SELECT {key} FROM {sources[table]}) ANTI JOIN "
            f"(SELECT {key} FROM {sources[owner]}) USING ({key})"
        ).fetchone()
        if n:
            raise UserError(
                f"{where}: {n} rows of {table} are of a {column} that {owner} does not have, such as "
                f"{spelled(example)}. Nothing of it is taken."
            )
