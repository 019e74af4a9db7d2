"""Which setting the document browser opens on."""

from typing import Final

from exitbench.results.database.connection import Database

_FASTEST: Final = """
    SELECT attempt_id FROM frontier
    WHERE execution = 'real' AND NOT is_full_depth AND method NOT IN ('static', 'random', 'oracle')
        AND conforms IS DISTINCT FROM false AND speedup IS NOT NULL AND value >= 0.99 * full_value
    ORDER BY speedup DESC, attempt_id
"""


def recommended(database: Database) -> list[str]:
    """Return attempts of timed settings whose quality is within 1 % of full depth's, the fastest first."""
    found: list[str] = database.query(_FASTEST)["attempt_id"].to_pylist()
    return found
