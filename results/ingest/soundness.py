"""Soundness of rows from elsewhere: what they refer to is there, ids are ids, and values are those that runs make."""

from collections.abc import Mapping
from typing import Any, Final

from exitbench.errors import UserError
from exitbench.results.database.tables import declared_tables, quoted, spelled
from exitbench.results.spool.schema import STATUSES
from exitbench.results.tables import REFERENCES, TABLES

_IDS: Final = (
    ("attempt", "attempt_id", "[0-9]{8}T[0-9]{12}Z-[0-9a-f]{8}"),
    ("cell", "cell_id", "[0-9a-f]{64}"),
)
"""Ids of which folders of the spool have their names."""
_POSITIONS_FROM_0: Final = ("timing_sample", "energy_sample")
"""Tables whose position is a place in the order of arms, not that of a token."""
_BLOCKS: Final = (
    "(SELECT attempt_id, blocks FROM ({attempt}) JOIN ({cell}) USING (cell_id) "
    "JOIN ({model_artifact}) USING (model_id))"
)


def require_sound(duck: Any, sources: Mapping[str, str], where: str) -> None:
    """Check rows of somebody else's.

    Args:
        duck: DuckDB's connection.
        sources: What to select the rows of every table from, in SQL.
        where: Where they are from, for messages.

    Raises:
        UserError: An id, a status, an exit layer or a position is none, or a row is of an attempt, cell, model ...
            that is not among them; names it.
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
    _require_values(duck, sources, where)


def _require_values(duck: Any, sources: Mapping[str, str], where: str) -> None:
    """Check that statuses are known, exit layers are blocks of the model, and positions count from 1."""
    selected = {table: f"SELECT * FROM {source}" for table, source in sources.items()}
    statuses = ", ".join(f"'{status}'" for status in STATUSES)
    for table, columns in declared_tables().items():
        if table not in sources:
            continue
        faults: list[tuple[str, str, str]] = []
        if table == "attempt":
            faults.append(("status", f"status NOT IN ({statuses})", ", ".join(STATUSES)))
        if "position" in columns and table not in _POSITIONS_FROM_0:
            faults.append(("position", "position < 1", "1 and more"))
        if "exit_layer" in columns and "attempt_id" in columns:
            low, high = ("list_min({})", "list_max({})") if columns["exit_layer"].type.endswith("[]") else ("{}", "{}")
            wrong = f"{low.format('exit_layer')} < 1 OR {high.format('exit_layer')} > blocks"
            faults.append(("exit_layer", wrong, "1 to the model's number of blocks"))
        for column, wrong, allowed in faults:
            rows = f"({selected[table]})"
            if "blocks" in wrong:
                rows += f" JOIN {_BLOCKS.format(**selected)} USING (attempt_id)"
            bad = duck.execute(f"SELECT {column} FROM {rows} WHERE {wrong} LIMIT 1").fetchone()
            if bad is not None:
                raise UserError(f"{where}: {table}.{column} has {spelled(str(bad[0]))}. Allowed: {allowed}.")
