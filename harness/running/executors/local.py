"""Local executor: runs cells on this machine, in the foreground.

On a CPU, untimed cells run side by side, then timing cells, one worker at a time (`stages`). With GPUs, there is one
worker per GPU, and the groups queue for the GPUs. Ctrl-C ends the workers gracefully; finished cells are kept.
"""

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Final

from exitbench.harness.cells.job import WorkerSpec
from exitbench.harness.engine.checkpoints.device_maps import gpu_index
from exitbench.harness.running.environment import free_cores
from exitbench.harness.running.executors.gpus import Gpu, free_gpu, lock_folder
from exitbench.harness.running.executors.group import GroupRun
from exitbench.harness.running.executors.stages import Stage, stages
from exitbench.progress import Progress

INGEST_S: Final = 30.0
"""Seconds between ingests of ended cells, while nothing is timed."""


class LocalExecutor:
    """Executor that runs cells on this machine, in one worker process or several at a time."""

    def __init__(
        self,
        logs: Path,
        gpus: Sequence[Gpu] = (),
        worker: Sequence[str] = (),
        gpu_locks: Path | None = None,
        cores: int | None = None,
    ) -> None:
        """Create an executor.

        Args:
            logs: Folder for the workers' specifications and logs.
            gpus: GPUs to use, one worker each; empty to use the CPU.
            worker: Command to which the path of a SPEC.json and two pipe descriptors (events, lifeline) are appended;
                () for `worker_process`.
            gpu_locks: Folder of the GPUs' locks; None for the user's folder (`lock_folder`).
            cores: Number of cores for workers side by side on the CPU; None for all cores this process may use.
        """
        self._logs, self._gpus, self._worker = logs, tuple(gpus), worker
        self._gpu_locks, self._cores = gpu_locks, cores
        self._stop = threading.Event()

    @property
    def threads(self) -> int:
        """Default number of torch threads per worker: free cores, divided evenly among the GPUs' workers."""
        return max(1, free_cores() // max(1, len(self._gpus)))

    def run(self, specs: Sequence[WorkerSpec], progress: Progress, ingest: Callable[[], None]) -> dict[str, str]:
        """Run cells until all have ended; return the final status by cell id.

        `specs` has one entry per loaded model. `progress` is notified of starts and ends, and `ingest` turns ended
        cells into database rows.
        """
        on_gpus = (Stage(tuple(specs), len(self._gpus), times_decodes=True),)
        statuses: dict[str, str] = {}
        for stage in on_gpus if self._gpus else stages(specs, self._cores):
            statuses |= self._run_stage(stage, progress, ingest)
        return statuses

    def _run_stage(self, stage: Stage, progress: Progress, ingest: Callable[[], None]) -> dict[str, str]:
        groups = [GroupRun(spec, self._logs, progress, self._worker) for spec in stage.specs]
        statuses: dict[str, str] = {}
        pool = ThreadPoolExecutor(stage.workers)
        futures = [pool.submit(self._run, group) for group in groups]
        running = set(futures)
        try:
            while running:
                finished, running = wait(running, None if stage.times_decodes else INGEST_S, FIRST_COMPLETED)
                for future in finished:
                    statuses.update(future.result())
                if any(group.interrupted for group in groups):
                    raise KeyboardInterrupt
                ingest()
        except BaseException:
            self._stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            try:
                for group in groups:
                    group.interrupt("interrupted by the user")
                wait([future for future in futures if not future.cancelled()])  # cancelled futures never wake `wait`
            finally:  # a second Ctrl-C kills them immediately
                for group in groups:
                    group.kill()
            raise
        pool.shutdown()
        return statuses

    def _run(self, group: GroupRun) -> dict[str, str]:
        with self._place(group.spec) as variables:
            return {} if variables is None else group.run(variables)

    def _place(self, spec: WorkerSpec) -> contextlib.AbstractContextManager[Mapping[str, str] | None]:
        if not self._gpus:
            return contextlib.nullcontext({})
        device_map = spec.cells[0].cell.device_map
        needed = [] if device_map is None else [gpu_index(device) for device in dict(device_map)]
        return free_gpu(self._gpus, self._gpu_locks or lock_folder(), self._stop.is_set, needed)
