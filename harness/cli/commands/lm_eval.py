"""``exitbench lm-eval``: run lm-eval's command line, with this project's models registered by `import exitbench`."""

import sys
from argparse import Namespace

from exitbench.errors import UserError, one_line


def lm_eval(arguments: Namespace) -> int:
    """Run lm-eval's command line with the arguments that follow `exitbench lm-eval`.

    Raises:
        UserError: lm-eval rejects arguments, tasks or files.
        SystemExit: lm-eval exits.
    """
    from lm_eval.__main__ import cli_evaluate

    sys.argv = ["lm-eval", *arguments.arguments]  # lm-eval reads its arguments from sys.argv
    try:
        cli_evaluate()
    except UserError:
        raise
    except (ValueError, TypeError, FileNotFoundError) as error:
        if not _is_of_lm_eval(error):
            raise
        raise UserError(f"lm-eval: {one_line(error)}") from error  # lm-eval raises these for bad input
    return 0


def _is_of_lm_eval(error: BaseException) -> bool:
    """Return whether an error was raised by lm-eval's own code."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and str(trace.tb_frame.f_globals.get("__name__", "")).startswith("lm_eval.")
