"""What one job of an array does on its node: a model group, as the local executor runs it."""

import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any, Final

from exitbench.harness.cells.job import WorkerSpec
from exitbench.harness.running.executors.group import GroupRun
from exitbench.progress import Lines

LAST_S: Final = 180.0
"""How long a job that was asked to end waits for Slurm to end it."""


class SlurmTask:
    """Runs a SPEC.json; submitit calls it on the node, and `checkpoint` when the job is about to be preempted.

    A job that is queued again runs the same specification, of which the worker does the rest.
    """

    def __init__(self, spec_path: Path) -> None:
        """Prepare.

        Args:
            spec_path: A `WorkerSpec`; logs go to the folder ``logs`` beside it.
        """
        self._spec_path = spec_path

    def __call__(self) -> None:
        """Run the group. In a thread, so that signals find this one waiting."""
        spec = WorkerSpec.from_json(self._spec_path.read_text(encoding="utf-8"))
        self._group = GroupRun(spec, self._spec_path.parent / "logs", Lines(len(spec.cells), sys.stdout))
        self._thread = threading.Thread(target=self._group.run)
        signal.signal(signal.SIGTERM, self._end)
        self._thread.start()
        self._thread.join()
        if self._group.interrupted:
            # Slurm decides whether the job is cancelled or queued again; one that ends by itself has just ended.
            time.sleep(LAST_S)

    def checkpoint(self) -> Any:
        """End the current attempt; returns what is to be done when the job runs again."""
        from submitit.helpers import DelayedSubmission

        self._group.interrupt("preempted by Slurm, or out of time")
        self._thread.join()
        return DelayedSubmission(SlurmTask(self._spec_path))

    def _end(self, number: int, frame: FrameType | None) -> None:
        self._group.interrupt("cancelled or preempted by Slurm")
