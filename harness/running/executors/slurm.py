"""The Slurm executor: an array of jobs, one a model group, and a controller that follows them through the spool.

    <runs>/slurm/<submission>/{task-0.json, .., SUBMITTED, jobs/, logs/, CLOSED}

A submission is a folder whose name is the jobs' name in Slurm, so that a later controller, on any machine that sees the
folder, finds the jobs again by asking the queue. SUBMITTED holds the number of the array; CLOSED is written once none
of its jobs is left and every cell has a row.
"""

import contextlib
import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Final

from exitbench.errors import UserError
from exitbench.harness.cells.job import CellJob, WorkerSpec
from exitbench.harness.processes.locks import locked
from exitbench.harness.running.cell_lock import attempts_since, outcome
from exitbench.harness.running.environment import environment_and_hardware
from exitbench.harness.running.executors.slurm_options import MAX_TIMEOUTS, SlurmOptions
from exitbench.harness.running.executors.slurm_queue import ENDED, FORGOTTEN, Job, NoAnswer, list_jobs
from exitbench.harness.running.executors.slurm_task import SlurmTask
from exitbench.progress import Progress
from exitbench.results.spool.attempts import AttemptWriter, new_attempt_id, read_status
from exitbench.results.spool.heartbeat import owner_of
from exitbench.terminal import tell

POLL_S: Final = (0.5, 10.0)
"""How long the controller sleeps between two looks: the first after something happened, and the most."""

_SUBMITTED, _CLOSED = "SUBMITTED", "CLOSED"
_SPEC_NAME = "task-{}.json"


@dataclass(frozen=True)
class _Task:
    """One job of a submission: its place in the array, and the cells that it was given."""

    folder: Path
    index: int
    spec: WorkerSpec

    @property
    def cell_ids(self) -> frozenset[str]:
        """The cells."""
        return frozenset(item.cell.cell_id for item in self.spec.cells)

    @property
    def unknown_job(self) -> Job:
        """What is left to say of the job once Slurm has forgotten it."""
        return Job(f"{(self.folder / _SUBMITTED).read_text(encoding='utf-8')}_{self.index}", FORGOTTEN)


@dataclass
class _Followed:
    """What the controller knows of the cells that it was asked to run."""

    progress: Progress
    items: dict[str, CellJob]
    started: set[str] = field(default_factory=set)
    statuses: dict[str, str] = field(default_factory=dict)

    def left(self) -> list[CellJob]:
        """Cells that have not ended."""
        return [item for cell_id, item in self.items.items() if cell_id not in self.statuses]

    def running(self, item: CellJob, done: int, total: int) -> None:
        """A cell runs, and how far it is."""
        if item.cell.cell_id not in self.started:
            self.started.add(item.cell.cell_id)
            self.progress.start(item.label, total)
        self.progress.documents_done(item.label, done)

    def end(self, cell_id: str, status: str) -> None:
        """A cell has ended; nothing for one that is not followed or is known to have."""
        if cell_id in self.items and cell_id not in self.statuses:
            self.statuses[cell_id] = status
            self.progress.end(self.items[cell_id].label, status)


class SlurmExecutor:
    """Submits groups, follows their jobs, and writes a row for every cell that a job did not end."""

    def __init__(self, folder: Path, options: SlurmOptions) -> None:
        """Find earlier submissions, and write the rows of jobs that ended while nobody followed them.

        Args:
            folder: Where submissions lie; the nodes see it.
            options: What is asked of Slurm.

        Raises:
            UserError: submitit is not installed, or Slurm is not there or does not answer.
        """
        _require_slurm()
        self._folder, self._options = folder, options
        self._specs: dict[Path, WorkerSpec] = {}
        self._live: list[tuple[_Task, Job]] = []
        with locked(self._folder / "LOCK", wait=True):
            self._close()

    @property
    def threads(self) -> int:
        """The cores that a job asks for."""
        return self._options.cpus

    def run(self, specs: Sequence[WorkerSpec], progress: Progress, ingest: Callable[[], None]) -> dict[str, str]:
        """Submit what no job has yet, and follow until every cell has ended (`base.Executor`)."""
        followed = _Followed(progress, {item.cell.cell_id: item for spec in specs for item in spec.cells})
        pause_s = POLL_S[0]
        try:
            while followed.left():
                ended = len(followed.statuses)
                self._look(followed, specs)
                if len(followed.statuses) > ended:
                    ingest()
                    pause_s = POLL_S[0]
                if followed.left():
                    time.sleep(pause_s)
                    pause_s = min(1.3 * pause_s, POLL_S[1])
        except KeyboardInterrupt:
            jobs = " ".join(sorted({job.job_id.split("_")[0] for _, job in self._live}))
            if jobs:
                tell(f"The jobs go on; the same command follows them again. To end them: scancel {jobs}")
            raise
        return followed.statuses

    def _look(self, followed: _Followed, specs: Sequence[WorkerSpec]) -> None:
        """Look at the queue and then at the spool; close what has ended, submit what can be."""
        try:
            # One controller at a time closes and submits.
            with locked(self._folder / "LOCK", wait=True):
                closed = self._close()
                _note(followed, specs[0].spool)
                for cell_id, status in closed.items():
                    followed.end(cell_id, status)
                if ready := list(self._ready(specs, followed)):
                    self._submit(ready)
        except NoAnswer as error:
            tell(f"{error} Asked again in a while.")

    def _close(self) -> dict[str, str]:
        """Write what jobs that are gone have left undone; returns the status of every cell of theirs."""
        submissions = [path for path in sorted(self._folder.glob("*/")) if not (path / _CLOSED).exists()]
        jobs = list_jobs(path.name for path in submissions)
        self._live, statuses = [], {}
        for submission in submissions:
            tasks = self._tasks(submission)
            if not (submission / _SUBMITTED).exists():  # its controller was killed
                if not (ours := [job for (name, _), job in jobs.items() if name == submission.name]):
                    shutil.rmtree(submission)  # before Slurm had the jobs
                    continue
                _note_array(submission, ours[0].job_id)
            known = [(task, jobs.get((submission.name, task.index)) or task.unknown_job) for task in tasks]
            live = [(task, job) for task, job in known if job.is_live]
            for task, job in known:
                if not job.is_live:
                    statuses.update(_settle(task, job))
            if not live:
                (submission / _CLOSED).touch()
            self._live += live
        return statuses

    def _tasks(self, submission: Path) -> list[_Task]:
        paths = sorted(submission.glob(_SPEC_NAME.format("*")))
        for path in paths:
            if path not in self._specs:
                self._specs[path] = WorkerSpec.from_json(path.read_text(encoding="utf-8"))
        return [_Task(submission, int(path.stem.split("-")[1]), self._specs[path]) for path in paths]

    def _ready(self, specs: Sequence[WorkerSpec], followed: _Followed) -> Iterator[WorkerSpec]:
        """Yield groups with what is left of them, but none that shares or needs a cell of a live job."""
        busy = frozenset[str]().union(*(task.cell_ids for task, _ in self._live))
        for spec in specs:
            left = tuple(item for item in spec.cells if item.cell.cell_id not in followed.statuses)
            needed = {cell_id for item in left for cell_id in (item.cell.cell_id, *item.cell.depends_on)}
            if left and not needed & busy:
                yield replace(spec, cells=left)

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


def _note(followed: _Followed, spool: Path) -> None:
    """Take in what the spool says of cells that have not ended."""
    for item in followed.left():
        if (status := outcome(spool, item)) is not None:
            followed.end(item.cell.cell_id, status)
            continue
        unfinished = [attempt for attempt in attempts_since(spool, item) if not attempt.finished]
        if unfinished and (owner := owner_of(unfinished[-1].path)) is not None:
            followed.running(item, owner.done, owner.total or item.cell.task.documents)


def _settle(task: _Task, job: Job) -> dict[str, str]:
    """Write an attempt for each cell that a job was given and did not end; returns the status of every cell."""
    for item in task.spec.cells:
        if outcome(task.spec.spool, item) is None:
            _look_again(task.spec.spool, item.cell.cell_id)
    attempts = {item.cell.cell_id: attempts_since(task.spec.spool, item) for item in task.spec.cells}
    how = ENDED[job.state]
    statuses = {}
    for item in task.spec.cells:
        own = attempts[item.cell.cell_id]
        finished = [attempt for attempt in own if attempt.finished]
        if finished:
            statuses[item.cell.cell_id] = read_status(finished[-1]).status
            continue
        # Of a job that never came to its first cell, no cell would do better.
        begun = bool(own) or not any(attempts.values())
        reason = f"Slurm job {job.job_id}: {job.state}" + ("" if begun else ", before this cell began")
        status = statuses[item.cell.cell_id] = how if begun else "interrupted"
        env = _read_env(own[-1].path) if own else None
        with AttemptWriter(
            task.spec.spool, item.cell_record(), env or environment_and_hardware(task.spec.threads)
        ) as row:
            row.log_path.write_text(_job_log(task, job), encoding="utf-8")
            row.finish(status, reason)
    return statuses


def _look_again(spool: Path, cell_id: str) -> None:
    """Make a network file system look anew into the folders of a cell: it remembers them until one writes there."""
    cell = spool / cell_id[:2] / cell_id
    for folder in (spool, cell.parent, cell, *cell.glob("*/")):
        with contextlib.suppress(OSError):
            NamedTemporaryFile(dir=folder).close()


def _read_env(attempt: Path) -> dict[str, Any] | None:
    """The node's environment, as its worker wrote it; None if it did not come to that."""
    try:
        env: dict[str, Any] = json.loads((attempt / "env.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return env


def _job_log(task: _Task, job: Job) -> str:
    """What a job printed about its end."""
    paths = sorted((task.folder / "jobs").glob(f"{job.job_id}_*_log.err"))
    return "".join(path.read_text(encoding="utf-8", errors="replace") for path in paths)
