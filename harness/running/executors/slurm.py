"""Slurm executor: an array of jobs, one per model group, and a controller that follows the jobs through the spool.

  <runs>/slurm/<submission>/{task-0.json, .., SUBMITTED, jobs/, logs/, CLOSED}

A submission is a folder whose name is also its jobs' name in Slurm. A later controller, on any machine with access to
the folder, finds the jobs again in the queue. SUBMITTED contains the array's job id. CLOSED is written after all of the
jobs have ended and every cell has an attempt.
"""

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Final

from exitbench.errors import UserError
from exitbench.harness.cells.job import CellJob, WorkerSpec
from exitbench.harness.processes.locks import locked
from exitbench.harness.running.cell_lock import attempts_since, outcome
from exitbench.harness.running.environment import environment_and_hardware
from exitbench.harness.running.executors.slurm_options import MAX_TIMEOUTS, SlurmOptions
from exitbench.harness.running.executors.slurm_queue import ENDED, FORGOTTEN, Job, NoAnswer, list_jobs
from exitbench.harness.running.executors.slurm_task import SlurmTask
from exitbench.progress import Progress
from exitbench.results.files.atomic import read_json_or_empty
from exitbench.results.spool.attempts import AttemptWriter, new_attempt_id, read_status
from exitbench.results.spool.heartbeat import owner_of
from exitbench.terminal import print_escaped

POLL_S: Final = (0.5, 10.0)
"""Seconds between the controller's checks: after a change, and the maximum."""

_SUBMITTED, _CLOSED = "SUBMITTED", "CLOSED"
_SPEC_NAME = "task-{}.json"


@dataclass(frozen=True)
class _ArrayTask:
    """One job of a submission (array of Slurm jobs): its array index and its cells."""

    folder: Path
    index: int
    spec: WorkerSpec

    @property
    def cell_ids(self) -> frozenset[str]:
        """Ids of the task's cells."""
        return frozenset(item.cell.cell_id for item in self.spec.cells)

    @property
    def unknown_job(self) -> Job:
        """This task's job with the state `FORGOTTEN`, for the case that Slurm no longer lists the job."""
        return Job(f"{(self.folder / _SUBMITTED).read_text(encoding='utf-8')}_{self.index}", FORGOTTEN)


@dataclass
class _Followed:
    """Progress and final statuses of this run's cells, updated while their Slurm jobs are followed."""

    progress: Progress
    items: dict[str, CellJob]
    started: set[str] = field(default_factory=set)
    statuses: dict[str, str] = field(default_factory=dict)

    def unfinished(self) -> list[CellJob]:
        """Return the cells that have not ended."""
        return [item for cell_id, item in self.items.items() if cell_id not in self.statuses]

    def running(self, item: CellJob, n_done: int, total: int) -> None:
        """Report that a cell runs, and how many of its documents are done."""
        if item.cell.cell_id not in self.started:
            self.started.add(item.cell.cell_id)
            self.progress.start(item.label, total)
        self.progress.documents_done(item.label, n_done)

    def end(self, cell_id: str, status: str) -> None:
        """Record that a cell has ended; no effect if the cell is not followed or its end is already recorded."""
        if cell_id in self.items and cell_id not in self.statuses:
            self.statuses[cell_id] = status
            self.progress.end(self.items[cell_id].label, status)


class SlurmExecutor:
    """Executor that submits the cells of each model as a Slurm job, follows the jobs, and records how each cell ended.

    If a job ends and leaves a cell unfinished, an attempt (stored outcome) is written for the cell.
    """

    def __init__(self, folder: Path, options: SlurmOptions) -> None:
        """Find earlier submissions; write an attempt (stored outcome) for each cell that an ended job left unfinished.

        Args:
            folder: Folder of submissions; must be accessible from the nodes.
            options: Options for Slurm.

        Raises:
            UserError: submitit is not installed, or Slurm is not available or does not answer.
        """
        _require_slurm()
        self._folder, self._options = folder, options
        self._specs: dict[Path, WorkerSpec] = {}
        self._live: list[tuple[_ArrayTask, Job]] = []
        with locked(self._folder / "LOCK", wait=True):
            self._settle_ended_jobs()

    @property
    def threads(self) -> int:
        """Number of cores that a job requests."""
        return self._options.cpus

    def run(self, specs: Sequence[WorkerSpec], progress: Progress, ingest: Callable[[], None]) -> dict[str, str]:
        """Submit the cells that no live job (queued or running) has, and follow all jobs until every cell has ended.

        Return the final status by cell id. `specs` has one entry per loaded model. `progress` is notified of starts and
        ends, and `ingest` turns ended cells into database rows.
        """
        followed = _Followed(progress, {item.cell.cell_id: item for spec in specs for item in spec.cells})
        pause_s = POLL_S[0]
        try:
            while followed.unfinished():
                ended = len(followed.statuses)
                self._poll(followed, specs)
                if len(followed.statuses) > ended:
                    ingest()
                    pause_s = POLL_S[0]
                if followed.unfinished():
                    time.sleep(pause_s)
                    pause_s = min(1.3 * pause_s, POLL_S[1])
        except KeyboardInterrupt:
            jobs = " ".join(sorted({job.job_id.split("_")[0] for _, job in self._live}))
            if jobs:
                print_escaped(f"The jobs go on; the same command follows them again. To end them: scancel {jobs}")
            raise
        return followed.statuses

    def _poll(self, followed: _Followed, specs: Sequence[WorkerSpec]) -> None:
        """Check Slurm's queue, then the spool; record how jobs ended, and submit the cells of models that are ready.

        A model is ready if no live job has any of its remaining cells or of their dependencies.
        """
        try:
            # Only one controller at a time closes and submits.
            with locked(self._folder / "LOCK", wait=True):
                closed = self._settle_ended_jobs()
                _update_statuses(followed, specs[0].spool)
                for cell_id, status in closed.items():
                    followed.end(cell_id, status)
                if ready := list(self._ready(specs, followed)):
                    self._submit(ready)
        except NoAnswer as error:
            print_escaped(f"{error} Trying again later.")

    def _settle_ended_jobs(self) -> dict[str, str]:
        """Write an attempt (stored outcome) for each cell that an ended job left unfinished.

        Update the list of live jobs, and return the status of every cell of the ended jobs, by cell id.
        """
        submissions = [path for path in sorted(self._folder.glob("*/")) if not (path / _CLOSED).exists()]
        jobs = list_jobs(path.name for path in submissions)
        self._live, statuses = [], {}
        for submission in submissions:
            tasks = self._tasks(submission)
            if not (submission / _SUBMITTED).exists():  # its controller was killed
                if not (job_list := [job for (name, _), job in jobs.items() if name == submission.name]):
                    shutil.rmtree(submission)  # killed before it submitted the jobs
                    continue
                _note_array(submission, job_list[0].job_id)
            pairs = [(task, jobs.get((submission.name, task.index)) or task.unknown_job) for task in tasks]
            live = [(task, job) for task, job in pairs if job.is_live]
            for task, job in pairs:
                if not job.is_live:
                    statuses.update(_settle(task, job))
            if not live:
                (submission / _CLOSED).touch()
            self._live += live
        return statuses

    def _tasks(self, submission: Path) -> list[_ArrayTask]:
        paths = sorted(submission.glob(_SPEC_NAME.format("*")))
        for path in paths:
            if path not in self._specs:
                self._specs[path] = WorkerSpec.from_json(path.read_text(encoding="utf-8"))
        return [_ArrayTask(submission, int(path.stem.split("-")[1]), self._specs[path]) for path in paths]

    def _ready(self, specs: Sequence[WorkerSpec], followed: _Followed) -> Iterator[WorkerSpec]:
        """Yield each model's specification with its remaining cells, unless a live job (queued or running) blocks it.

        A job blocks a model if it has one of the remaining cells or of their dependencies.
        """
        busy = frozenset[str]().union(*(task.cell_ids for task, _ in self._live))
        for spec in specs:
            remaining = tuple(item for item in spec.cells if item.cell.cell_id not in followed.statuses)
            needed = {cell_id for item in remaining for cell_id in (item.cell.cell_id, *item.cell.depends_on)}
            if remaining and not needed & busy:
                yield replace(spec, cells=remaining)

    def _submit(self, specs: Sequence[WorkerSpec]) -> None:
        import submitit

        submission = self._folder / f"exitbench-{new_attempt_id()}"
        submission.mkdir()
        paths = [submission / _SPEC_NAME.format(index) for index in range(len(specs))]
        for path, spec in zip(paths, specs, strict=True):
            path.write_text(spec.to_json(), encoding="utf-8")
        executor = submitit.SlurmExecutor(submission / "jobs", max_num_timeout=MAX_TIMEOUTS)
        executor.update_parameters(job_name=submission.name, **self._options.parameters)
        try:
            with executor.batch():
                jobs = [executor.submit(SlurmTask(path)) for path in paths]
        except submitit.core.utils.FailedJobError as error:
            shutil.rmtree(submission)
            raise UserError(f"Slurm does not take the jobs: {error}") from None
        _note_array(submission, jobs[0].job_id)


def _require_slurm() -> None:
    if find_spec("submitit") is None:
        raise UserError("--executor slurm needs submitit, which is not installed: pip install 'exitbench[slurm]'.")
    if missing := [command for command in ("sbatch", "squeue", "srun") if shutil.which(command) is None]:
        raise UserError(f"--executor slurm: {missing[0]} is not found. Run this where jobs are handed to Slurm.")


def _note_array(submission: Path, job_id: str) -> None:
    (submission / _SUBMITTED).write_text(job_id.split("_")[0], encoding="utf-8")


def _update_statuses(followed: _Followed, spool: Path) -> None:
    """Update progress and statuses of followed cells from their attempts (runs of a cell) in the spool."""
    for item in followed.unfinished():
        if (status := outcome(spool, item)) is not None:
            followed.end(item.cell.cell_id, status)
            continue
        unfinished = [attempt for attempt in attempts_since(spool, item) if not attempt.finished]
        if unfinished and (owner := owner_of(unfinished[-1].path)) is not None:
            followed.running(item, owner.done, owner.total or item.cell.task.documents)


def _settle(task: _ArrayTask, job: Job) -> dict[str, str]:
    """Write an attempt (stored outcome) for each cell that an ended job left unfinished.

    Return the status of every cell of the job, by cell id.
    """
    for item in task.spec.cells:
        if outcome(task.spec.spool, item) is None:
            _refresh_listing(task.spec.spool, item.cell.cell_id)
    attempts = {item.cell.cell_id: attempts_since(task.spec.spool, item) for item in task.spec.cells}
    how = ENDED[job.state]
    statuses = {}
    for item in task.spec.cells:
        tries = attempts[item.cell.cell_id]
        finished = [attempt for attempt in tries if attempt.finished]
        if finished:
            statuses[item.cell.cell_id] = read_status(finished[-1]).status
            continue
        # If a job never reached its first cell, all of its cells would fail in the same way.
        has_begun = bool(tries) or not any(attempts.values())
        reason = f"Slurm job {job.job_id}: {job.state}" + ("" if has_begun else ", before this cell began")
        status = statuses[item.cell.cell_id] = how if has_begun else "interrupted"
        env = read_json_or_empty(tries[-1].path / "env.json") if tries else {}
        with AttemptWriter(
            task.spec.spool, item.cell_record(), env or environment_and_hardware(task.spec.threads)
        ) as row:
            row.log_path.write_text(_job_log(task, job), encoding="utf-8")
            row.finish(status, reason)
    return statuses


def _refresh_listing(spool: Path, cell_id: str) -> None:
    """Force NFS to refresh its cached listing of a cell's directory, by writing there."""
    cell = spool / cell_id[:2] / cell_id
    for folder in (spool, cell.parent, cell, *cell.glob("*/")):
        with contextlib.suppress(OSError):
            NamedTemporaryFile(dir=folder).close()


def _job_log(task: _ArrayTask, job: Job) -> str:
    """Return the error output of a job, which contains the reason for its end."""
    paths = sorted((task.folder / "jobs").glob(f"{job.job_id}_*_log.err"))
    return "".join(path.read_text(encoding="utf-8", errors="replace") for path in paths)
