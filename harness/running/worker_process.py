"""Worker subprocess: ``python -m exitbench.harness.running.worker_process SPEC.json EVENTS LIFELINE``.

EVENTS is the descriptor of the event pipe, LIFELINE that of a pipe whose other end the parent holds while it lives.
Everything printed, by Python or native code, goes to the parent's log, and is never taken for an event.
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
    """Run the cells of a SPEC.json; return the worker's exit code."""
    for descriptor in (events, lifeline):  # processes started by a method must not inherit them
        os.set_inheritable(descriptor, False)
    # Before anything slow. Ask the system first, so that a parent that ends meanwhile is noticed by the second call.
    end_with_starting_thread()
    end_with(lifeline)
    from exitbench.harness.running import worker

    # Signals of a scheduler that is about to end this process, or of its parent; a background job of a shell starts
    # with SIGINT ignored.
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
