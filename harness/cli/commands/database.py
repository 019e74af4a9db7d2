"""Database that a command reads."""

from argparse import Namespace
from pathlib import Path

from exitbench.harness.service.folders import existing_runs


def existing_database(arguments: Namespace) -> Path:
    """Return the path of ``--database``, or else of the database in the folder of ``--runs``.

    Raises:
        UserError: No database is named, and there is no such folder.
    """
    named: Path | None = arguments.database
    return named or existing_runs(arguments.runs).database
