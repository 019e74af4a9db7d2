"""Forty cells through a real Slurm, with a killed worker, a cancelled job and a controller that dies."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pytest
import torch
from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

from exitbench.results.spool.attempts import read_attempt, scan_spool
from exitbench.results.spool.heartbeat import owner_of
from exitbench.tasks.builtin.corpus import build_tokenizer

Wait = Callable[..., None]

MODELS = ("ada", "bea", "cleo", "dora")
CELLS_A_MODEL = 10

SUITE = """\
schema = 1
name = "forty"
seed = 7
{models}
[tasks]
squad = {{ task = "squad", source = "builtin", limit = {limit}, max_new_tokens = 16 }}
[[sweep]]
method = "calm-softmax"
query = {{ threshold = [0.0, 0.001, 0.002, 0.003, 0.004, 0.005] }}
kinds = ["quality"]
[[sweep]]
method = "static"
grid = {{ exit_layer = [1, 2, 3] }}
kinds = ["quality"]
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of models with four decoder blocks and different random weights."""
    folder = tmp_path_factory.mktemp("models")
    tokenizer = build_tokenizer()
    special = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    config = T5Config(
        vocab_size=tokenizer.get_vocab_size(),
        d_model=32,
        d_kv=8,
        d_ff=48,
        num_heads=4,
        num_layers=2,
        num_decoder_layers=4,
        decoder_start_token_id=0,
        eos_token_id=1,
        pad_token_id=0,
    )
    for seed, name in enumerate(MODELS):
        torch.manual_seed(seed)
        model = T5ForConditionalGeneration(config)
        for parameter in model.parameters():
            parameter.data = torch.randn_like(parameter) * 0.3
        model.save_pretrained(folder / name)
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder / name)
    return folder


def write_suite(path: Path, models: Path, names: tuple[str, ...], limit: int) -> Path:
    tables = "".join(f'[models.{name}]\npath = "{models / name}"\nrandom_weights = true\n' for name in names)
    path.write_text(SUITE.format(models=tables, limit=limit))
    return path


class Controller:
    """One `exitbench run` of a suite, with its output in a file."""

    def __init__(self, suite: Path, executor: str, *more: str) -> None:
        self.root, self.log = suite.parent, suite.parent / f"{executor}-{time.time_ns()}.log"
        arguments = [
            "run",
            str(suite),
            "--runs",
            str(suite.parent / executor),
            "--executor",
            executor,
            "--threads",
            "1",
            *more,
        ]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "exitbench.harness.cli.main", *arguments], stdout=log, stderr=log
            )

    def end(self, limit_s: float = 300.0) -> int:
        """Wait for the process to end, and return its exit code."""
        return self.process.wait(limit_s)


def running(runs: Path) -> list[tuple[str, int]]:
    """Return the model and the worker's process id of every running attempt."""
    attempts = [attempt.path for attempt in scan_spool(runs / "spool") if not attempt.finished]
    owners = [(path, owner) for path in attempts if (owner := owner_of(path)) is not None]
    cells = [(path / "cell.json", owner.pid) for path, owner in owners]
    return [(json.loads(cell.read_text())["model"]["name"], pid) for cell, pid in cells if cell.exists()]


def finished(runs: Path) -> int:
    return sum(attempt.finished for attempt in scan_spool(runs / "spool"))


def submitted(runs: Path) -> int:
    return len(list((runs / "slurm").glob("exitbench-*")))


def queue(*columns: str) -> list[list[str]]:
    form = "|".join(columns)
    done = subprocess.run(["squeue", "-h", "-r", f"--format={form}"], capture_output=True, text=True, check=True)
    return [line.split("|") for line in done.stdout.splitlines()]


@dataclass(frozen=True)
class Row:
    """One finished attempt."""

    cell_id: str
    model: str
    status: str
    reason: str | None


def rows(runs: Path) -> list[Row]:
    """Return the finished attempts in order of time."""
    done = [read_attempt(attempt.path) for attempt in scan_spool(runs / "spool") if attempt.finished]
    done.sort(key=lambda record: record.attempt.attempt_id)
    return [
        Row(
            record.attempt.cell_id,
            record.cell["model"]["name"],
            record.status["status"],
            record.status["reason"],
        )
        for record in done
    ]


def traces(runs: Path) -> list[tuple[Any, ...]]:
    """Return cell id, file name and digest of the tokens and samples of every successful attempt."""
    query = """SELECT cell_id, name, sha256 FROM attempt JOIN attempt_file USING (attempt_id)
               WHERE status = 'ok' AND name IN ('tokens.parquet', 'samples.parquet') ORDER BY ALL"""
    with duckdb.connect(str(runs / "exitbench.duckdb"), read_only=True) as connection:
        return connection.execute(query).fetchall()


@dataclass(frozen=True)
class Story:
    """Events of the whole test.

    Attributes:
        root: Folder with the runs folders ``local`` and ``slurm``.
        killed: Model of the killed worker.
        cancelled: Model of the cancelled job, and the job.
        submissions: Number of submissions by the end of each Slurm controller.
        codes: Exit code of each Slurm controller.
    """

    root: Path
    killed: str
    cancelled: tuple[str, str]
    submissions: tuple[int, ...]
    codes: tuple[int, ...]


@pytest.fixture(scope="module")
def story(slurm: Path, models: Path, tmp_path_factory: pytest.TempPathFactory, wait_for: Wait) -> Story:
    root = tmp_path_factory.mktemp("forty")
    suite, runs = write_suite(root / "forty.toml", models, MODELS, limit=24), root / "slurm"
    assert Controller(suite, "local").end() == 0

    started_s = time.monotonic()
    first = Controller(suite, "slurm")
    wait_for(lambda: finished(runs) >= 3 and running(runs))
    killed, pid = running(runs)[0]
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: finished(runs) >= 6)
    first.process.kill()
    codes, submissions = [first.end()], [submitted(runs)]

    second = Controller(suite, "slurm")
    wait_for(lambda: [name for name, _ in running(runs) if name in MODELS[2:]], limit_s=120)
    cancelled = next(name for name, _ in running(runs) if name in MODELS[2:])
    job = next(f"{array}_{index}" for array, index in queue("%F", "%K") if index == str(MODELS.index(cancelled)))
    subprocess.run(["scancel", job], check=True)
    codes.append(second.end())
    submissions.append(submitted(runs))

    codes.append(Controller(suite, "slurm").end())
    submissions.append(submitted(runs))
    print(f"{len(rows(runs))} attempts through Slurm in {time.monotonic() - started_s:.0f} s")
    return Story(root, killed, (cancelled, job), tuple(submissions), tuple(codes))


def test_slurm_database_equals_that_of_the_local_executor(story: Story) -> None:
    assert len(rows(story.root / "local")) == len(MODELS) * CELLS_A_MODEL
    expected = traces(story.root / "local")
    assert len(expected) == 2 * len(MODELS) * CELLS_A_MODEL
    assert traces(story.root / "slurm") == expected


def test_successful_cells_are_not_run_again(story: Story) -> None:
    ok = Counter(row.cell_id for row in rows(story.root / "slurm") if row.status == "ok")
    assert set(ok.values()) == {1}


def test_killed_worker_loses_one_cell_of_its_group(story: Story) -> None:
    lost = [row for row in rows(story.root / "slurm") if row.status == "failed"]
    assert [(row.model, row.reason) for row in lost] == [(story.killed, "the worker was killed by SIGKILL")]


def test_cells_of_a_cancelled_job_are_recorded_as_interrupted(story: Story) -> None:
    model, job = story.cancelled
    lost = [row for row in rows(story.root / "slurm") if row.status == "interrupted"]
    assert {row.model for row in lost} == {model}
    reasons = Counter(row.reason for row in lost)
    unbegun = reasons.pop(f"Slurm job {job}: CANCELLED, before this cell began")
    ((reason, count),) = reasons.items()
    assert reason is not None and count == 1
    first = [row for row in rows(story.root / "slurm") if row.model == model][:CELLS_A_MODEL]
    assert Counter(row.status for row in first) == Counter(interrupted=1 + unbegun, ok=CELLS_A_MODEL - 1 - unbegun)


def test_restarted_controller_follows_running_jobs_without_resubmitting(story: Story) -> None:
    assert story.submissions == (1, 1, 2)
    assert story.codes == (-signal.SIGKILL, 1, 0)


def test_preempted_job_resumes_and_ctrl_c_does_not_cancel_jobs(
    slurm: Path, models: Path, tmp_path: Path, wait_for: Wait
) -> None:
    suite, runs = write_suite(tmp_path / "forty.toml", models, MODELS[:1], limit=24), tmp_path / "slurm"
    controller = Controller(suite, "slurm")
    wait_for(lambda: finished(runs) >= 2 and running(runs))
    controller.process.send_signal(signal.SIGINT)
    assert controller.end() == 130
    ((job,),) = queue("%A")
    assert f"scancel {job}" in controller.log.read_text()

    subprocess.run(["scancel", job, "--signal=USR2"], check=True)  # as Slurm does before it preempts
    wait_for(lambda: queue("%T") == [["PENDING"]])
    stopped = rows(runs)
    assert [row.status for row in stopped] == ["ok"] * (len(stopped) - 1) + ["interrupted"]
    assert len(stopped) < CELLS_A_MODEL

    assert Controller(suite, "slurm").end() == 0
    ended = Counter((row.cell_id, row.status) for row in rows(runs))
    assert ended.total() == CELLS_A_MODEL + 1 and set(ended.values()) == {1}
    assert submitted(runs) == 1


def test_job_specification_can_be_run_manually(story: Story, tmp_path: Path) -> None:
    specification = sorted((story.root / "slurm" / "slurm").glob("*/task-0.json"))[0]
    command = [sys.executable, "-m", "exitbench.harness.cli.main", "_cell", str(specification)]
    again = subprocess.run(command, capture_output=True, text=True, check=True)
    assert Counter(json.loads(line)["event"] for line in again.stdout.splitlines()) == {"end": CELLS_A_MODEL}
    elsewhere = subprocess.run([*command, "--spool", str(tmp_path)], capture_output=True, text=True, check=True)
    assert Counter(json.loads(line).get("status") for line in elsewhere.stdout.splitlines())["ok"] == CELLS_A_MODEL


def test_options_refused_by_slurm_are_reported(slurm: Path, models: Path, tmp_path: Path) -> None:
    suite = write_suite(tmp_path / "forty.toml", models, MODELS[:1], limit=2)
    controller = Controller(suite, "slurm", "--slurm", "partition=nowhere")
    assert controller.end() == 2
    assert "Slurm does not take the jobs" in controller.log.read_text()
    assert "invalid partition" in controller.log.read_text()
    assert submitted(tmp_path / "slurm") == 0
