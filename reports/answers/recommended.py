"""Which setting the document browser opens on."""

from typing import Final

from exitbench.results.database.connection import Database

_FASTEST: Final = """
    SELECT attempt_id FROM pareto
    WHERE NOT is_static AND loss_high_percent <= 1
    ORDER BY speedup DESC, attempt_id
"""


def recommended(database: Database) -> list[str]:
    """Return attempts of settings that are shown to lose 1 % of full depth's quality at most, the fastest first."""
    found: list[str] = database.query(_FASTEST)["attempt_id"].to_pylist()
    return found
