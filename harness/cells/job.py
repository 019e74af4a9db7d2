"""Worker jobs: the cells of one loaded model, passed from parent to worker as one JSON file.

Planner and worker communicate by files, so that the same command runs under a shell, a cluster's scheduler or a test.
A worker

* loads ``model_path`` once and runs ``cells`` in their order, with one attempt folder in ``spool`` each.
* reports progress as events, one per line, through a separate pipe (`events`).
* ends a cell as ``skipped``, with the reason, if a cell that it depends on did not end ``ok``.
* holds the lock of each cell while it runs (`cell_lock`). A cell that has ended since it was planned only gets its
  ``end`` event, so that running a specification again runs the remaining cells.
* on SIGINT, SIGTERM and SIGUSR2 (a scheduler's notice) ends the current attempt as ``interrupted``, reports it in an
  ``end`` event, and exits with 130.
* exits immediately, without ending its attempt, when its parent process is gone (`lifeline`).
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from exitbench.errors import UserError
from exitbench.harness.cells.cell import Cell
from exitbench.tasks.base import Part, Source, SourceKind, Task, take_by_hash
from exitbench.tasks.declared import Declaration, DeclaredTask
from exitbench.tasks.document import DEFAULT_LEVEL, Document
from exitbench.tasks.lm_eval.settings import LmEvalSettings
from exitbench.tasks.styles import Prompting


@dataclass(frozen=True)
class DataRequest:
    """Selection of a task's documents: everything ``Task.load`` needs but the data folder.

    Attributes:
        files: Documents in local files only: each file's role in the task, and its path relative to the data folder.
        part: Documents in local files only: ``train`` or ``test`` if only this part is read.
        limit: Number of documents kept, in hash order of their keys; None keeps all.
        seed: Seed of the built-in generator.
        level: Difficulty of built-in data, 1 to 3.
        apart_from: Other selections of documents. A document with the same prompt as one of these is excluded,
            before `limit` is applied.
        settings: For lm-eval's tasks: settings of prompts; None for this project's tasks.
        declaration: For a task declared in a TOML file: the content of that file; None for all others.
        prompting: Prompts in a style other than the task's own; None for the task's own. Documents with the passage of
            a few-shot example are excluded, before `limit` is applied.
    """

    task: str
    source: SourceKind
    split: str
    files: tuple[tuple[str, str], ...] = ()
    part: Part = "all"
    limit: int | None = None
    seed: int = 0
    level: int = DEFAULT_LEVEL
    apart_from: "tuple[DataRequest, ...]" = ()
    settings: LmEvalSettings | None = None
    declaration: Declaration | None = None
    prompting: Prompting | None = None

    @property
    def task_object(self) -> Task:
        """The task, configured with this request's settings, declaration and prompt style.

        Raises:
            UserError: There is no task of this name.
        """
        from exitbench.tasks.registry import get_task

        task = get_task(self.task, self.settings) if self.declaration is None else DeclaredTask(self.declaration)
        if self.prompting is not None:
            task.prompting = self.prompting
        return task

    def load(self, data_dir: Path | None) -> list[Document]:
        """Return the selected documents of the task.

        Args:
            data_dir: Folder of local files; None if there is none.

        Raises:
            UserError: A file is missing, damaged or malformed, or no document is left.
        """
        return self.load_with_excluded_count(data_dir)[0]

    def load_with_excluded_count(self, data_dir: Path | None) -> tuple[list[Document], int]:
        """Return the selected documents, and the number of documents left out because `apart_from` excludes them.

        Raises:
            UserError: A file is missing, damaged or malformed, or no document is left.
        """
        task = self.task_object
        source = Source(self.source, data_dir, self.files, self.level, self.part)
        examples = self.prompting if self.prompting is not None and self.prompting.excluded else None
        if not self.apart_from and examples is None:
            return task.load(source, self.split, self.limit, self.seed), 0
        documents = task.load(source, self.split, None, self.seed)
        if examples is not None:
            documents = [document for document in documents if not examples.excludes(task, document)]
        if not documents:
            raise UserError(f"{self.task}: all documents of {self.origin} have the passage of a few-shot example.")
        excluded = {task.likeness(document) for other in self.apart_from for document in other.load(data_dir)}
        remaining = [document for document in documents if task.likeness(document) not in excluded]
        if not remaining:
            raise UserError(
                f"{self.task}: all {len(documents)} documents of {self.origin} have prompts of documents with another "
                "use, and drop_shared = true leaves none."
            )
        return take_by_hash(remaining, self.limit), len(documents) - len(remaining)

    @property
    def origin(self) -> str:
        """Origin of the documents, for messages: file names, or the name of the split."""
        names = " and ".join(path for _, path in self.files) or f"split {self.split!r}"
        return names if self.part == "all" else f"part {self.part!r} of {names}"

    def to_json(self) -> dict[str, Any]:
        """Return the request as JSON-serializable data; `prompting` is left out if it is None."""
        return {name: value for name, value in asdict(self).items() if name != "prompting" or value is not None}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "DataRequest":
        """Rebuild a request from its JSON form."""
        files = tuple((role, path) for role, path in record["files"])
        apart_from = tuple(map(cls.from_json, record["apart_from"]))
        settings = record["settings"]
        rebuilt = settings and LmEvalSettings.from_json(settings)
        declared = record["declaration"]
        declaration = declared and Declaration.from_json(declared)
        styled = record.get("prompting")  # absent from cells of tasks' own prompts
        prompting = styled and Prompting.from_json(styled)
        converted = {"files": files, "apart_from": apart_from, "settings": rebuilt, "declaration": declaration}
        converted["prompting"] = prompting
        return cls(**{**record, **converted})


@dataclass(frozen=True)
class CellJob:
    """A cell, its label in progress and logs, and the selection of its documents.

    Attributes:
        held_out: Documents on which a calibration is checked; None for other cells.
        seen: Id of the last attempt that had ended when the plan was made; None if there was none. A worker skips
            the cell if a later attempt has ended.
        conformance: Results of the method's conformance checks (`harness.conformance`); None if they were not run.
        timeout_s: Time limit of the cell in seconds, without loading its model; None for no limit.
    """

    cell: Cell
    label: str
    data: DataRequest
    held_out: DataRequest | None = None
    seen: str | None = None
    conformance: Mapping[str, Any] | None = None
    timeout_s: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the job as JSON-serializable data."""
        return {
            "cell": self.cell.to_json(),
            "label": self.label,
            "data": self.data.to_json(),
            "held_out": self.held_out and self.held_out.to_json(),
            "seen": self.seen,
            "conformance": self.conformance,
            "timeout_s": self.timeout_s,
        }

    def cell_record(self) -> dict[str, Any]:
        """Return the content of ``cell.json``: the cell, the selection of its documents, and conformance results."""
        held_out = self.held_out and self.held_out.to_json()
        sources = {"data": self.data.to_json(), "held_out": held_out}
        return {**self.cell.to_json(), **sources, "conformance": self.conformance, "cell_timeout_s": self.timeout_s}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "CellJob":
        """Rebuild a job from its JSON form."""
        held_out = record["held_out"] and DataRequest.from_json(record["held_out"])
        cell, data = Cell.from_json(record["cell"]), DataRequest.from_json(record["data"])
        conformance, timeout_s = record["conformance"], record["timeout_s"]
        return cls(cell, record["label"], data, held_out, record["seen"], conformance, timeout_s)


@dataclass(frozen=True)
class WorkerSpec:
    """Complete input of one worker process. Timing settings are in each timing cell (``cell.timing``).

    Attributes:
        device: Resolved device, such as ``cpu`` or ``cuda``.
        threads: Number of threads in torch's intra-op pool.
        inputs: Spool with the attempts of the cells that these cells depend on; None for ``spool``.
        plugins: Folder of trusted plug-ins; None if there is none.
        confirm_run_unsafe_code: Whether scoring may run code written by a model, for tasks that need it.
        shares: Whether one run of the model may produce the results of several cells (`harness.work.partners`).
    """

    cells: tuple[CellJob, ...]
    model_path: Path
    data_dir: Path | None
    spool: Path
    device: str
    threads: int
    inputs: Path | None = None
    plugins: Path | None = None
    confirm_run_unsafe_code: bool = False
    shares: bool = True

    def to_json(self) -> str:
        """Return the specification as the JSON text of SPEC.json."""
        record = {
            "cells": [item.to_json() for item in self.cells],
            "model_path": str(self.model_path),
            "data_dir": None if self.data_dir is None else str(self.data_dir),
            "spool": str(self.spool),
            "device": self.device,
            "threads": self.threads,
            "plugins": None if self.plugins is None else str(self.plugins),
            "confirm_run_unsafe_code": self.confirm_run_unsafe_code,
            "shares": self.shares,
        }
        return json.dumps(record, ensure_ascii=False, indent=1)

    @classmethod
    def from_json(cls, text: str) -> "WorkerSpec":
        """Rebuild a specification from the JSON text of SPEC.json."""
        record = json.loads(text)
        plugins = record["plugins"]
        return cls(
            cells=tuple(CellJob.from_json(item) for item in record["cells"]),
            model_path=Path(record["model_path"]),
            data_dir=None if record["data_dir"] is None else Path(record["data_dir"]),
            spool=Path(record["spool"]),
            device=record["device"],
            threads=record["threads"],
            plugins=None if plugins is None else Path(plugins),
            confirm_run_unsafe_code=record["confirm_run_unsafe_code"],
            shares=record["shares"],
        )
