"""``exitbench check``: what a reader should know of the runs before citing them."""

from argparse import Namespace
from itertools import groupby
from textwrap import fill

from exitbench.harness.cli.commands.database import existing_database

_MEANING = {3: "do not cite", 2: "look before you cite", 1: "remark"}
_WIDTH = 118
_QUERY = """
    SELECT severity, rule, message, count(*) AS runs, min(printf('%s/%s/%s', model, task_label, method)) AS example
    FROM qc WHERE severity >= ? GROUP BY ALL ORDER BY severity DESC, rule, runs DESC, message, example
"""


def check(arguments: Namespace) -> int:
    """Print every finding, the gravest first; return 1 where one forbids a final report.

    Raises:
        UserError: The database cannot be opened.
    """
    from exitbench.reports.material import DO_NOT_CITE
    from exitbench.results.database.connection import open_database
    from exitbench.terminal import number_of, visible

    with open_database(existing_database(arguments)) as database:
        rows = database.query(_QUERY, [arguments.severity]).to_pylist()
    for severity, findings in groupby(rows, lambda row: int(row["severity"])):
        print(f"severity {severity}: {_MEANING[severity]}")
        for row in findings:
            more = f" and {number_of(row['runs'] - 1, 'more run')}" if row["runs"] > 1 else ""
            text = visible(f"{row['rule']}: {row['example']}{more}: {row['message']}")
            print(fill(text, _WIDTH, initial_indent="  ", subsequent_indent="    "))
    severe = sum(row["runs"] for row in rows if row["severity"] >= DO_NOT_CITE)
    said = f"{number_of(severe, 'finding')} forbid{'s' if severe == 1 else ''} a final report."
    print(said if severe else "Nothing forbids a final report.")
    return 1 if severe else 0
