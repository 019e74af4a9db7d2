"""``exitbench tune``: one recommended method and threshold for a model and a task, and a suite that repeats it."""

from argparse import Namespace

from exitbench.harness.cli.commands.options import run_options
from exitbench.harness.service.tuning import TuneOptions
from exitbench.harness.service.tuning import tune as tune_setting


def tune(arguments: Namespace) -> int:
    """Tune; returns 0 if there is an answer, which may be that nothing beats full depth, and 1 if cells failed.

    Raises:
        UserError: Names, methods or documents are not usable; nothing has been measured then.
        KeyboardInterrupt: What is finished is kept; the same command goes on.
    """
    options = TuneOptions(
        model=arguments.model,
        task=arguments.task,
        run=run_options(arguments),
        max_loss=arguments.max_loss,
        methods=arguments.methods,
        documents=arguments.documents,
        finalists=arguments.finalists,
        guarantee=arguments.guarantee,
        out=arguments.out,
    )
    return 0 if tune_setting(options) else 1
