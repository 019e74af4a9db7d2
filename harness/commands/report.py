"""``exitbench report``: every figure and table from the database; loads no model."""

from argparse import Namespace

from exitbench.harness.commands.folders import existing_database, existing_runs


def report(arguments: Namespace) -> int:
    """Write the report and say where it lies.

    Raises:
        UserError: The database cannot be opened or the folder cannot be written.
    """
    from exitbench.reports.render import write_report

    out = arguments.out or existing_runs(arguments.runs).report
    summary = write_report(existing_database(arguments), out)
    print(f"Report  {summary.index_html}")
    if summary.empty:
        print(f"Without data: {', '.join(summary.empty)}")
    return 0
