"""Which setting the document browser opens on."""

from typing import Final

from exitbench.reports.front.cards import DEFAULT_PERCENT
from exitbench.results.database.connection import Database

_FASTEST: Final = """
    SELECT attempt_id FROM pareto
    WHERE NOT is_static AND loss_high_percent <= ?
    ORDER BY speedup DESC, attempt_id
"""


def recommended(database: Database, percent: float = DEFAULT_PERCENT) -> list[str]:
    """Return attempts of settings that are shown to lose so much of full depth's quality at most, the fastest first."""
    found: list[str] = database.query(_FASTEST, [percent])["attempt_id"].to_pylist()
    return found
