"""Worker subprocess: ``python -m exitbench.harness.running.worker_process SPEC.json EVENTS LIFELINE``.

EVENTS is the descriptor of the event pipe. LIFELINE is the descriptor of a pipe whose other end the parent holds open
while it runs. Everything printed, by Python or native code, goes to the parent's log and is never read as an event.
"""

import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from exitbench.harness.cells.job import WorkerSpec
from exitbench.harness.processes.lifeline import end_with, end_with_starting_thread


def main(spec_path: Path, events: int, lifeline: int) -> int:
    """Run the cells of a SPEC.json; return the worker's exit code.

    Events are written to the pipe descriptor `events`. The process is killed when the parent, which holds the other end
    of the pipe `lifeline`, ends.
    """
    for descriptor in (events, lifeline):  # processes started by a method must not inherit them
        os.set_inheritable(descriptor, False)
    # Called before any slow import or read. The order matters: the second call notices a parent that ends during the
    # first.
    end_with_starting_thread()
    end_with(lifeline)
    from exitbench.harness.running import worker

    # Signals from the parent, or from a scheduler that is about to end this process. SIGINT is included because shells
    # start background jobs with SIGINT ignored.
    for notice in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2):
        signal.signal(notice, signal.default_int_handler)

    def emit(event: dict[str, Any]) -> None:
        try:
            os.write(events, json.dumps(event).encode() + b"\n")
        except BrokenPipeError:  # the parent process is gone
            raise KeyboardInterrupt from None

    with contextlib.redirect_stdout(sys.stderr):
        return worker.run(WorkerSpec.from_json(spec_path.read_text(encoding="utf-8")), emit)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
