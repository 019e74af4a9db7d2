"""Retry while the database is in use, as long as whoever has it gets on with something."""

import time
from collections.abc import Callable
from typing import Final, TypeVar

from exitbench.results.database.connection import DatabaseInUse

Result = TypeVar("Result")

PATIENCE_S: Final = 120.0
"""How long to wait for a process that has the database open and of which nothing is known, such as a `duckdb` shell."""


def patiently(action: Callable[[], Result], say: Callable[[str], None], patience_s: float = PATIENCE_S) -> Result:
    """Do what opens the database, again and again while it is in use.

    A process of ExitBench that fills the database holds the lock (`access_lock`), ends its work, and is waited for
    however long that takes. Of any other holder only time tells.

    Args:
        action: What to do; it must have done nothing where it raises `DatabaseInUse`.
        say: Told once of each holder.
        patience_s: How long to wait for one holder of which nothing is known.

    Raises:
        DatabaseInUse: It has not let go.
    """
    notified: set[str] = set()
    unknown, since_s = "", 0.0
    while True:
        started_s = time.monotonic()
        try:
            return action()
        except DatabaseInUse as error:
            if not error.is_ours:
                if error.who != unknown:
                    unknown, since_s = error.who, started_s
                if (waited_s := time.monotonic() - since_s) >= patience_s:
                    raise DatabaseInUse(error.path, error.who, round(waited_s)) from error
            if error.who not in notified:
                notified.add(error.who)
                say(f"{error.path} is in use by {error.who}; waiting for it.")
