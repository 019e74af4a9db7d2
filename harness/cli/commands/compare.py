"""``exitbench compare``: two or more runs over the same documents."""

import sys
from argparse import Namespace
from dataclasses import asdict

from exitbench.harness.cli.commands.database import existing_database
from exitbench.harness.cli.commands.rows import FORMATS
from exitbench.harness.service import comparing
from exitbench.results.analysis.comparison import Comparison
from exitbench.results.database.connection import open_database
from exitbench.terminal import tell


def compare_runs(arguments: Namespace) -> int:
    """Print the contrasts; what to keep in mind goes to standard error.

    Raises:
        UserError: A name fits no run or too many, or the runs are of different documents.
    """
    with open_database(existing_database(arguments)) as database:
        found = comparing.compare_runs(database, arguments.a, arguments.b)
    for warning in found.warnings:
        tell(f"warning: {warning}")
    _print(found, arguments.format)
    return 0


def _print(found: Comparison, form: str) -> None:
    rows = [asdict(contrast) for contrast in found.contrasts]
    names = list(rows[0])
    if form == "table":
        rows = [{name: f"✗ {value}" if value in found.broken else value for name, value in row.items()} for row in rows]
        # The runs' names are long: what is the same in every row is said once.
        tell(f"a: {rows[0]['run_a']}", sys.stdout)
        same = {"run_a"} if len({row["run_b"] for row in rows}) > 1 else {"run_a", "run_b"}
        if "run_b" in same:
            tell(f"b: {rows[0]['run_b']}", sys.stdout)
        print()
        names = [name for name in names if name not in same]
    FORMATS[form](names, [[row[name] for name in names] for row in rows])
