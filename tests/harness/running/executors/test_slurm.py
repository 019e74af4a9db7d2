"""Tests of the Slurm executor that need no cluster; `tests/slurm` runs it on one."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from exitbench.errors import UserError
from exitbench.harness.cells.job import WorkerSpec
from exitbench.harness.cli.main import main
from exitbench.harness.running.executors import slurm
from exitbench.harness.running.executors.slurm import SlurmExecutor
from exitbench.harness.running.executors.slurm_options import SlurmOptions, read_options
from exitbench.harness.running.executors.slurm_queue import Job, NoAnswer, list_jobs
from exitbench.results.spool.attempts import AttemptWriter, attempt_status, read_attempt
from exitbench.results.spool.heartbeat import Heartbeat
from exitbench.results.spool.schema import ENV_KEYS

ENV = {section: dict.fromkeys(keys) for section, keys in ENV_KEYS.items() if section}
OPTIONS = SlurmOptions(60, 1, {})

# ------------------------------------------------------------------------------------------ options


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("90", 90), ("90:30", 91), ("4:00:00", 240), ("1-12", 2160), ("1-12:30", 2190), ("1-0:0:1", 1441), ("0:30", 1)],
)
def test_time_option_is_parsed_as_by_sbatch(text: str, minutes: int) -> None:
    assert read_options([f"time={text}"]).minutes == minutes


def test_other_options_are_passed_to_sbatch_unchanged() -> None:
    options = read_options(["partition=gpu", "gpus-per-node=1", "exclusive", "cpus-per-task=4"])
    assert (options.minutes, options.cpus) == (240, 4)
    assert options.flags == {"partition": "gpu", "gpus-per-node": "1", "exclusive": True}
    assert options.parameters["additional_parameters"]["requeue"] is True


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        (["partition="], "--slurm partition=: expected KEY=VALUE"),
        (["-p=gpu"], "--slurm -p=gpu: expected KEY=VALUE"),
        (["array=1-3"], "--slurm array=1-3: array is set by ExitBench"),
        (["mem=1G", "mem=2G"], "--slurm mem=2G: mem is given twice."),
        (["time=soon"], "--slurm time=soon: expected sbatch's form, e.g. 90 (minutes)"),
        (["time=0"], "--slurm time=0"),
        (["cpus-per-task=0"], "--slurm cpus-per-task=0: expected a whole number of 1 or more."),
    ],
)
def test_invalid_slurm_options_are_refused_by_name(texts: list[str], says: str) -> None:
    with pytest.raises(UserError) as error:
        read_options(texts)
    assert str(error.value).startswith(says)


# ------------------------------------------------------------------------------------------ what has to be there


def test_missing_submitit_message_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'exitbench\[slurm\]'"):
        SlurmExecutor(tmp_path, OPTIONS)


def test_missing_sbatch_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "find_spec", lambda name: object())
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="sbatch is not found"):
        SlurmExecutor(tmp_path, OPTIONS)


def test_slurm_options_require_the_slurm_executor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "builtin", "--runs", str(tmp_path / "runs"), "--slurm", "partition=gpu"]) == 2
    assert "--slurm partition=gpu: only goes with --executor slurm." in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


# ------------------------------------------------------------------------------------------ the queue

Answer = Callable[[str], None]


@pytest.fixture
def squeue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Answer:
    """Return a function that sets the shell script used as squeue; sbatch and srun exist and do nothing."""
    monkeypatch.setattr(slurm, "find_spec", lambda name: object())
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    def script(name: str, body: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(stat.S_IRWXU)

    for name in ("sbatch", "srun"):
        script(name, "exit 1")
    return lambda body: script("squeue", body)


def test_jobs_are_found_by_name_and_array_index(squeue: Answer) -> None:
    squeue("echo 'run-a|12|0|RUNNING'; echo 'run-a|12|1|OUT_OF_MEMORY'; echo 'run-b|14|N/A|PENDING'")
    assert list_jobs(["run-a", "run-b"]) == {
        ("run-a", 0): Job("12_0", "RUNNING"),
        ("run-a", 1): Job("12_1", "OUT_OF_MEMORY"),
        ("run-b", 0): Job("14", "PENDING"),
    }
    assert [job.is_live for job in list_jobs(["run-a", "run-b"]).values()] == [True, False, True]


def test_failing_squeue_is_not_an_empty_queue(squeue: Answer) -> None:
    squeue("echo 'unable to contact slurm controller' >&2; exit 1")
    with pytest.raises(NoAnswer, match="unable to contact slurm controller"):
        list_jobs(["run-a"])


# ------------------------------------------------------------------------------------------ jobs that are gone


@pytest.fixture
def submission(spec: WorkerSpec, tmp_path: Path) -> Path:
    """Return the folder of a submitted Slurm job with three cells, whose controller was killed."""
    folder = tmp_path / "slurm" / "run-a"
    (folder / "jobs").mkdir(parents=True)
    (folder / "task-0.json").write_text(spec.to_json())
    (folder / "SUBMITTED").write_text("12")
    return folder


def cell_statuses(spec: WorkerSpec) -> list[tuple[str, str | None] | None]:
    """Return status and reason of each cell's attempt, or None for a cell without an attempt."""
    result = [attempt_status(spec.spool, item.cell.cell_id) for item in spec.cells]
    return [status and (status.status, status.reason) for status in result]


def begin(spec: WorkerSpec, cell: int) -> None:
    """Start the attempt of a cell without finishing it, as a worker that dies."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Heartbeat, "release", lambda self: None)
        AttemptWriter(
            spec.spool, spec.cells[cell].cell.to_json(), {**ENV, "hardware": {**ENV["hardware"], "cpu": "n1"}}
        )


@pytest.mark.parametrize(
    ("state", "status"),
    [("TIMEOUT", "timeout"), ("OUT_OF_MEMORY", "oom"), ("CANCELLED", "interrupted"), ("NODE_FAIL", "failed")],
)
def test_unfinished_cells_of_an_ended_job_are_recorded(
    spec: WorkerSpec, submission: Path, squeue: Answer, state: str, status: str
) -> None:
    with AttemptWriter(spec.spool, spec.cells[0].cell.to_json(), ENV) as writer:
        writer.finish("ok")
    begin(spec, 1)
    (submission / "jobs" / "12_0_0_log.err").write_text("the last words\n")
    squeue(f"echo 'run-a|12|0|{state}'")
    SlurmExecutor(submission.parent, OPTIONS)
    reason = f"Slurm job 12_0: {state}"
    unbegun = ("interrupted", f"{reason}, before this cell began")
    assert cell_statuses(spec) == [("ok", None), (status, reason), unbegun]
    lost = attempt_status(spec.spool, spec.cells[1].cell.cell_id)
    assert lost is not None
    record = read_attempt(lost.path)
    assert record.status["log_tail"] == "the last words"
    assert record.env["hardware"]["cpu"] == "n1"  # the node's, not the controller's
    assert (submission / "CLOSED").exists()


def test_failed_job_that_never_began_a_cell_fails_all_its_cells(
    spec: WorkerSpec, submission: Path, squeue: Answer
) -> None:
    squeue("echo 'run-a|12|0|FAILED'")
    SlurmExecutor(submission.parent, OPTIONS)
    assert cell_statuses(spec) == [("failed", "Slurm job 12_0: FAILED")] * 3


def test_cells_of_a_job_unknown_to_slurm_are_interrupted(spec: WorkerSpec, submission: Path, squeue: Answer) -> None:
    squeue("true")
    SlurmExecutor(submission.parent, OPTIONS)
    assert cell_statuses(spec) == [("interrupted", "Slurm job 12_0: no longer known to Slurm")] * 3


def test_unfinished_cells_of_an_ended_job_are_recorded_only_once(
    spec: WorkerSpec, submission: Path, squeue: Answer
) -> None:
    squeue("echo 'run-a|12|0|FAILED'")
    for _ in range(2):
        (submission / "CLOSED").unlink(missing_ok=True)
        SlurmExecutor(submission.parent, OPTIONS)
    assert len(list(spec.spool.glob("*/*/*/DONE"))) == 3


def test_pending_job_is_left_alone(spec: WorkerSpec, submission: Path, squeue: Answer) -> None:
    squeue("echo 'run-a|12|0|PENDING'")
    SlurmExecutor(submission.parent, OPTIONS)
    assert cell_statuses(spec) == [None] * 3
    assert not (submission / "CLOSED").exists()


def test_submission_that_never_reached_slurm_is_removed(spec: WorkerSpec, submission: Path, squeue: Answer) -> None:
    (submission / "SUBMITTED").unlink()
    squeue("true")
    SlurmExecutor(submission.parent, OPTIONS)
    assert cell_statuses(spec) == [None] * 3
    assert not submission.exists()


def test_next_controller_takes_over_jobs_of_a_killed_controller(
    spec: WorkerSpec, submission: Path, squeue: Answer
) -> None:
    (submission / "SUBMITTED").unlink()
    squeue("echo 'run-a|12|0|RUNNING'")
    SlurmExecutor(submission.parent, OPTIONS)
    squeue("true")
    SlurmExecutor(submission.parent, OPTIONS)
    assert cell_statuses(spec) == [("interrupted", "Slurm job 12_0: no longer known to Slurm")] * 3
