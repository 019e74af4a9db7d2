"""Slurm task: runs one model group on a node, as the local executor does."""

import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any, Final

from exitbench.harness.cells.job import WorkerSpec
from exitbench.harness.running.executors.group import GroupRun
from exitbench.progress import Expected, Lines

LAST_S: Final = 180.0
"""Seconds that an interrupted job waits for Slurm to end it."""


class SlurmTask:
    """Task that runs the cells of a SPEC.json on a node.

    submitit calls it, and calls `checkpoint` before the job is preempted. A requeued job runs the same specification;
    its worker runs the remaining cells.
    """

    def __init__(self, spec_path: Path) -> None:
        """Store the path of the specification.

        Args:
            spec_path: File of a `WorkerSpec`; logs go to the folder ``logs`` next to it.
        """
        self._spec_path = spec_path

    def __call__(self) -> None:
        """Run the cells in a thread, so that the main thread can receive signals while it waits."""
        spec = WorkerSpec.from_json(self._spec_path.read_text(encoding="utf-8"))
        lines = Lines({item.label: Expected(item.cell.kind) for item in spec.cells}, sys.stdout)
        self._group = GroupRun(spec, self._spec_path.parent / "logs", lines)
        self._thread = threading.Thread(target=self._group.run)
        signal.signal(signal.SIGTERM, self._end)
        self._thread.start()
        self._thread.join()
        if self._group.interrupted:
            # Slurm decides whether the job is cancelled or requeued; exiting here would count as a normal end.
            time.sleep(LAST_S)

    def checkpoint(self) -> Any:
        """End the current attempt, before preemption or a time limit; return a submission that runs the job again."""
        from submitit.helpers import DelayedSubmission

        self._group.interrupt("preempted by Slurm, or out of time")
        self._thread.join()
        return DelayedSubmission(SlurmTask(self._spec_path))

    def _end(self, number: int, frame: FrameType | None) -> None:
        self._group.interrupt("cancelled or preempted by Slurm")
