"""``exitbench report``: every figure and table from the database; loads no model."""

from argparse import Namespace

from exitbench.harness.commands.folders import Runs


def report(arguments: Namespace) -> int:
    """Write the report and say where it lies.

    Raises:
        UserError: The database cannot be opened or the folder cannot be written.
    """
    from exitbench.reports.render import write_report

    runs = Runs(arguments.runs)
    summary = write_report(arguments.database or runs.database, arguments.out or runs.report)
    print(f"Report  {summary.index_html}")
    if summary.empty:
        print(f"Without data: {', '.join(summary.empty)}")
    return 0
