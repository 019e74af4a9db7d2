"""Base class of the kinds of work that cells do on a loaded model with its documents."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar

import numpy as np
import pyarrow.parquet as pq

from exitbench.errors import UserError
from exitbench.harness.cells.cell import CalibrationSettings, GenerationSettings, Kind, ModelRef
from exitbench.harness.cells.job import CellJob, DataRequest
from exitbench.harness.cells.prompts import Fitting
from exitbench.harness.cells.seeds import seed_for
from exitbench.harness.work.metrics import Metric
from exitbench.methods.base import FitData, Method, Parts
from exitbench.methods.registry import baseline_method, get_method
from exitbench.results.spool.attempts import AttemptWriter
from exitbench.results.statistics.intervals import Interval
from exitbench.tasks.base import ModelKind, OutputType, Task
from exitbench.tasks.document import Document, DocumentScore

if TYPE_CHECKING:
    from exitbench.harness.engine.checkpoints.digest import Description
    from exitbench.harness.work.loaded import LoadedModel
    from exitbench.harness.work.timed import TimedWork

Answer = TypeVar("Answer")

Progress = Callable[[int], None]
"""Callback that receives the number of documents done."""


MODEL_READS: Final = "the model reads"
_READERS: Final[dict[ModelKind, str]] = {"seq2seq": "an encoder-decoder reads", "causal": "a decoder-only model reads"}


class Skip(Exception):
    """Raised if a cell cannot be run, with the reason; stored as a row with status ``skipped``."""


@dataclass(frozen=True)
class Evaluated(Generic[Answer]):
    """Answers with their scores, by document key.

    Attributes:
        aggregated: Value of each metric as aggregated by lm-eval; empty if lm-eval was not used.
    """

    answers: Mapping[str, Answer]
    scores: Mapping[str, DocumentScore]
    aggregated: Mapping[str, float]


class Work(ABC, Generic[Answer]):
    """Work of a cell on a loaded model and its documents; one subclass per kind of work.

    Class attributes and class methods need no loaded model, since plans use them. `Answer` is the answer to one
    document.

    Args:
        model: The loaded model.
        item: The cell.
        data: The documents; None: the cell's own, rather than those that a calibration is checked on.

    Attributes:
        output_types: Output types of the tasks that need this work.
        kinds: Kinds of cells that support it.
        generates: Texts are generated, by greedy decoding: logit rules, stop strings, chat templates and certified
            heads apply.
        probe_has_scores: Replays can compute some gates' scores from the columns of a probe; otherwise they always
            need a scores cell.
        records: Sub-layers of blocks and times of tokens may be requested (``record``); a run may still skip them.
    """

    output_types: ClassVar[tuple[OutputType, ...]]
    kinds: ClassVar[tuple[Kind, ...]]
    generates: ClassVar[bool] = False
    probe_has_scores: ClassVar[bool] = False
    records: ClassVar[bool] = True

    def __init__(self, model: LoadedModel, item: CellJob, data: DataRequest | None = None) -> None:
        self.model, self.item, self.cell, self.data = model, item, item.cell, data or item.data
        self.settings: GenerationSettings = item.cell.generation

    # --- Known without a model

    @classmethod
    def why_not(cls, parts: Parts, method: str) -> str | None:
        """Return why a method, named in the reason, cannot do this kind of work; None if it can."""
        return None

    @classmethod
    def resolve(cls, task: Task, settings: GenerationSettings, model: ModelRef) -> GenerationSettings:
        """Return the settings that have an effect on a model.

        Raises:
            UserError: The model cannot do it.
        """
        return settings

    @classmethod
    @abstractmethod
    def check_model(cls, task: Task, description: Description) -> None:
        """Check that a model's outputs are of the type that a task needs.

        Raises:
            UserError: They are not; the message names both.
        """

    @classmethod
    def check_method(cls, method: Method, description: Description) -> None:
        """Check that a method can do this kind of work on a model, as far as a plan can tell.

        Raises:
            UserError: It cannot, and why.
        """

    @classmethod
    @abstractmethod
    def about(cls, task: Task, max_new_tokens: int) -> str:
        """Return a line that describes the expected outputs, for readers."""

    @classmethod
    def readable_texts(cls, task: Task, documents: Sequence[Document]) -> Iterator[list[tuple[str, str]]]:
        """Yield titles and texts of each document: the model's inputs, and the reference."""
        for document in documents:
            texts = {title: task.prompt_for(document, kind) for kind, title in _READERS.items()}
            is_same = len(set(texts.values())) == 1
            prompts = [(MODEL_READS, next(iter(texts.values())))] if is_same else list(texts.items())
            yield [*prompts, ("target", task.target(document))]

    # --- Documents

    @cached_property
    def task(self) -> Task:
        """The task, with its settings."""
        return self.data.task_object

    def for_data(self, data: DataRequest) -> Work[Answer]:
        """Return the same work on other documents."""
        return type(self)(self.model, self.item, data)

    @cached_property
    def fitting(self) -> Fitting:
        """The documents that fit the model, shared by all cells with the same model, task and settings.

        Raises:
            UserError: No document fits.
        """
        return self.model.once(("fitting", self.data, self.settings), self._fit_documents)

    @property
    def documents(self) -> Sequence[Document]:
        """The documents to answer."""
        return self.fitting.documents

    @abstractmethod
    def _fit_documents(self) -> Fitting:
        """Exclude documents that are too long or cannot be requested."""

    def units(self) -> int:
        """Return the total of the progress count: documents (over all levels of a calibration), or timed units."""
        cell = self.cell
        try:
            n_documents = len(self.documents)
        except UserError:  # the pass itself will raise it, where failures are recorded
            n_documents = len(self.model.documents(self.data)[0])
        if cell.calibration is not None:
            return n_documents * (1 + len(cell.calibration.levels))
        if cell.record is not None:
            return min(n_documents, cell.record.documents)
        if cell.timing is None:
            return n_documents
        return -(-min(n_documents, cell.timing.documents) // cell.batch_size)

    def seed_of(self, doc_key: str) -> int:
        """Return the random seed of methods for a document."""
        return seed_for("decode", self.cell.seed, doc_key)

    @property
    def bootstrap_seed(self) -> int:
        """Seed of the cell's bootstrap intervals."""
        return seed_for("bootstrap", self.cell.seed)

    @property
    def ignored_settings(self) -> Mapping[str, Any]:
        """Generation settings of the checkpoint that are not applied."""
        return {}

    def cell_record(self) -> dict[str, Any]:
        """Return the content of ``cell.json``."""
        ignored = self.ignored_settings
        return {**self.item.cell_record(), **({"not_applied": ignored} if ignored else {})}

    # --- The method

    @property
    def method(self) -> Method:
        """The method, bound to the exit heads of this model."""
        method = get_method(self.cell.method.name).from_params(self.cell.method.params)
        method.check(self.model.model.n_blocks)
        return method.bound_to(self.model.model.exit_blocks)

    def parts(self, *, threshold: float | None = None) -> Parts:
        """Return the method's parts, bound to this model and to its fitted tensors.

        Args:
            threshold: Replaces the cell's threshold.

        Raises:
            Skip: The engine cannot run it on this model, or it cannot do this kind of work; gives the reason.
        """
        method = self.method if threshold is None else replace(self.method, threshold=threshold)  # type: ignore[call-arg]
        parts = method.parts(self.model.model.n_blocks, self.model.fitted(self.cell.fit_cell_id))
        self.require_runnable(parts)
        if (reason := self.why_not(parts, self.cell.method.name)) is not None:
            raise Skip(reason)
        return parts.certified() if self.cell.head_precision == "certified" else parts

    def require_runnable(self, parts: Parts) -> None:
        """Check that the engine can run a method on this model.

        Raises:
            Skip: It cannot, and why.
        """
        if (why_not := self.model.model.why_not(parts, self.cell.rows)) is not None:
            raise Skip(why_not)

    @property
    def full_parts(self) -> Parts:
        """Parts of full depth on this model."""
        return baseline_method()().parts(self.model.model.n_blocks)

    # --- Quality

    @abstractmethod
    def evaluate(self, parts: Parts, on_progress: Progress) -> Evaluated[Answer]:
        """Answer every document and score the answers, through lm-eval if it has tasks of this kind."""

    @abstractmethod
    def sample(self, document: Document, answer: Answer) -> dict[str, Any]:
        """Return a row of the spool's ``samples``, without its scores."""

    @abstractmethod
    def record(self, writer: AttemptWriter, answers: Mapping[str, Answer], parts: Parts) -> dict[str, Metric]:
        """Write the trace of answers next to full depth's; return metrics of depth, agreement and cost."""

    @abstractmethod
    def compare_formats(self, reference: Any, answers: Mapping[str, Answer]) -> dict[str, Interval]:
        """Compare full depth with the same checkpoint in float32; `metrics` describes the metrics."""

    # --- Offline: predictions of every block

    def probe(self, writer: AttemptWriter, on_progress: Progress) -> None:
        """Write every block's prediction of every token."""
        raise NotImplementedError("the planner refuses it")

    def score_blocks(self, writer: AttemptWriter, on_progress: Progress) -> None:
        """Write the score of the method's gate at every block of every token."""
        raise NotImplementedError("the planner refuses it")

    def replay(self, writer: AttemptWriter) -> dict[str, Metric]:
        """Apply the method's exit rule to recorded predictions of every block; write the trace and return metrics."""
        raise NotImplementedError("the planner refuses it")

    def replayed_tokens(self) -> int:
        """Return the number of tokens that a replay reads."""
        return int(pq.read_metadata(self.replayed_file()).num_rows)

    def replayed_file(self) -> Path:
        """Return the file that a replay reads: its probe, or the gate's scores of the probed tokens."""
        if self.cell.scores_cell_id is not None:
            return self.model.file_of(self.cell.scores_cell_id, "scores.parquet")
        assert self.cell.probe_cell_id is not None, "the planner gives every replay its probe"
        return self.model.file_of(self.cell.probe_cell_id, "probe.parquet")

    # --- Calibration

    @abstractmethod
    def answer(self, parts: Parts, on_progress: Progress) -> Sequence[Answer]:
        """Answer every document, without lm-eval."""

    @abstractmethod
    def exit_layers(self, answer: Answer) -> Sequence[int]:
        """Return the exit layer of each token of an answer."""

    @abstractmethod
    def losses(self, settings: CalibrationSettings, full: Sequence[Answer], early: Sequence[Answer]) -> np.ndarray:
        """Return the loss of each document in [0, 1].

        textual: distance of the early answer's score from the best, with full depth's answer as the reference; for
        choices, whether another one was chosen. risk: how much worse the early answer scores against the real
        reference than full depth's, 0 if not worse (CALM section 4).
        """

    # --- Timing and fitting

    def timed_parts(self) -> Parts:
        """Return the method to time.

        Raises:
            Skip: It cannot be timed, and why.
        """
        return self.parts()

    @abstractmethod
    def requests(self, documents: Sequence[Document]) -> Sequence[Any]:
        """Return the engine's inputs for documents that are run together."""

    @abstractmethod
    def timed_work(self) -> TimedWork[Any, Any]:
        """Return the work to time."""

    def n_tokens(self, output: Any) -> int | None:
        """Return the number of tokens of one output of the timed work; None if there are none to count."""
        return None

    def ideal_speedup(
        self, parts: Parts, documents: Sequence[Document], full: Sequence[Any], method: Sequence[Any]
    ) -> float | None:
        """Return the speed-up allowed by the work saved between the outputs of both arms; None if unknown."""
        return None

    def time_tokens(self, writer: AttemptWriter, on_progress: Progress) -> None:
        """Write the time of every token (``record = ["token-times"]``)."""
        raise Skip("times of tokens are recorded of tokens that a model generates")

    @abstractmethod
    def fit_data(self) -> FitData:
        """Return the data a method is fitted on: states after every block, and correct tokens or labels."""
