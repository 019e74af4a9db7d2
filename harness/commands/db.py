"""``exitbench db``: the database itself, apart from what it says."""

import sys
from argparse import Namespace

from tqdm import tqdm

from exitbench.harness.commands.folders import Runs
from exitbench.results.database import rebuild


def db(arguments: Namespace) -> int:
    """Rebuild the database from the spool; returns 1 if some attempt was left out.

    Raises:
        UserError: The database is in use or cannot be written.
    """
    runs = Runs(arguments.runs)
    path = arguments.database or runs.database
    with tqdm(unit="attempt", desc="rebuild", file=sys.stderr, disable=not sys.stderr.isatty()) as bar:

        def on_attempt(seen: int, total: int) -> None:
            bar.total, bar.n = total, seen
            bar.refresh()

        report = rebuild(runs.spool, path, on_attempt)
    for message in report.quarantined:
        print(f"left out of the database: {message}", file=sys.stderr)
    print(f"{path}: {report.added} attempts, {report.unfinished} unfinished, {len(report.quarantined)} left out.")
    return 1 if report.quarantined else 0
