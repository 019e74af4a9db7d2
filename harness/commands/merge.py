"""``exitbench import``: results from another database, spool, export, or from pytest-benchmark."""

import sys
from argparse import Namespace

from exitbench.harness.commands.folders import Runs
from exitbench.results.merge import merge

_KINDS = {"spool": "a spool", "snapshot": "an export", "database": "a database", "benchmarks": "benchmark results"}


def import_results(arguments: Namespace) -> int:
    """Bring a source into the spool and the database; returns 1 if something was left out.

    Raises:
        UserError: The source is nothing that can be imported, or contradicts what is here.
    """
    runs = Runs(arguments.runs)
    report = merge(arguments.source, runs.spool, arguments.database or runs.database)
    for problem in report.problems:
        print(f"left out: {problem}", file=sys.stderr)
    what = "files" if report.kind == "benchmarks" else "attempts"
    known = "" if report.kind == "benchmarks" else f", {report.known} were here already"
    scores = f"; {report.rescored} rescores of those are new" if report.rescored else ""
    print(f"{arguments.source}: {_KINDS[report.kind]}; {report.added} {what} are new{known}{scores}.")
    return 1 if report.problems else 0
