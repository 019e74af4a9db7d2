"""``exitbench _cell``: run one worker's specification in this process, as a scheduler does."""

import contextlib
import json
import sys
from argparse import Namespace
from dataclasses import replace

from exitbench.errors import UserError
from exitbench.harness.cells.job import WorkerSpec


def cell(arguments: Namespace) -> int:
    """Run the cells of a worker's specification (SPEC.json); return the worker's exit code.

    The worker's events are printed to standard output, as one JSON object per line.

    Raises:
        UserError: The file is not a specification, or the checkpoint cannot be read.
    """
    try:
        spec = WorkerSpec.from_json(arguments.spec.read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{arguments.spec}: not a worker's specification: {type(error).__name__}: {error}.") from None
    from exitbench.harness.running import worker

    events = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        return worker.run(
            spec if arguments.spool is None else replace(spec, spool=arguments.spool),
            lambda event: print(json.dumps(event), file=events, flush=True),
        )
