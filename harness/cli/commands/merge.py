"""``exitbench import``: results from another spool, a snapshot, or pytest-benchmark."""

import sys
from argparse import Namespace

from exitbench.harness.service.folders import Runs
from exitbench.results.ingest.merge import merge
from exitbench.terminal import number_of, tell

_KINDS = {"spool": "a spool", "snapshot": "an export", "benchmarks": "benchmark results"}


def import_results(arguments: Namespace) -> int:
    """Bring a source into the spool and the database; returns 1 if something was left out.

    Raises:
        UserError: The source is nothing that can be imported, or contradicts what is here.
    """
    runs = Runs(arguments.runs)
    report = merge(arguments.source, runs.spool, arguments.database or runs.database)
    for problem in report.problems:
        tell(f"left out: {problem}")
    added = number_of(report.added, "file" if report.kind == "benchmarks" else "attempt")
    known = (
        "" if report.kind == "benchmarks" else f", {report.known} {'was' if report.known == 1 else 'were'} here already"
    )
    scores = (
        f"; {number_of(report.rescored, 'rescore')} of those {_are(report.rescored)} new" if report.rescored else ""
    )
    tell(f"{arguments.source}: {_KINDS[report.kind]}; {added} {_are(report.added)} new{known}{scores}.", sys.stdout)
    return 1 if report.problems else 0


def _are(n: int) -> str:
    return "is" if n == 1 else "are"
