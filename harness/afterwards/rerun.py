"""Reproducibility check: run a stored cell again as a new attempt, and compare both attempts."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exitbench.errors import UserError
from exitbench.harness.cells.cell import Cell, ModelRef
from exitbench.harness.cells.corpus import Corpora, Corpus
from exitbench.harness.cells.job import CellJob, DataRequest, WorkerSpec
from exitbench.harness.engine import ENGINE_VERSION
from exitbench.harness.engine.checkpoints.digest import describe_checkpoint
from exitbench.harness.engine.checkpoints.hub import find, read_name
from exitbench.harness.planning.stale import identity_differences
from exitbench.harness.running import worker
from exitbench.harness.training.store import SHIPPED
from exitbench.methods.registry import get_method, revision
from exitbench.plugins import plugins_folder
from exitbench.results.analysis.repeats import FileComparison, compare_attempts
from exitbench.results.analysis.selection import Run, RunIndex
from exitbench.results.files.atomic import read_json_or_empty
from exitbench.results.spool.attempts import Attempt, attempt_status, read_attempt, scan_spool

REPEATABLE = ("quality", "probe", "scores", "replay", "fit", "calibration")
"""Kinds of cells whose results can be reproduced exactly; timings cannot."""


@dataclass(frozen=True)
class StoredAttempt:
    """A finished attempt (one run of a cell) that is to be repeated, with its records.

    Attributes:
        attempt: Ids and folder of the attempt in the spool.
        cell: Content of the attempt's cell.json.
        env: Content of the attempt's env.json.
    """

    attempt: Attempt
    cell: dict[str, Any]
    env: dict[str, Any]


@dataclass(frozen=True)
class RerunResult:
    """Result of a repetition of a stored cell: the new attempt, and its comparison with the stored one.

    Attributes:
        repeated: Folder of the new attempt.
        status: Final status of the new attempt.
        reason: Reason of the status; None if it is ``ok``.
        compared: One comparison per file of the attempt; empty if the status is not ``ok``.
    """

    repeated: Path
    status: str
    reason: str | None
    compared: tuple[FileComparison, ...]

    @property
    def equal(self) -> bool:
        """Whether the new attempt succeeded and all its files equal those of the stored attempt."""
        return self.status == "ok" and all(comparison.equal for comparison in self.compared)


def find_stored(spool: Path, name: str) -> StoredAttempt:
    """Return the latest successful attempt of the one run that a name selects.

    Args:
        spool: Folder of the spool.
        name: Attempt or cell id of a run, or a glob over MODEL/TASK/METHOD (`results.analysis.selection`).

    Raises:
        UserError: The name matches no run or several, or the attempt's files are damaged.
    """
    attempts = {attempt.attempt_id: attempt for attempt in scan_spool(spool) if attempt.finished}
    runs = RunIndex(filter(None, map(_run, attempts.values())), what="repeatable run")
    matches = runs.find(name)
    # A name without an id selects the quality run, if there is one. For each cell, only the latest attempt counts.
    answers = [run for run in matches if run.about == "quality"] or matches
    latest = list({run.cell_id: run for run in answers}.values())
    if len(latest) > 1:
        raise UserError(f"{name!r} names {len(latest)} repeatable runs, one is needed:\n{runs.listing(latest)}")
    record = read_attempt(attempts[latest[0].attempt_id].path)
    return StoredAttempt(record.attempt, record.cell, record.env)


def verify(
    stored: StoredAttempt,
    spool: Path,
    repetitions: Path,
    folder: Path,
    data_dir: Path | None,
    threads: int,
    confirm_run_unsafe_code: bool = False,
) -> RerunResult:
    """Run a stored cell again, and compare the new attempt's files with those of the stored attempt.

    Args:
        stored: The attempt to repeat.
        spool: Spool with the stored attempt and the cells that it depends on.
        repetitions: Other spool, which receives the new attempt. In the original spool, it would replace the stored
            attempt.
        folder: Folder of the model's checkpoint.
        data_dir: Root folder of the local files from which the documents were read.
        threads: Number of torch threads.
        confirm_run_unsafe_code: Whether scoring may execute code that the model wrote.

    Raises:
        UserError: Weights, documents, or the version of engine, method or metric differ from the stored ones, or
            scoring would execute code that the model wrote, without confirmation.
    """
    item = _job(stored, repetitions, folder, data_dir)
    if not confirm_run_unsafe_code and getattr(item.data.task_object, "is_unsafe", False):
        raise UserError(
            f"{item.label}: scoring runs what the model wrote. Allowed with --confirm-run-unsafe-code, which runs it "
            "in a process with limits and without a network."
        )
    spec = WorkerSpec(
        (item,),
        folder.resolve(),
        data_dir,
        repetitions,
        item.cell.device,
        threads,
        spool,
        plugins_folder(),
        confirm_run_unsafe_code,
    )
    if worker.run(spec, lambda event: None) == worker.INTERRUPTED:
        raise KeyboardInterrupt
    status = attempt_status(repetitions, item.cell.cell_id)
    if status is None or status.attempt_id == item.seen:
        raise UserError(f"cell {item.cell.cell_id[:12]} was not run again.")
    compared = compare_attempts(stored.attempt.path, status.path) if status.status == "ok" else []
    return RerunResult(status.path, status.status, status.reason, tuple(compared))


def find_checkpoint(stored: StoredAttempt, models: Path, logs: Path) -> Path:
    """Return the folder of a checkpoint with the same weights, configuration and tokenizer as a stored attempt.

    Args:
        stored: The attempt to repeat.
        models: Folder of trained models. Bundled models and, for a hub model, the hub's local cache are also searched.
        logs: Folder of the workers' specifications, which name the folders of other checkpoints.

    Raises:
        UserError: No such checkpoint is found.
    """
    model = stored.cell["model"]
    wanted = (model["weights_sha256"], model["config_sha256"], model["tokenizer_sha256"])
    for folder in (*_hub_folder(model.get("source")), *_checkpoints(models, logs)):
        try:
            described = describe_checkpoint(model["name"], folder)
        except UserError:
            continue
        if (described.weights_sha256, described.config_sha256, described.tokenizer_sha256) == wanted:
            return folder
    raise UserError(
        f"no checkpoint with the weights {wanted[0][:12]} of model {model['name']!r} in {models}, among the shipped "
        f"ones or in {logs}. Name its folder by --model."
    )


def _checkpoints(models: Path, logs: Path) -> Iterator[Path]:
    for root in (models, SHIPPED):
        yield from sorted(config.parent for config in root.glob("*/config.json"))
    paths = {path for log in logs.glob("*.json") if (path := read_json_or_empty(log).get("model_path"))}
    yield from (Path(path) for path in sorted(paths))


def _hub_folder(source: str | None) -> Iterator[Path]:
    """Yield the folder of a Hugging Face hub checkpoint in the local cache, if `source` names one that is there."""
    name = read_name(source) if source is not None else None
    if name is not None and (located := find(name)) is not None:
        yield located.folder


def _run(attempt: Attempt) -> Run | None:
    """Return the names under which an attempt can be selected; None if it failed or its kind cannot be repeated."""
    cell, status = (read_json_or_empty(attempt.path / name) for name in ("cell.json", "status.json"))
    if status.get("status") != "ok" or cell.get("kind") not in REPEATABLE:
        return None
    return Run.from_cell(attempt.attempt_id, cell, cell["kind"])


def _job(stored: StoredAttempt, repetitions: Path, folder: Path, data_dir: Path | None) -> CellJob:
    """Return a job that runs a stored cell again with the current code and data.

    Raises:
        UserError: Model, data or versions differ from those of the stored cell; the message lists the differences.
    """
    data = DataRequest.from_json(stored.cell["data"])
    held_out_data = stored.cell["held_out"] and DataRequest.from_json(stored.cell["held_out"])
    corpora = Corpora(repetitions.parent)
    corpus = corpora.describe(data, data_dir)
    held_out_sha256 = corpora.describe(held_out_data, data_dir).data_sha256 if held_out_data else ""
    cell = _with_current_versions(
        stored.cell, describe_checkpoint(stored.cell["model"]["name"], folder), corpus, held_out_sha256
    )
    if changed := identity_differences(stored.cell["identity"], cell.identity):
        commit = stored.env["environment"]["git_commit"] or "unknown"
        raise UserError(
            f"attempt {stored.attempt.attempt_id} cannot be repeated here, because the cell would not be the same "
            f"(it ran at commit {commit[:12]}):\n  " + "\n  ".join(changed)
        )
    status = attempt_status(repetitions, cell.cell_id)
    label = f"{cell.model.name}/{cell.task.label}/{cell.method.name}/{cell.kind}"
    latest_id = status.attempt_id if status else None
    return CellJob(cell, label, data, held_out_data, latest_id, conformance=stored.cell["conformance"])


def _with_current_versions(record: dict[str, Any], model: ModelRef, corpus: Corpus, held_out_sha256: str) -> Cell:
    """Return a stored cell with current versions of engine, method and metric, and digests of model and data."""
    method = {**record["method"], "revision": revision(get_method(record["method"]["name"]))}
    task = {
        **record["task"],
        "data_sha256": corpus.data_sha256,
        "prompts_sha256": corpus.prompts_sha256[model.kind],
        "metric_version": DataRequest.from_json(record["data"]).task_object.metric_version,
    }
    calibration = record["calibration"] and {**record["calibration"], "held_out_sha256": held_out_sha256}
    content = {"weights_sha256", "config_sha256", "tokenizer_sha256"}
    here = {**record["model"], **{name: getattr(model, name) for name in content}}
    now = {"engine_version": ENGINE_VERSION, "method": method, "task": task, "calibration": calibration, "model": here}
    return Cell.from_json({**record, **now})
