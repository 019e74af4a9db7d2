"""Rescoring: score stored answers with the tasks' current metric versions; reads the documents, but loads no model."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from exitbench.errors import UserError
from exitbench.harness.cells.job import DataRequest
from exitbench.harness.work.metrics import metric_table, score_columns, task_metrics
from exitbench.results.analysis.selection import Run, RunIndex
from exitbench.results.files.atomic import read_json_or_empty
from exitbench.results.side_records.derived import Rescore, is_rescored, record_rescore
from exitbench.results.spool.attempts import AttemptRecord, read_attempt, scan_spool
from exitbench.tasks.base import documents_sha256
from exitbench.tasks.document import Document
from exitbench.tasks.lm_eval.task import LmEvalTask
from exitbench.terminal import number_of

_SHOWN_DIGITS = 12


@dataclass(frozen=True)
class RescoreReport:
    """Numbers of runs that `rescore` has scored or left out.

    Attributes:
        rescored: Number of runs for which new scores under the current metric version were written.
        current: Number of runs that already had scores of this version.
        problems: Ids of the attempts that could not be scored, by reason.
    """

    rescored: int
    current: int
    problems: Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class _AnsweredRun:
    """A successful attempt of a quality cell, whose stored answers can be scored again.

    Attributes:
        cell: Content of the attempt's cell.json.
    """

    attempt_id: str
    path: Path
    cell: Mapping[str, Any]

    @property
    def request(self) -> DataRequest:
        """Selection of the documents that were answered, from which they can be loaded again."""
        return DataRequest.from_json(self.cell["data"])

    @property
    def run(self) -> Run:
        about = f"{self.cell['task']['documents']} documents, suite {self.cell['suite']}"
        return Run.from_cell(self.attempt_id, self.cell, about)


def rescore(
    spool_root: Path,
    names: Sequence[str],
    data_dir: Path | None,
    progress: Callable[[int, int], None],
    confirm_run_unsafe_code: bool = False,
) -> RescoreReport:
    """Score the stored answers of the named runs (without names, of all runs) with the current metric version.

    Runs that already have scores of that version are left out.

    Args:
        spool_root: Folder of the spool, to which the scores are written (`results.side_records.derived`).
        names: Runs to score: suites (a name or TOML file), attempt or cell ids, or globs over MODEL/TASK/METHOD.
        data_dir: Root folder of the local files from which documents were read.
        progress: Callback that receives (number of runs done, number of runs to do).
        confirm_run_unsafe_code: Whether scoring may execute code that a model wrote.

    Raises:
        UserError: A name matches nothing, or the spool cannot be written.
    """
    chosen = _select(list(_stored_answers(spool_root)), names)
    scorer = _Rescorer(spool_root, data_dir, confirm_run_unsafe_code)
    problems: dict[str, list[str]] = {}
    to_do = []
    for stored in chosen:
        try:
            if not scorer.is_current(stored):
                to_do.append(stored)
        except UserError as error:
            problems.setdefault(str(error), []).append(stored.attempt_id)
    current = len(chosen) - len(to_do) - sum(map(len, problems.values()))
    for n_done, stored in enumerate(to_do, start=1):
        try:
            scorer.score(stored)
        except UserError as error:
            problems.setdefault(str(error), []).append(stored.attempt_id)
        progress(n_done, len(to_do))
    return RescoreReport(len(chosen) - current - sum(map(len, problems.values())), current, problems)


def _stored_answers(spool_root: Path) -> Iterator[_AnsweredRun]:
    """Yield the latest successful attempt of every quality cell in the spool."""
    latest: dict[str, _AnsweredRun] = {}
    for attempt in scan_spool(spool_root):
        if attempt.finished:
            cell, status = (read_json_or_empty(attempt.path / name) for name in ("cell.json", "status.json"))
            if cell.get("kind") == "quality" and status.get("status") == "ok":
                latest[attempt.cell_id] = _AnsweredRun(attempt.attempt_id, attempt.path, cell)
    yield from latest.values()


def _select(stored: Sequence[_AnsweredRun], names: Sequence[str]) -> list[_AnsweredRun]:
    """Return the runs that are selected by suites or names of runs, each once; all runs if `names` is empty."""
    runs = RunIndex((attempt.run for attempt in stored), what="quality run")
    wanted: set[str] = set()
    for name in names:
        suite = name
        if name.endswith(".toml"):
            # Imported here: suites load methods, which need torch.
            from exitbench.harness.planning.suite import load_suite

            suite = load_suite(name).name
        of_suite = {attempt.attempt_id for attempt in stored if attempt.cell["suite"] == suite}
        wanted |= of_suite or {run.attempt_id for run in runs.find(name)}
    return [attempt for attempt in stored if not names or attempt.attempt_id in wanted]


class _Rescorer:
    def __init__(self, spool_root: Path, data_dir: Path | None, confirm_run_unsafe_code: bool) -> None:
        self._spool_root, self._data_dir = spool_root, data_dir
        self._confirm_run_unsafe_code = confirm_run_unsafe_code
        self._load = cache(self._load_documents)

    def is_current(self, stored: _AnsweredRun) -> bool:
        """Return whether a run already has scores of the task's current metric version."""
        version = stored.request.task_object.metric_version
        is_same_version = stored.cell["task"]["metric_version"] == version
        return is_same_version or is_rescored(self._spool_root, stored.attempt_id, version)

    def score(self, stored: _AnsweredRun) -> None:
        """Score the stored answers of a run with the current metrics, and write scores and metrics to the spool."""
        task, record = stored.request.task_object, read_attempt(stored.path)
        rows = _rows(record, "samples")
        documents = self._documents(stored)
        if unknown := sorted({row["doc_key"] for row in rows} - documents.keys()):
            raise UserError(
                f"answers {number_of(len(unknown), 'document')} that its data does not have, such as {unknown[0]}."
            )
        if isinstance(task, LmEvalTask):
            answered = [documents[row["doc_key"]] for row in rows]
            responses = task.stored_responses(rows, _rows(record, "choices"))
            by_key = task.score_responses(answered, responses, self._confirm_run_unsafe_code)
            scores = [by_key[row["doc_key"]] for row in rows]
        else:
            scores = [task.score(documents[row["doc_key"]], row["output_text"]) for row in rows]
        samples = [{"doc_key": row["doc_key"], **score_columns(score)} for row, score in zip(rows, scores, strict=True)]
        metrics = metric_table(task_metrics(task, scores))
        new = Rescore(stored.attempt_id, task.metric_version, pa.Table.from_pylist(samples), metrics)
        record_rescore(self._spool_root, new)

    def _documents(self, stored: _AnsweredRun) -> Mapping[str, Document]:
        """Return the documents of a run, by key; raise UserError if they are not the documents that were answered.

        Their digest is compared with the stored digest.
        """
        task = stored.cell["task"]
        request = stored.request
        if request.source == "local" and self._data_dir is None:
            paths = ", ".join(path for _, path in request.files) or "the files that its YAML names"
            raise UserError(f"{task['label']} was read from {paths}: name the folder that holds them by --data-dir.")
        documents, digest = self._load(request)
        if digest != task["data_sha256"]:
            raise UserError(
                f"the {request.source} documents of {task['label']!r} are not those that were answered: their digest "
                f"is {digest[:_SHOWN_DIGITS]}, not {task['data_sha256'][:_SHOWN_DIGITS]}. Name the folder that holds "
                "the original files by --data-dir."
            )
        return documents

    def _load_documents(self, request: DataRequest) -> tuple[Mapping[str, Document], str]:
        documents = request.load(self._data_dir)
        return {document.key: document for document in documents}, documents_sha256(documents)


def _rows(record: AttemptRecord, table: str) -> list[dict[str, Any]]:
    """Return the rows of a table that an attempt has stored; empty if it has no such table."""
    return [row for batch in record.batches(table) for row in batch.to_pylist()] if table in record.tables else []
