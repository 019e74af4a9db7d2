"""``exitbench run``, ``fit`` and ``calibrate``: run what a suite has not run yet, fill the database, report."""

from argparse import Namespace

from exitbench.harness.cli.commands.options import run_options
from exitbench.harness.service.outcome import print_outcome
from exitbench.harness.service.running import run_suite


def run(arguments: Namespace) -> int:
    """Run a suite; returns 0 if every cell that ran ended ok and is in the database, else 1.

    Raises:
        UserError: Anything that can be known before work begins, or data that turns out damaged.
        KeyboardInterrupt: The user interrupted; finished cells are in the spool and in the database.
    """
    options = run_options(arguments)
    done = run_suite(options)
    print_outcome(done, options, every_setting=arguments.table, report=not arguments.no_report)
    return 0 if done.ok else 1
