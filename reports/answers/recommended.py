"""Which setting the document browser opens on."""

from typing import Final

from exitbench.reports.front.cards import DEFAULT_PERCENT
from exitbench.results.database.connection import Database

_FASTEST: Final = """
    SELECT attempt_id FROM pareto
    WHERE NOT is_static AND confirmed_percent <= ? AND coalesce(next_percent > ?, true)
    ORDER BY confirming_speedup DESC, attempt_id
"""


def recommended(database: Database, percent: float = DEFAULT_PERCENT) -> list[str]:
    """Return attempts of settings that are chosen and confirmed at this allowed loss, the fastest first."""
    found: list[str] = database.query(_FASTEST, [percent, percent])["attempt_id"].to_pylist()
    return found
