"""``exitbench lm-eval``: lm-eval's own command line, which knows our models (`import exitbench` has told it)."""

import sys
from argparse import Namespace

from exitbench.errors import UserError, told


def lm_eval(arguments: Namespace) -> int:
    """Run lm-eval's command line.

    Raises:
        UserError: What lm-eval says of arguments, tasks or files.
        SystemExit: As it ends.
    """
    from lm_eval.__main__ import cli_evaluate

    sys.argv = ["lm-eval", *arguments.arguments]  # where lm-eval reads them
    try:
        cli_evaluate()
    except UserError:
        raise
    except (ValueError, TypeError, FileNotFoundError) as error:
        if not _is_of_lm_eval(error):
            raise
        raise UserError(f"lm-eval: {told(error)}") from error  # so it tells of bad input
    return 0


def _is_of_lm_eval(error: BaseException) -> bool:
    """Whether lm-eval's own code raised an error."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and str(trace.tb_frame.f_globals.get("__name__", "")).startswith("lm_eval.")
